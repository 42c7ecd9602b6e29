"""Where a kernel is launched: on the device of its tensors, whichever is the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from draftwood.kernels.configuration import Configuration


@pytest.mark.parametrize(
    ("device", "expected"), [("cuda:0", ["launched"]), ("cuda:1", ["on 1", "launched", "off"])]
)
def test_a_kernel_runs_where_its_tensors_are(
    monkeypatch: pytest.MonkeyPatch, device: str, expected: list[str]
) -> None:
    happened: list[str] = []

    @contextmanager
    def current(chosen: torch.device) -> Iterator[None]:
        happened.append(f"on {chosen.index}")
        yield
        happened.append("off")

    def launch(**_: Any) -> None:
        happened.append("launched")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(Configuration, "function", lambda _: {(1,): launch})
    with FakeTensorMode():
        tensor = torch.empty(1, device=device)
    Configuration(name="x", kernel="a.b:c", types={}).launch((1,), nodes=3, out=tensor)
    assert happened == expected
