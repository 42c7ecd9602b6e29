"""Helpers of all kernels' tests: memory full of NaN, kernel or reference, all configurations, misfits."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.testing import TOLERANCE, relative_error

MARGIN = 128
"""Numbers before and behind what is allocated under `guarded`."""

DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def agree(found: Tensor, wanted: Tensor, dtype: torch.dtype) -> None:
    """Within the tolerance of numbers held in `dtype`; those in bf16 have eight bits."""
    assert relative_error(found, wanted) < TOLERANCE.get(dtype, 1e-2)


def precise(held: Mapping[str, Any]) -> dict[str, Any]:
    """In fp32, as references compute."""
    return {name: one.float() if isinstance(one, Tensor) else one for name, one in held.items()}


@contextmanager
def guarded() -> Iterator[list[Configuration]]:
    """Launches only write into memory that is allocated for them, which is full of NaN.

    Gives the configurations launched so far.
    """
    launched: list[Configuration] = []
    memory: list[Tensor] = []
    launch, original = Configuration.launch, Tensor.new_empty

    def new_empty(self: Tensor, *size: Any, **options: Any) -> Tensor:
        if options:  # the interpreter's own
            return original(self, *size, **options)
        shape = torch.Size(size[0] if isinstance(size[0], tuple) else size)
        memory.append(self.new_full((shape.numel() + 2 * MARGIN,), torch.nan))
        return memory[-1][MARGIN:-MARGIN].view(shape)

    def guard(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        launched.append(self)
        out = arguments.get("out")
        before = None if out is None else out.clone()
        launch(self, grid, **arguments)
        if out is not None and before is not None:
            blank = before.isnan()
            assert blank.any()
            assert torch.equal(out[~blank], before[~blank])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configuration, "launch", guard)
        patch.setattr(Tensor, "new_empty", new_empty)
        yield launched
    for around in memory:
        assert around[:MARGIN].isnan().all()
        assert around[-MARGIN:].isnan().all()


@contextmanager
def every_configuration_of(dispatch: Any) -> Iterator[None]:
    """Checks that every configuration that `dispatch` has is chosen."""
    with guarded() as launched:
        yield
    assert [one for one in dispatch.CONFIGURATIONS if one not in launched] == []


@contextmanager
def kernel_alone(dispatch: Any, name: str) -> Iterator[None]:
    """The reference of that name is a mistake."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch.reference, name, None)
        yield


@contextmanager
def reference_serves(reason: str, caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Check that the log says that a reference runs a call, and why."""
    caplog.set_level("INFO", logger=support.__name__)
    caplog.clear()
    support._logged.clear()
    yield
    assert reason in caplog.text


def misfit(call: Callable[..., Any], held: Mapping[str, Any], message: str) -> None:
    """Shapes that do not fit are refused, with `message` among what is said."""
    with pytest.raises(ValueError, match=re.escape(message)):
        call(**held)
