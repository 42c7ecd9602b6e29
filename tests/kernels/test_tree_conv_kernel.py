"""Convolution along a tree: the kernels against their reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.checking import TOLERANCE, TOPOLOGIES, relative_error
from draftwood.kernels.tree_conv import dispatch, reference
from tests.kernels.scans import KINDS, embedded, guarded, trees


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, *, channels: int, width: int, seed: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Columns and a tail, and a convolution."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return embedded(torch.randn(shape, generator=generator).to(device, dtype))

    held = {"inputs": noise(rows, columns, channels), "state": noise(rows, width - 1, channels)}
    return held, {"weight": noise(channels, width), "bias": noise(channels)}


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=4)
@given(
    names=st.lists(st.sampled_from(sorted(TOPOLOGIES)), min_size=1, max_size=3),
    old=st.integers(0, 20),
    new=st.integers(1, 24),
    channels=st.sampled_from([1, 24, 130]),
    width=st.integers(2, 8),
    biased=st.booleans(),
    seed=st.integers(0, 10**6),
)
@example(names=["random"], old=0, new=130, channels=24, width=4, biased=True, seed=0)
@example(names=["chain", "star"], old=2, new=33, channels=16, width=4, biased=False, seed=1)
def test_any_tree(
    dtype: torch.dtype,
    device: torch.device,
    names: list[str],
    old: int,
    new: int,
    channels: int,
    width: int,
    biased: bool,
    seed: int,
) -> None:
    visible, kept = trees(names, random.Random(seed), old=old, new=new, device=device)
    held, conv = drawn(device, dtype, len(names), old + new, channels=channels, width=width, seed=seed)
    window = dispatch.windows(visible=visible, width=width)
    with guarded() as launched:
        found = dispatch.attend(
            **held, weight=conv["weight"], bias=conv["bias"] if biased else None, window=window
        )
        state = dispatch.replay(**held, kept=kept)
    assert [one.kernel.split(":")[1] for one in launched] == ["attend", "replay"]
    precise = {name: tensor.float() for name, tensor in held.items()}
    wanted = reference.attend(
        **precise,
        weight=conv["weight"].float(),
        bias=conv["bias"].float() if biased else None,
        window=window,
    )
    assert found.dtype == dtype
    assert relative_error(found, wanted) < TOLERANCE[dtype]
    assert torch.equal(state, reference.replay(**held, kept=kept))


def test_every_configuration_is_launched(device: torch.device) -> None:
    visible, kept = trees(["random"], random.Random(3), old=0, new=9, device=device)
    with guarded() as launched:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            for width in (4, 5):
                held, conv = drawn(device, dtype, 1, 9, channels=24, width=width, seed=width)
                window = dispatch.windows(visible=visible, width=width)
                found = dispatch.attend(**held, **conv, window=window)
                # Outputs in bf16 have eight bits.
                wanted = reference.attend(**held, **conv, window=window)
                assert relative_error(found, wanted) < TOLERANCE.get(dtype, 1e-2)
                assert torch.equal(dispatch.replay(**held, kept=kept), reference.replay(**held, kept=kept))
    assert all(one in launched for one in dispatch.CONFIGURATIONS)


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = trees(["random", "binary", "chain"], random.Random(5), old=5, new=20, device=device)
    kinds = [(4, torch.float32)] * 3 + [(3, torch.float32), (4, torch.bfloat16)]
    layers = [
        drawn(device, dtype, 3, 25, channels=40, width=width, seed=seed)[0]
        for seed, (width, dtype) in enumerate(kinds)
    ]
    with guarded() as launched:
        found = dispatch.replay_all(
            inputs=[layer["inputs"] for layer in layers],
            state=[layer["state"] for layer in layers],
            kept=kept,
        )
    assert len(launched) == 3
    for state, layer in zip(found, layers, strict=True):
        assert torch.equal(state, reference.replay(**layer, kept=kept))


def some(device: torch.device, width: int = 4) -> dict[str, Any]:
    held, conv = drawn(device, torch.float32, 2, 5, channels=16, width=width, seed=0)
    visible = torch.ones(2, 5, 5, dtype=torch.bool, device=device).tril()
    return held | conv | {"window": dispatch.windows(visible=visible, width=width)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"state": held["state"].double()}, "its tensors are torch.float32 and torch.float64"),
        (lambda held: some(held["state"].device, width=9), "it is 9 wide, and the kernel at most 8"),
        (
            lambda held: {"inputs": held["inputs"].repeat_interleave(2, -1)[..., ::2]},
            "inputs is not contiguous along its last axis",
        ),
        (
            lambda held: {"inputs": torch.ones(2, 5, 17, device=held["state"].device)[..., 1:]},
            "inputs starts at an address that is not a multiple of 16 bytes",
        ),
    ],
)
def test_the_reference_takes_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    caplog.set_level("INFO", logger="draftwood.kernels.switch")
    dispatch.switch._logged.clear()
    held = some(device)
    held |= change(held)
    with guarded() as launched:
        found = dispatch.attend(**held)
    assert reason in caplog.text
    assert not launched
    assert torch.equal(found, reference.attend(**held))


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
    with pytest.raises(ValueError) as error:
        dispatch.attend(**held | change(held))
    assert message in str(error.value)


def test_no_nodes(device: torch.device) -> None:
    held = some(device)
    assert dispatch.attend(**held | {"window": held["window"][:, :0]}).shape == (2, 0, 16)
    kept = torch.zeros(2, 0, dtype=torch.bool, device=device)
    with guarded():
        state = dispatch.replay(inputs=held["inputs"][:, :0], state=held["state"], kept=kept)
    assert torch.equal(state, held["state"])
