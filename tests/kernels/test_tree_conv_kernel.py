"""Convolution along a tree: the kernels against their reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.tree_conv import dispatch, reference
from tests.kernels import frames, scans

pytestmark = pytest.mark.triton


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, *, channels: int, width: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Columns and a tail, and a convolution."""
    normal = scans.noise(seed)
    held = {
        "inputs": normal(rows, columns, channels).to(dtype),
        "state": normal(rows, width - 1, channels).to(dtype),
    }
    conv = {"weight": normal(channels, width).to(dtype), "bias": normal(channels).to(dtype)}
    return scans.laid(device, held), scans.laid(device, conv)


@pytest.mark.parametrize("dtype", scans.KINDS)
@settings(max_examples=4)
@given(
    tree=scans.ragged(old=20, new=24, rows=3),
    channels=st.sampled_from([1, 24, 130]),
    width=st.integers(2, 8),
    biased=st.booleans(),
)
@example(tree=scans.Ragged(scans.EVERY, old=0, new=34), channels=24, width=4, biased=True)
@example(tree=scans.Ragged(scans.EVERY[::-1], old=3, new=30), channels=140, width=8, biased=True)
@example(tree=scans.Ragged(["random"], old=0, new=1), channels=16, width=4, biased=False)
def test_any_tree(
    dtype: torch.dtype, device: torch.device, tree: scans.Ragged, channels: int, width: int, biased: bool
) -> None:
    visible, kept = tree.on(device)
    held, conv = drawn(device, dtype, *tree.shape, channels=channels, width=width, seed=tree.seed)
    window = dispatch.windows(visible=visible, width=width)
    bias = conv["bias"] if biased else None
    with frames.guarded() as launched:
        found = dispatch.attend(**held, weight=conv["weight"], bias=bias, window=window)
        state = dispatch.replay(**held, kept=kept)
    assert [one.kernel.split(":")[1] for one in launched] == ["attend", "replay"]
    wanted = reference.attend(
        **frames.precise(held),
        weight=conv["weight"].float(),
        bias=None if bias is None else bias.float(),
        window=window,
    )
    assert found.dtype == dtype
    frames.agree(found, wanted, dtype)
    assert torch.equal(state, reference.replay(**held, kept=kept))


def test_every_configuration_is_launched(device: torch.device) -> None:
    visible, kept = scans.Ragged(["random"], old=0, new=9, seed=3).on(device)
    with frames.every_configuration_of(dispatch):
        for dtype in frames.DTYPES:
            for width in (4, 5):
                held, conv = drawn(device, dtype, 1, 9, channels=24, width=width, seed=width)
                window = dispatch.windows(visible=visible, width=width)
                found = dispatch.attend(**held, **conv, window=window)
                frames.agree(found, reference.attend(**held, **conv, window=window), dtype)
                assert torch.equal(dispatch.replay(**held, kept=kept), reference.replay(**held, kept=kept))


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = scans.Ragged(["random", "binary", "chain"], old=5, new=20, seed=5).on(device)
    kinds = [(4, torch.float32)] * 3 + [(3, torch.float32), (4, torch.bfloat16)]
    layers = [
        drawn(device, dtype, *kept.shape, channels=41, width=width, seed=seed)[0]
        for seed, (width, dtype) in enumerate(kinds)
    ]
    scans.replays(dispatch, reference, layers, kept, launches=3)


def some(device: torch.device, width: int = 4) -> dict[str, Any]:
    held, conv = drawn(device, torch.float32, 2, 5, channels=16, width=width, seed=0)
    visible = torch.ones(2, 5, 5, dtype=torch.bool, device=device).tril()
    return held | conv | {"window": dispatch.windows(visible=visible, width=width)}


def test_layouts_that_no_kernel_reads(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    scans.layouts_left_to_the_reference(dispatch.attend, reference.attend, some(device), caplog=caplog)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"state": held["state"].double()}, "its tensors are torch.float32 and torch.float64"),
        (lambda held: some(held["state"].device, width=9), "it is 9 wide, and the kernel at most 8"),
    ],
)
def test_the_reference_takes_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    held = some(device)
    held |= change(held)
    scans.left_to_the_reference(dispatch.attend, reference.attend, held, reason=reason, caplog=caplog)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"state": held["state"].half()}, "its inputs are torch.float32 and its tail is"),
        (
            lambda held: {"state": held["state"].repeat(1, 3, 1)},
            "its tail has 9 inputs, and the kernel holds 8",
        ),
    ],
)
def test_the_reference_commits_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    held = {name: tensor for name, tensor in some(device).items() if name in ("inputs", "state")}
    held |= change(held)
    kept = torch.ones(2, 5, dtype=torch.bool, device=device)
    held["kept"] = kept
    scans.left_to_the_reference(dispatch.replay, reference.replay, held, reason=reason, caplog=caplog)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {"weight": held["weight"][:, 1:]}, "The shape of weight is (16, 3)"),
        (lambda held: {"bias": held["bias"][1:]}, "The shape of bias is (15,)"),
        (lambda held: {"state": held["state"][:1]}, "The shape of state is (1, 3, 16)"),
        (lambda held: {"window": held["window"][1:]}, "The shape of window is (1, 5, 4)"),
    ],
)
def test_shapes_that_do_not_fit(change: Any, message: str, device: torch.device) -> None:
    held = some(device)
    frames.misfit(dispatch.attend, held | change(held), message)


def test_a_path_of_other_columns(device: torch.device) -> None:
    held = {name: tensor for name, tensor in some(device).items() if name in ("inputs", "state")}
    held["kept"] = torch.ones(2, 4, dtype=torch.bool, device=device)
    frames.misfit(dispatch.replay, held, "The shape of the mask is (2, 4)")


def test_no_nodes(device: torch.device) -> None:
    held = some(device)
    assert dispatch.attend(**held | {"window": held["window"][:, :0]}).shape == (2, 0, 16)
    kept = torch.zeros(2, 0, dtype=torch.bool, device=device)
    with frames.guarded():
        state = dispatch.replay(inputs=held["inputs"][:, :0], state=held["state"], kept=kept)
    assert torch.equal(state, held["state"])
