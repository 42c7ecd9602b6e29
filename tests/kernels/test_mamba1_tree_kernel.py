"""Mamba-1 and real-gated linear recurrences along a tree: the kernels against their references."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.checking import TOLERANCE, TOPOLOGIES, relative_error
from draftwood.kernels.lru_tree import dispatch as lru
from draftwood.kernels.lru_tree import reference as lru_reference
from draftwood.kernels.mamba1_tree import dispatch, reference
from tests.kernels.scans import KINDS, embedded, guarded, trees

NAMES = st.lists(st.sampled_from(sorted(TOPOLOGIES)), min_size=1, max_size=2)


def drawn(
    device: torch.device, dtype: torch.dtype, rows: int, columns: int, *, sizes: tuple[int, ...], seed: int
) -> dict[str, Tensor]:
    """Columns and a state; some steps forget everything, some nothing."""
    groups, channels, size = sizes
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    steps = noise(rows, columns, channels)
    held = {
        "keys": noise(rows, columns, groups, size).to(dtype),
        "values": noise(rows, columns, channels).to(dtype),
        "steps": torch.where(steps > 2, 400.0, torch.where(steps < -1, 0.0, steps.abs())),
        "rates": -noise(channels, size).exp(),
        "state": noise(rows, channels, size),
        "queries": noise(rows, columns, groups, size).to(dtype),
    }
    return {name: embedded(tensor.to(device)) for name, tensor in held.items()}


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=2)
@given(
    names=NAMES,
    old=st.integers(0, 9),
    new=st.integers(1, 9),
    sizes=st.sampled_from([(1, 24, 16), (1, 70, 5), (3, 48, 40), (1, 1, 64)]),
    seed=st.integers(0, 10**6),
)
@example(names=["binary"], old=0, new=130, sizes=(1, 16, 16), seed=0)
@example(names=["chain", "star"], old=3, new=8, sizes=(2, 140, 12), seed=1)
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
    paths = dispatch.Paths(visible)
    held = drawn(device, dtype, len(names), old + new, sizes=sizes, seed=seed)
    queries = held.pop("queries")[:, old:]
    precise = {name: tensor.float() for name, tensor in held.items()}
    with guarded() as launched:
        out = dispatch.attend(queries=queries, **held, paths=paths)
        state = dispatch.replay(**held, kept=kept)
    assert [one.kernel.split(":")[1] for one in launched] == ["attend", "replay"]
    assert out.dtype == dtype
    wanted = reference.attend(queries=queries.float(), **precise, paths=paths)
    assert relative_error(out, wanted) < TOLERANCE[dtype]
    assert relative_error(state, reference.replay(**precise, kept=kept)) < TOLERANCE[dtype]


def recurrence(
    device: torch.device, dtype: torch.dtype, rows: int, *, old: int, new: int, channels: int, seed: int
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    decay = noise(rows, new, channels)
    held = {
        "values": noise(rows, new, channels),
        "outputs": noise(rows, old, channels),
        "decay": torch.where(decay > 1.5, -torch.inf, -decay.abs()),
        "state": noise(rows, channels),
    }
    return {name: embedded(tensor.to(device, dtype)) for name, tensor in held.items()}


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=3)
@given(
    names=NAMES,
    old=st.integers(0, 9),
    new=st.integers(1, 9),
    channels=st.sampled_from([1, 48, 150]),
    seed=st.integers(0, 10**6),
)
@example(names=["binary"], old=0, new=130, channels=16, seed=0)
def test_any_tree_of_gated_units(
    dtype: torch.dtype, device: torch.device, names: list[str], old: int, new: int, channels: int, seed: int
) -> None:
    visible, kept = trees(names, random.Random(seed), old=old, new=new, device=device)
    paths = dispatch.Paths(visible)
    held = recurrence(device, dtype, len(names), old=old, new=new, channels=channels, seed=seed)
    with guarded() as launched:
        out = lru.attend(**held, paths=paths)
        outputs = torch.cat([held["outputs"], out], 1)
        state = lru.replay(outputs=outputs, state=held["state"], kept=kept)
    assert [one.operation for one in launched] == ["lru_tree", "tree_conv"]
    wanted = lru_reference.attend(**{name: tensor.float() for name, tensor in held.items()}, paths=paths)
    assert out.dtype == dtype
    assert relative_error(out, wanted) < TOLERANCE[dtype]
    assert torch.equal(state, lru_reference.replay(outputs=outputs, state=held["state"], kept=kept))


def test_every_configuration_is_launched(device: torch.device) -> None:
    visible, kept = trees(["random"], random.Random(3), old=2, new=7, device=device)
    paths = dispatch.Paths(visible)
    with guarded() as launched:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            # Outputs in bf16 have eight bits.
            allowed = TOLERANCE.get(dtype, 1e-2)
            for size in (16, 17):
                held = drawn(device, dtype, 1, 9, sizes=(1, 16, size), seed=size)
                queries = held.pop("queries")[:, 2:]
                found = dispatch.attend(queries=queries, **held, paths=paths)
                wanted = reference.attend(queries=queries, **held, paths=paths)
                assert relative_error(found, wanted) < allowed
                state = dispatch.replay(**held, kept=kept)
                assert relative_error(state, reference.replay(**held, kept=kept)) < allowed
            units = recurrence(device, dtype, 1, old=2, new=7, channels=16, seed=1)
            found = lru.attend(**units, paths=paths)
            precise = {name: tensor.float() for name, tensor in units.items()}
            assert relative_error(found, lru_reference.attend(**precise, paths=paths)) < allowed
    assert all(one in launched for one in (*dispatch.CONFIGURATIONS, *lru.CONFIGURATIONS))


def test_one_launch_commits_all_layers_that_lie_alike(device: torch.device) -> None:
    _, kept = trees(["random", "binary", "chain"], random.Random(4), old=5, new=20, device=device)
    kinds = [((1, 32, 16), torch.float32)] * 3 + [((2, 32, 16), torch.float32), ((1, 32, 16), torch.float16)]
    layers = []
    for seed, (sizes, dtype) in enumerate(kinds):
        layers.append(drawn(device, dtype, *kept.shape, sizes=sizes, seed=seed))
        layers[-1].pop("queries")
    with guarded() as launched:
        found = dispatch.replay_all(
            **{name: [layer[name] for layer in layers] for name in layers[0]}, kept=kept
        )
    assert len(launched) == 3
    for state, layer in zip(found, layers, strict=True):
        assert relative_error(state, reference.replay(**layer, kept=kept)) < 1e-5


def some(device: torch.device, size: int = 16) -> dict[str, Any]:
    held: dict[str, Any] = dict(drawn(device, torch.float32, 2, 5, sizes=(2, 32, size), seed=0))
    held["paths"] = dispatch.Paths(torch.ones(2, 5, 5, dtype=torch.bool, device=device).tril())
    return held


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda held: {"keys": held["keys"].half()}, "keys are torch.float16 and values torch.float32"),
        (lambda held: {"queries": held["queries"].double()}, "queries are torch.float64 and keys"),
        (lambda held: {"state": held["state"].double()}, "the state torch.float64, not torch.float32"),
        (lambda held: some(held["keys"].device, size=65), "a channel has 65 states, and the kernel holds 64"),
        (
            lambda held: {"steps": held["steps"].repeat_interleave(2, -1)[..., ::2]},
            "steps is not contiguous along its last axis",
        ),
        (
            lambda held: {"values": torch.ones(2, 5, 33, device=held["keys"].device)[..., 1:]},
            "values starts at an address that is not a multiple of 16 bytes",
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
    with pytest.raises(ValueError) as error:
        dispatch.attend(**held | change(held))
    assert message in str(error.value)


def test_units_whose_shapes_do_not_fit(device: torch.device) -> None:
    held = recurrence(device, torch.float32, 1, old=2, new=3, channels=16, seed=0)
    visible, _ = trees(["chain"], random.Random(0), old=2, new=3, device=device)
    for name in held:
        with pytest.raises(ValueError, match=r"The shape of \w+ is"):
            lru.attend(**held | {name: held[name][..., 1:]}, paths=dispatch.Paths(visible))


def test_no_nodes(device: torch.device) -> None:
    held = some(device)
    paths = dispatch.Paths(held["paths"].visible[:, 5:])
    with guarded() as launched:
        assert dispatch.attend(**held | {"queries": held["queries"][:, 5:], "paths": paths}).shape == (
            2,
            0,
            32,
        )
        none = {name: held[name][:, :0] for name in ("keys", "values", "steps")}
        kept = torch.zeros(2, 0, dtype=torch.bool, device=device)
        state = dispatch.replay(**none, rates=held["rates"], state=held["state"], kept=kept)
        units = recurrence(device, torch.float32, 2, old=5, new=0, channels=16, seed=0)
        assert lru.attend(**units, paths=paths).shape == (2, 0, 16)
    assert torch.equal(state, held["state"])
    assert not launched
