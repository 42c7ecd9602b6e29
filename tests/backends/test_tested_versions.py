"""Versions of torch and transformers: what is locked was tested, and what is newer is told once."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import transformers

from draftwood import load, zoo
from draftwood.backends.loading.tested_versions import NEWEST_TESTED, minor, untested, warn_if_untested

ROOT = Path(__file__).resolve().parents[2]
PINS = dict(
    line.split("==")
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if "==" in line
)


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    warn_if_untested.cache_clear()
    yield
    warn_if_untested.cache_clear()


@pytest.mark.parametrize("name", NEWEST_TESTED)
def test_what_is_locked_was_tested(name: str) -> None:
    assert minor(PINS[name]) <= minor(NEWEST_TESTED[name])


def test_the_readme_names_the_locked_versions() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"\b(torch|transformers) (\d+\.\d+\.\d+)", readme.splitlines()[-1]))
    assert told == {name: PINS[name] for name in NEWEST_TESTED}


@pytest.mark.parametrize("name", NEWEST_TESTED)
def test_a_newer_version_is_told_once(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    installed = {"torch": torch.__version__, "transformers": transformers.__version__}
    for other in NEWEST_TESTED:
        monkeypatch.setitem(NEWEST_TESTED, other, "1.9" if other == name else "99.0")
    for _ in range(2):
        load(zoo.path("llama-draft"))
    (said,) = [one for one in caplog.records if one.name == "draftwood.backends.loading.tested_versions"]
    assert said.levelno == logging.WARNING
    assert said.message == (
        f"{name} {installed[name]} is newer than 1.9, the newest version that draftwood was tested with: "
        f"if a model is refused or its text differs from that of generate(), install {name} 1.9."
    )


def test_patches_and_builds_of_a_tested_version_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEWEST_TESTED, "torch", ".".join(map(str, minor(torch.__version__))))
    monkeypatch.setitem(NEWEST_TESTED, "transformers", ".".join(map(str, minor(transformers.__version__))))
    assert untested() == []
    assert minor("5.24.1") == minor("5.24") == minor("5.24.0.post1+cpu")


def test_numbers_are_compared_as_numbers() -> None:
    assert minor("2.9.1") < minor("2.10.0rc1") < minor("10.0")
    with pytest.raises(ValueError, match="'main' is not a version"):
        minor("main")
