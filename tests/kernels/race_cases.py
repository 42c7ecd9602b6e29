"""Cases of race verification on the device, and programs small enough for them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from draftwood.kernels.race_flows import offered
from draftwood.kernels.tree_race import dispatch, rounds


@contextmanager
def small(block: int, *, whole: int | None = None, heavy: int = 4, span: int = 32) -> Iterator[None]:
    """Programs that read `span` tokens in blocks; of a vocabulary above `whole` tokens, that many offered."""
    configurations = tuple(
        replace(
            one,
            constants={name: block if name == "BLOCK" else value for name, value in one.constants.items()},
        )
        for one in dispatch.CONFIGURATIONS
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "CONFIGURATIONS", configurations)
        patch.setattr(rounds, "SPAN", span)
        if whole is not None:
            patch.setattr(offered, "OFFERED", whole)
            patch.setattr(offered, "HEAVY", heavy)
        yield
