"""The newest torch and transformers that passed the tests, and a warning where newer ones are installed."""

from __future__ import annotations

import logging
import re
from functools import cache

import torch
import transformers

log = logging.getLogger(__name__)

NEWEST_TESTED = {"torch": "2.14", "transformers": "5.24"}
"""Newest minor versions that passed `make test-versions`; at least the versions in constraints.txt."""


def untested() -> list[str]:
    """Returns one sentence for each installed package whose minor version is newer than any tested."""
    installed = {"torch": torch.__version__, "transformers": transformers.__version__}
    return [
        f"{name} {installed[name]} is newer than {newest}, the newest version that draftwood was tested "
        f"with: if a model is refused or its text differs from that of generate(), install {name} {newest}."
        for name, newest in NEWEST_TESTED.items()
        if minor(installed[name]) > minor(newest)
    ]


def minor(version: str) -> tuple[int, int]:
    """Returns the major and minor number of `version`: patches and builds do not count."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None:
        raise ValueError(f"{version!r} is not a version, which begins with two numbers, such as 2.13.")
    return int(found[1]), int(found[2])


@cache
def warn_if_untested() -> None:
    """Logs the sentences of `untested`, once per process."""
    for sentence in untested():
        log.warning(sentence)
