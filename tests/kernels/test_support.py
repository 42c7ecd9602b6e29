"""Choice for a call: the kernel, or the reference with a reason."""

from __future__ import annotations

import logging
import random

import pytest
import torch

from draftwood.kernels import support
from draftwood.kernels.tensor_checks import layout_objection
from draftwood.kernels.testing import TOPOLOGIES, relative_error, visible


def test_the_switch_is_above_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with support.kernels_enabled(False):
        assert support.objection(torch.ones(1)) == "kernels are switched off"
        with support.kernels_enabled(True):
            assert support.enabled()
        assert not support.enabled()
    monkeypatch.setattr(support, "_override", None)
    for value, on in (("off", False), ("0", False), ("on", True)):
        monkeypatch.setenv(support.ENVIRONMENT, value)
        assert support.enabled() == on
    monkeypatch.delenv(support.ENVIRONMENT)
    assert support.enabled()


def test_references_serve_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "interpreted", lambda: False)
    assert support.objection(torch.ones(1)) == "its tensors are on the CPU"
    assert support.objection(torch.ones(1, device="meta")) == "its tensors are on the META"


@pytest.mark.triton
def test_no_triton_is_a_reason(monkeypatch: pytest.MonkeyPatch, device: torch.device) -> None:
    assert support.objection(torch.ones(1, device=device)) is None
    monkeypatch.setattr(support, "_has_triton", lambda: False)
    assert support.objection(torch.ones(1, device=device)) == "triton is not installed"


def test_a_choice_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=support.__name__)
    for _ in range(2):
        assert support.use_kernel("an operation", None)
        assert not support.use_kernel("an operation", "it rains")
    assert caplog.messages == [
        "an operation: runs the Triton kernel.",
        "an operation: runs the reference, because it rains.",
    ]


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.zeros(4, 32), None),
        (torch.zeros(32, 4).T, "x is not contiguous along its last axis"),
        (torch.zeros(4, 24), "x has strides (24,), which are not multiples of 16"),
        (torch.zeros(1, 24), None),  # one row, whose stride nobody uses
        (torch.zeros(4, 48)[:, 8:40], None),
        (torch.zeros(4, 48)[:, 1:33], "x starts at an address that is not a multiple of 16 bytes"),
        (torch.zeros(32).expand(4, 32), None),
        (
            torch.empty_strided((2, 16), (2**31, 1), device="meta"),
            f"x has strides ({2**31},), of which one exceeds 32 bits",
        ),
    ],
)
def test_layouts_that_a_kernel_does_not_read(tensor: torch.Tensor, reason: str | None) -> None:
    assert layout_objection(x=tensor) == reason


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_what_a_node_sees_is_its_path(name: str) -> None:
    rows = [TOPOLOGIES[name](n, random.Random(n)) for n in (1, 2, 9, 17)]
    seen = visible(rows)
    assert seen.shape == (4, 17, 17)
    for row, parents in zip(seen, rows, strict=True):
        for node in range(17):
            path, above = {node}, parents[node] if node < len(parents) else -1
            while above >= 0:
                path.add(above)
                above = parents[above]
            assert set(row[node].nonzero().flatten().tolist()) == path


def test_relative_error() -> None:
    ones = torch.ones(4)
    assert relative_error(ones, ones) == 0
    assert relative_error(torch.tensor([1.0, 1, 1, 3]), ones) == 1.0
    assert relative_error(torch.tensor([1.0, 1, 1, float("nan")]), ones) == float("inf")
    assert relative_error(torch.zeros(2), torch.zeros(2)) == 0
