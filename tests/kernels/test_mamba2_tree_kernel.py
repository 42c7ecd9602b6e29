"""Mamba-2 along a tree: the kernels against their reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.mamba2_tree import dispatch, reference
from draftwood.kernels.testing import relative_error
from tests.kernels import frames, scans

pytestmark = pytest.mark.triton


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, *, sizes: tuple[int, ...], seed: int
) -> dict[str, Tensor]:
    """Columns and a state."""
    (heads, groups, dim, size), normal = sizes, scans.noise(seed)
    held = {
        "keys": normal(rows, columns, groups, size).to(dtype),
        "values": normal(rows, columns, heads, dim).to(dtype),
        "decay": -scans.steps(normal(rows, columns, heads)),
        "state": normal(rows, heads, dim, size),
        "queries": normal(rows, columns, groups, size).to(dtype),
    }
    return scans.laid(device, held)


@pytest.mark.parametrize("dtype", scans.KINDS)
@settings(max_examples=5)
@given(
    tree=scans.ragged(old=40, new=80),
    sizes=st.sampled_from([(2, 1, 16, 16), (2, 2, 48, 16), (4, 2, 16, 80), (3, 1, 80, 48)]),
)
# Tiles of 64 nodes and blocks of 32 columns, the last ones with little in them.
@example(tree=scans.Ragged(scans.EVERY, old=0, new=66), sizes=(1, 1, 32, 32))
@example(tree=scans.Ragged(["chain"], old=0, new=1), sizes=(1, 1, 64, 128))
# Blocks of columns that end with column 0, and heads that share one of several groups.
@example(tree=scans.Ragged(["binary", "star"], old=32, new=32, seed=2), sizes=(4, 2, 16, 16))
def test_any_tree(
    dtype: torch.dtype, device: torch.device, tree: scans.Ragged, sizes: tuple[int, ...]
) -> None:
    visible, kept = tree.on(device)
    held = drawn(device, dtype, *tree.shape, sizes=sizes, seed=tree.seed)
    queries = held.pop("queries")[:, tree.old :]
    with frames.guarded() as launched:
        out = dispatch.attend(queries=queries, **held, visible=visible)
        state = dispatch.replay(**held, kept=kept)
    assert [one.kernel.split(":")[1] for one in launched] == ["attend", "replay"]
    assert out.dtype == dtype
    wanted = reference.attend(queries=queries.float(), **frames.precise(held), visible=visible)
    frames.agree(out, wanted, dtype)
    frames.agree(state, reference.replay(**frames.precise(held), kept=kept), dtype)


def test_every_tile_is_launched(device: torch.device) -> None:
    with frames.every_configuration_of(dispatch):
        for dtype in frames.DTYPES:
            for new in (16, 17):
                visible, kept = scans.Ragged(["random"], old=0, new=new, seed=new).on(device)
                held = drawn(device, dtype, 1, new, sizes=(1, 1, 16, 16), seed=new)
                out = dispatch.attend(**held, visible=visible)
                frames.agree(out, reference.attend(**held, visible=visible), dtype)
                held.pop("queries")
                state = dispatch.replay(**held, kept=kept)
                assert relative_error(state, reference.replay(**held, kept=kept)) < 2e-3


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = scans.Ragged(["random", "binary", "chain"], old=5, new=40, seed=4).on(device)
    kinds = [((2, 1, 32, 16), torch.float32)] * 3
    kinds += [((2, 1, 16, 16), torch.float32), ((2, 1, 32, 16), torch.float16)]
    layers = []
    for seed, (sizes, dtype) in enumerate(kinds):
        layers.append(drawn(device, dtype, *kept.shape, sizes=sizes, seed=seed))
        layers[-1].pop("queries")
    scans.replays(dispatch, reference, layers, kept, launches=3)


def test_rows_that_keep_nothing_are_left_bit_by_bit(device: torch.device) -> None:
    held = drawn(device, torch.float32, 2, 33, sizes=(2, 1, 16, 16), seed=0)
    held.pop("queries")
    kept = torch.zeros(2, 33, dtype=torch.bool, device=device)
    kept[0, 3] = True
    state = dispatch.replay(**held, kept=kept)
    assert torch.equal(state[1], held["state"][1])
    assert not torch.equal(state[0], held["state"][0])


def test_strong_decay_does_not_overflow(device: torch.device) -> None:
    held = drawn(device, torch.float32, 1, 40, sizes=(1, 1, 16, 16), seed=1)
    held["decay"].fill_(-1e30)[:, 39:] = -0.5
    visible = torch.ones(1, 40, 40, dtype=torch.bool, device=device).tril()
    out = dispatch.attend(**held, visible=visible)
    # The sums lose nothing beside a step that forgets all.
    assert relative_error(out, reference.attend(**held, visible=visible)) < 1e-5


def some(device: torch.device, n: int = 5, **sizes: Any) -> dict[str, Tensor]:
    held = drawn(device, torch.float32, 2, n, sizes=sizes.get("sizes", (2, 1, 16, 16)), seed=0)
    visible = torch.ones(2, n, n, dtype=torch.bool, device=device).tril()
    return held | {"visible": visible}


def test_layouts_that_no_kernel_reads(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    held = some(device, sizes=(2, 2, 16, 16))
    held["visible"] = torch.nn.functional.pad(held["visible"], (0, 11))[..., :5]
    scans.layouts_left_to_the_reference(
        dispatch.attend, reference.attend, held, caplog=caplog, visible="mask"
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"keys": held["keys"].half()}, "torch.float16 and torch.float32"),
        (lambda held: {"state": held["state"].double()}, "the state torch.float64"),
        (
            lambda held: {"values": torch.zeros(2, 5, 2, 17, device=held["values"].device)[..., 1:]},
            "values has strides (170, 34, 17), which are not multiples of 16",
        ),
        (
            lambda held: {"decay": held["decay"].transpose(1, 2).contiguous().transpose(1, 2)},
            "decay is not contiguous along its last axis",
        ),
        (
            lambda held: some(held["values"].device, sizes=(2, 1, 20, 24)),
            "a head's state is 20 by 24, which are no multiples of 16",
        ),
    ],
)
def test_the_reference_takes_the_rest(
    change: Any, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    held = some(device)
    held |= change(held)
    scans.left_to_the_reference(dispatch.attend, reference.attend, held, reason=reason, caplog=caplog)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda held: {"values": held["values"][:, 1:]}, "The shape of values is (2, 4, 2, 16)"),
        (lambda held: {"decay": held["decay"][..., :1]}, "The shape of decay is (2, 5, 1)"),
        (lambda held: {"state": held["state"][:1]}, "The shape of state is (1, 2, 16, 16)"),
        (lambda held: {"queries": held["queries"][:, :2]}, "The shape of queries is (2, 2, 1, 16)"),
        (lambda held: {"visible": held["visible"].float()}, "The mask is torch.float32 (2, 5, 5)"),
        (lambda held: {"visible": held["visible"][..., :3]}, "The shape of the mask is (2, 5, 3)"),
        (lambda held: some(held["keys"].device, sizes=(3, 2, 16, 16)), "3 heads cannot share 2 groups"),
    ],
)
def test_shapes_that_do_not_fit(change: Any, message: str, device: torch.device) -> None:
    held = some(device)
    frames.misfit(dispatch.attend, held | change(held), message)


def test_no_nodes(device: torch.device) -> None:
    held = some(device)
    held |= {"queries": held["queries"][:, 5:], "visible": held["visible"][:, 5:]}
    with frames.guarded() as launched:
        assert dispatch.attend(**held).shape == (2, 0, 2, 16)
        none = {name: tensor[:, :0] for name, tensor in held.items() if name in ("keys", "values", "decay")}
        kept = torch.zeros(2, 0, dtype=torch.bool, device=device)
        assert torch.equal(dispatch.replay(**none, state=held["state"], kept=kept), held["state"])
    assert not launched
