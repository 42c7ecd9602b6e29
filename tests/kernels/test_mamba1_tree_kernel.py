"""Mamba-1 along a tree: the kernels against their reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.mamba1_tree import dispatch, reference
from draftwood.kernels.testing import relative_error
from tests.kernels import frames, scans

pytestmark = pytest.mark.triton


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, *, sizes: tuple[int, ...], seed: int
) -> dict[str, Tensor]:
    """Columns and a state."""
    (groups, channels, size), normal = sizes, scans.noise(seed)
    held = {
        "keys": normal(rows, columns, groups, size).to(dtype),
        "values": normal(rows, columns, channels).to(dtype),
        "steps": scans.steps(normal(rows, columns, channels)),
        "rates": -normal(channels, size).exp(),
        "state": normal(rows, channels, size),
        "queries": normal(rows, columns, groups, size).to(dtype),
    }
    return scans.laid(device, held)


@pytest.mark.parametrize("dtype", scans.KINDS)
@settings(max_examples=2)
@given(
    tree=scans.ragged(old=9, new=9),
    sizes=st.sampled_from([(1, 24, 16), (1, 70, 5), (3, 48, 40), (1, 1, 64)]),
)
@example(tree=scans.Ragged(["binary", "star", "random"], old=0, new=33), sizes=(1, 16, 16))
@example(tree=scans.Ragged(scans.EVERY, old=3, new=16), sizes=(1, 16, 17))
@example(tree=scans.Ragged(["chain", "star"], old=3, new=8, seed=1), sizes=(2, 140, 12))
@example(tree=scans.Ragged(["chain"], old=0, new=1), sizes=(1, 16, 16))
def test_any_tree(
    dtype: torch.dtype, device: torch.device, tree: scans.Ragged, sizes: tuple[int, ...]
) -> None:
    visible, kept = tree.on(device)
    paths = dispatch.Paths(visible)
    held = drawn(device, dtype, *tree.shape, sizes=sizes, seed=tree.seed)
    queries = held.pop("queries")[:, tree.old :]
    with frames.guarded() as launched:
        out = dispatch.attend(queries=queries, **held, paths=paths)
        state = dispatch.replay(**held, kept=kept)
    assert [one.kernel.split(":")[1] for one in launched] == ["attend", "replay"]
    assert out.dtype == dtype
    wanted = reference.attend(queries=queries.float(), **frames.precise(held), paths=paths)
    frames.agree(out, wanted, dtype)
    frames.agree(state, reference.replay(**frames.precise(held), kept=kept), dtype)


@pytest.mark.parametrize("nodes", scans.LONG)
def test_a_long_chain(nodes: int, device: torch.device) -> None:
    held = drawn(device, torch.float32, 1, nodes, sizes=(1, 1, 16), seed=0)
    paths = dispatch.Paths(torch.ones(1, nodes, nodes, dtype=torch.bool, device=device).tril())
    found = dispatch.attend(**held, paths=paths)
    assert relative_error(found, reference.attend(**held, paths=paths)) < 1e-5


def test_every_configuration_is_launched(device: torch.device) -> None:
    visible, kept = scans.Ragged(["random"], old=2, new=7, seed=3).on(device)
    paths = dispatch.Paths(visible)
    with frames.every_configuration_of(dispatch):
        for dtype in frames.DTYPES:
            for size in (16, 17):
                held = drawn(device, dtype, 1, 9, sizes=(1, 16, size), seed=size)
                queries = held.pop("queries")[:, 2:]
                found = dispatch.attend(queries=queries, **held, paths=paths)
                frames.agree(found, reference.attend(queries=queries, **held, paths=paths), dtype)
                state = dispatch.replay(**held, kept=kept)
                frames.agree(state, reference.replay(**held, kept=kept), dtype)


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = scans.Ragged(["random", "binary", "chain"], old=5, new=20, seed=4).on(device)
    # A layer's state is no multiple of 16 bytes.
    kinds = [((1, 31, 5), torch.float32)] * 3 + [((2, 32, 16), torch.float32), ((1, 31, 5), torch.float16)]
    layers = []
    for seed, (sizes, dtype) in enumerate(kinds):
        layers.append(drawn(device, dtype, *kept.shape, sizes=sizes, seed=seed))
        layers[-1].pop("queries")
    scans.replays(dispatch, reference, layers, kept, launches=3)


def some(device: torch.device, size: int = 16) -> dict[str, Any]:
    held: dict[str, Any] = dict(drawn(device, torch.float32, 2, 5, sizes=(2, 32, size), seed=0))
    held["paths"] = dispatch.Paths(torch.ones(2, 5, 5, dtype=torch.bool, device=device).tril())
    return held


def test_layouts_that_no_kernel_reads(device: torch.device, caplog: pytest.LogCaptureFixture) -> None:
    scans.layouts_left_to_the_reference(dispatch.attend, reference.attend, some(device), caplog=caplog)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"keys": held["keys"].half()}, "keys are torch.float16 and values torch.float32"),
        (lambda held: {"queries": held["queries"].double()}, "queries are torch.float64 and keys"),
        (lambda held: {"state": held["state"].double()}, "the state torch.float64, not torch.float32"),
        (lambda held: some(held["keys"].device, size=65), "a channel has 65 states, and the kernel holds 64"),
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
        (lambda held: {"values": held["values"][:, 1:]}, "The shape of values is (2, 4, 32)"),
        (lambda held: {"rates": held["rates"][:, 1:]}, "The shape of rates is (32, 15)"),
        (lambda held: {"state": held["state"][:1]}, "The shape of state is (1, 32, 16)"),
        (lambda held: {"queries": held["queries"][:, 1:]}, "Queries of (2, 4, 2, 16) and keys of"),
        (
            lambda held: {"keys": held["keys"][:, :, :1].repeat(1, 1, 3, 1)},
            "32 channels cannot share 3 groups of keys",
        ),
    ],
)
def test_shapes_that_do_not_fit(change: Any, message: str, device: torch.device) -> None:
    held = some(device)
    frames.misfit(dispatch.attend, held | change(held), message)


def test_a_path_of_other_columns(device: torch.device) -> None:
    held = some(device)
    del held["queries"], held["paths"]
    held["kept"] = torch.ones(2, 4, dtype=torch.bool, device=device)
    frames.misfit(dispatch.replay, held, "The mask is (2, 4), and keys are (2, 5, 2, 16)")


def test_no_nodes(device: torch.device) -> None:
    held = some(device)
    paths = dispatch.Paths(held["paths"].visible[:, 5:])
    with frames.guarded() as launched:
        out = dispatch.attend(**held | {"queries": held["queries"][:, 5:], "paths": paths})
        none = {name: held[name][:, :0] for name in ("keys", "values", "steps")}
        kept = torch.zeros(2, 0, dtype=torch.bool, device=device)
        state = dispatch.replay(**none, rates=held["rates"], state=held["state"], kept=kept)
    assert out.shape == (2, 0, 32)
    assert torch.equal(state, held["state"])
    assert not launched
