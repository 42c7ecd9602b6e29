"""The gated delta rule along a tree: the kernels against their reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from draftwood.kernels.checking import TOLERANCE, TOPOLOGIES, relative_error
from draftwood.kernels.gated_delta_tree import dispatch, reference
from tests.kernels.scans import KINDS, embedded, guarded, trees


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, *, old: int, new: int, sizes: Any, seed: int
) -> dict[str, Tensor]:
    """What `attend` takes but for the mask; some steps forget everything, some nothing."""
    heads, groups, dim, size = sizes
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    steps = noise(rows, old + new, heads)
    held = {
        "queries": noise(rows, new, groups, size).to(dtype) / size**0.5,
        "keys": normalize(noise(rows, old + new, groups, size), dim=-1).to(dtype),
        "values": noise(rows, new, heads, dim).to(dtype),
        "deltas": noise(rows, old, heads, dim).to(dtype),
        "rates": 2 * noise(rows, new, heads).sigmoid(),
        "decay": -torch.where(steps > 2, 400.0, torch.where(steps < -1, 0.0, steps.abs())),
        "state": noise(rows, heads, dim, size),
    }
    return {name: embedded(tensor.to(device)) for name, tensor in held.items()}


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=3)
@given(
    names=st.lists(st.sampled_from(sorted(TOPOLOGIES)), min_size=1, max_size=2),
    old=st.integers(0, 40),
    new=st.integers(1, 40),
    sizes=st.sampled_from([(2, 1, 16, 16), (1, 1, 48, 80), (2, 2, 16, 48)]),
    seed=st.integers(0, 10**6),
)
@example(names=["random"], old=0, new=130, sizes=(1, 1, 16, 16), seed=0)
@example(names=["chain", "star"], old=32, new=17, sizes=(2, 1, 16, 32), seed=1)
@example(names=["forest"], old=3, new=1, sizes=(1, 1, 32, 16), seed=2)
def test_any_tree(
    dtype: torch.dtype,
    device: torch.device,
    names: list[str],
    old: int,
    new: int,
    sizes: tuple[int, ...],
    seed: int,
) -> None:
    visible, kept = trees(names, random.Random(seed), old=old, new=new, device=device)
    held = drawn(device, dtype, len(names), old=old, new=new, sizes=sizes, seed=seed)
    precise = {name: tensor.float() for name, tensor in held.items()}
    with guarded() as launched:
        out, deltas = dispatch.attend(**held, visible=visible)
        nodes = {"keys": held["keys"], "values": torch.cat([held["deltas"], deltas], 1)}
        committed = {"decay": held["decay"], "state": held["state"], "kept": kept}
        state = dispatch.replay(**nodes, **committed)
    assert [one.kernel.split(":")[1] for one in launched] == ["solve", "attend", "replay"]
    assert out.dtype == deltas.dtype == dtype
    wanted, right = reference.attend(**precise, visible=visible)
    assert relative_error(deltas, right) < TOLERANCE[dtype]
    assert relative_error(out, wanted) < TOLERANCE[dtype]
    nodes = {name: tensor.float() for name, tensor in nodes.items()}
    assert relative_error(state, reference.replay(**nodes, **committed)) < TOLERANCE[dtype]


def test_repeated_text_keeps_its_digits(device: torch.device) -> None:
    held = drawn(device, torch.float32, 1, old=0, new=48, sizes=(1, 1, 16, 16), seed=3)
    # One key over and over, hardly any decay: powers of the system would grow beyond all digits.
    held["keys"].copy_(held["keys"][:, :1].expand(-1, 48, -1, -1))
    held["decay"].fill_(-1e-3)
    held["rates"].fill_(1.9)
    visible = torch.ones(1, 48, 48, dtype=torch.bool, device=device).tril()
    found, deltas = dispatch.attend(**held, visible=visible)
    precise = {name: tensor.double() for name, tensor in held.items()}
    wanted, right = reference.attend(**precise, visible=visible)
    assert relative_error(deltas, right) < 1e-5
    assert relative_error(found, wanted) < 1e-5


def test_every_configuration_is_launched(device: torch.device) -> None:
    with guarded() as launched:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            visible, _ = trees(["random"], random.Random(1), old=2, new=5, device=device)
            held = drawn(device, dtype, 1, old=2, new=5, sizes=(1, 1, 16, 16), seed=1)
            # Outputs in bf16 have eight bits.
            for found, wanted in zip(
                dispatch.attend(**held, visible=visible),
                reference.attend(**held, visible=visible),
                strict=True,
            ):
                assert relative_error(found, wanted) < TOLERANCE.get(dtype, 1e-2)
    assert all(one in launched for one in dispatch.CONFIGURATIONS)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"rates": held["rates"].double()}, "the rates are torch.float64"),
        (lambda held: {"values": held["values"].double()}, "are torch.float32 and torch.float64"),
        (lambda held: {"keys": held["keys"].repeat_interleave(2, -1)[..., ::2]}, "keys is not contiguous"),
    ],
)
def test_the_reference_takes_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    caplog.set_level("INFO", logger="draftwood.kernels.switch")
    dispatch.switch._logged.clear()
    visible, _ = trees(["random"], random.Random(1), old=0, new=5, device=device)
    held = drawn(device, torch.float32, 1, old=0, new=5, sizes=(2, 1, 16, 16), seed=1)
    held |= change(held)
    with guarded() as launched:
        found, _ = dispatch.attend(**held, visible=visible)
    assert reason in caplog.text
    assert not launched
    assert torch.equal(found, reference.attend(**held, visible=visible)[0])


def test_shapes_that_do_not_fit(device: torch.device) -> None:
    visible, _ = trees(["random"], random.Random(1), old=2, new=5, device=device)
    held = drawn(device, torch.float32, 1, old=2, new=5, sizes=(2, 1, 16, 16), seed=1)
    for name, message in [
        ("deltas", "the shapes are (1, 2, 1, 16) and (1, 5, 2)"),
        ("queries", "The shape of queries is (1, 5, 0, 16)"),
    ]:
        with pytest.raises(ValueError) as error:
            dispatch.attend(**held | {name: held[name][:, :, 1:]}, visible=visible)
        assert message in str(error.value)


def test_no_nodes(device: torch.device) -> None:
    held = drawn(device, torch.float32, 1, old=2, new=0, sizes=(2, 1, 16, 16), seed=1)
    visible = torch.zeros(1, 0, 2, dtype=torch.bool, device=device)
    out, deltas = dispatch.attend(**held, visible=visible)
    assert out.shape == deltas.shape == (1, 0, 2, 16)
