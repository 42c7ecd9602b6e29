"""Recurrences along trees against the plain recurrence, one node after the other along every path."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.gated_delta_tree import reference as gated_delta
from draftwood.kernels.lru_tree import reference as lru
from draftwood.kernels.lru_tree import traced as traced_lru
from draftwood.kernels.mamba1_tree import reference as mamba1
from draftwood.kernels.mamba1_tree import traced as traced_mamba1
from draftwood.kernels.mamba2_tree import reference as mamba2
from draftwood.kernels.tree_conv import reference as tree_conv

HEADS, GROUPS, DIM, SIZE, CHANNELS, WIDTH = 6, 3, 4, 5, 9, 4

Nodes = dict[str, Tensor]


class Operation(NamedTuple):
    """One operation as it is used and as it is defined.

    `draw` gives what a node holds, `[rows, nodes, ...]`; `attend` takes older columns and new nodes and
    gives outputs and what the new columns keep; `step` is the recurrence on one row.
    """

    blank: Callable[[int], Tensor]
    draw: Callable[[Callable[..., Tensor], int, int], Nodes]
    attend: Callable[[Nodes, Nodes, Tensor, Tensor], tuple[Tensor, Nodes]]
    replay: Callable[[Nodes, Tensor, Tensor], Tensor]
    step: Callable[[Tensor, Nodes], tuple[Tensor, Tensor]]


def log_decay(noise: Callable[..., Tensor], *shape: int) -> Tensor:
    """Mild ones, none at all, and some that leave nothing."""
    drawn = noise(*shape)
    return -torch.where(drawn > 1.5, 400.0 * drawn.abs(), torch.where(drawn < -1, 0.0, drawn.abs()))


def grown(old: Nodes, new: Nodes) -> Nodes:
    return {name: torch.cat([old[name], new[name]], 1) for name in old}


def conv(dtype: torch.dtype) -> Operation:
    weight = torch.randn(CHANNELS, WIDTH, generator=torch.Generator().manual_seed(1)).to(dtype)
    bias = weight[:, 0] - 0.5

    def attend(old: Nodes, new: Nodes, state: Tensor, visible: Tensor) -> tuple[Tensor, Nodes]:
        window = tree_conv.windows(visible=visible, width=WIDTH)
        inputs = grown(old, new)["inputs"]
        out = tree_conv.attend(inputs=inputs, state=state, weight=weight, bias=bias, window=window)
        return out, new

    def step(state: Tensor, node: Nodes) -> tuple[Tensor, Tensor]:
        held = torch.cat([state, node["inputs"].unsqueeze(0)])
        return held[1:], (held.T * weight).sum(1) + bias

    return Operation(
        blank=lambda rows: torch.zeros(rows, WIDTH - 1, CHANNELS, dtype=dtype),
        draw=lambda noise, rows, n: {"inputs": noise(rows, n, CHANNELS)},
        attend=attend,
        replay=lambda nodes, state, kept: tree_conv.replay(**nodes, state=state, kept=kept),
        step=step,
    )


def mamba_2(dtype: torch.dtype) -> Operation:
    def attend(old: Nodes, new: Nodes, state: Tensor, visible: Tensor) -> tuple[Tensor, Nodes]:
        nodes = grown(old, new)
        queries = nodes.pop("queries")[:, old["keys"].shape[1] :]
        return mamba2.attend(queries=queries, **nodes, state=state, visible=visible), new

    def replay(nodes: Nodes, state: Tensor, kept: Tensor) -> Tensor:
        nodes = {name: held for name, held in nodes.items() if name != "queries"}
        return mamba2.replay(**nodes, state=state, kept=kept)

    def step(state: Tensor, node: Nodes) -> tuple[Tensor, Tensor]:
        keys, queries = (node[name].repeat_interleave(HEADS // GROUPS, 0) for name in ("keys", "queries"))
        state = state * node["decay"].exp()[:, None, None] + node["values"][:, :, None] * keys[:, None, :]
        return state, (state * queries[:, None, :]).sum(-1)

    return Operation(
        blank=lambda rows: torch.zeros(rows, HEADS, DIM, SIZE, dtype=dtype),
        draw=lambda noise, rows, n: {
            "queries": noise(rows, n, GROUPS, SIZE),
            "keys": noise(rows, n, GROUPS, SIZE),
            "values": noise(rows, n, HEADS, DIM),
            "decay": log_decay(noise, rows, n, HEADS),
        },
        attend=attend,
        replay=replay,
        step=step,
    )


def gated_delta_rule(dtype: torch.dtype) -> Operation:
    def draw(noise: Callable[..., Tensor], rows: int, n: int) -> Nodes:
        return {
            "queries": noise(rows, n, GROUPS, SIZE),
            "keys": torch.nn.functional.normalize(noise(rows, n, GROUPS, SIZE), dim=-1),
            "values": noise(rows, n, HEADS, DIM),
            "rates": 2 * noise(rows, n, HEADS).sigmoid(),
            "decay": log_decay(noise, rows, n, HEADS),
        }

    def attend(old: Nodes, new: Nodes, state: Tensor, visible: Tensor) -> tuple[Tensor, Nodes]:
        # Older columns hold deltas in the place of their values.
        nodes = grown(old, new)
        out, deltas = gated_delta.attend(
            queries=new["queries"],
            keys=nodes["keys"],
            values=new["values"],
            deltas=old["values"],
            rates=new["rates"],
            decay=nodes["decay"],
            state=state,
            visible=visible,
        )
        return out, new | {"values": deltas}

    def replay(nodes: Nodes, state: Tensor, kept: Tensor) -> Tensor:
        held = {name: nodes[name] for name in ("keys", "values", "decay")}
        return gated_delta.replay(**held, state=state, kept=kept)

    def step(state: Tensor, node: Nodes) -> tuple[Tensor, Tensor]:
        keys, queries = (node[name].repeat_interleave(HEADS // GROUPS, 0) for name in ("keys", "queries"))
        state = state * node["decay"].exp()[:, None, None]
        delta = node["rates"][:, None] * (node["values"] - (state * keys[:, None, :]).sum(-1))
        state = state + delta[:, :, None] * keys[:, None, :]
        return state, (state * queries[:, None, :]).sum(-1)

    return Operation(
        blank=lambda rows: torch.zeros(rows, HEADS, DIM, SIZE, dtype=dtype),
        draw=draw,
        attend=attend,
        replay=replay,
        step=step,
    )


def mamba_1(dtype: torch.dtype, *, traced: bool = False) -> Operation:
    generator = torch.Generator().manual_seed(2)
    rates = -torch.rand(CHANNELS, SIZE, generator=generator).to(dtype) * 4

    def attend(old: Nodes, new: Nodes, state: Tensor, visible: Tensor) -> tuple[Tensor, Nodes]:
        nodes = grown(old, new)
        nodes["queries"] = new["queries"]
        if traced:
            return traced_mamba1.attend(**nodes, rates=rates, state=state, visible=visible), new
        return mamba1.attend(**nodes, rates=rates, state=state, paths=mamba1.Paths(visible)), new

    def replay(nodes: Nodes, state: Tensor, kept: Tensor) -> Tensor:
        nodes = {name: held for name, held in nodes.items() if name != "queries"}
        return mamba1.replay(**nodes, rates=rates, state=state, kept=kept)

    def step(state: Tensor, node: Nodes) -> tuple[Tensor, Tensor]:
        keys, queries = (node[name].repeat_interleave(CHANNELS // GROUPS, 0) for name in ("keys", "queries"))
        state = state * (node["steps"][:, None] * rates).exp() + node["values"][:, None] * keys
        return state, (state * queries).sum(-1)

    return Operation(
        blank=lambda rows: torch.zeros(rows, CHANNELS, SIZE, dtype=dtype),
        draw=lambda noise, rows, n: {
            "queries": noise(rows, n, GROUPS, SIZE),
            "keys": noise(rows, n, GROUPS, SIZE),
            "values": noise(rows, n, CHANNELS),
            "steps": -log_decay(noise, rows, n, CHANNELS),
        },
        attend=attend,
        replay=replay,
        step=step,
    )


def linear_recurrence(dtype: torch.dtype, *, traced: bool = False) -> Operation:
    def attend(old: Nodes, new: Nodes, state: Tensor, visible: Tensor) -> tuple[Tensor, Nodes]:
        outputs = old["values"]
        if traced:
            out = traced_lru.attend(**new, outputs=outputs, state=state, visible=visible)
        else:
            out = lru.attend(**new, outputs=outputs, state=state, paths=mamba1.Paths(visible))
        return out, new | {"values": out}

    def step(state: Tensor, node: Nodes) -> tuple[Tensor, Tensor]:
        state = state * node["decay"].exp() + node["values"]
        return state, state

    return Operation(
        blank=lambda rows: torch.zeros(rows, CHANNELS, dtype=dtype),
        draw=lambda noise, rows, n: {
            "values": noise(rows, n, CHANNELS),
            "decay": torch.where(noise(rows, n, 1) > 2, -torch.inf, log_decay(noise, rows, n, CHANNELS)),
        },
        attend=attend,
        replay=lambda nodes, state, kept: lru.replay(outputs=nodes["values"], state=state, kept=kept),
        step=step,
    )


OPERATIONS: dict[str, Callable[[torch.dtype], Operation]] = {
    "tree_conv": conv,
    "mamba2_tree": mamba_2,
    "gated_delta_tree": gated_delta_rule,
    "mamba1_tree": mamba_1,
    "mamba1_tree, traced": partial(mamba_1, traced=True),
    "lru_tree": linear_recurrence,
    "lru_tree, traced": partial(linear_recurrence, traced=True),
}


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-4)])
@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
)
def test_trees_agree_with_the_plain_recurrence(
    name: str, dtype: torch.dtype, tolerance: float, seed: int, rows: int, sizes: list[int]
) -> None:
    operation, chance = OPERATIONS[name](dtype), random.Random(seed)
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    def near(found: Tensor, wanted: Tensor) -> bool:
        return bool(((found - wanted).abs() <= tolerance * (1 + wanted.abs().amax())).all())

    state = operation.blank(rows)
    truth = list(state)
    for _ in range(3):
        held = operation.draw(noise, rows, 0)
        paths: list[list[list[int]]] = [[] for _ in range(rows)]
        states: list[list[Tensor]] = [[] for _ in range(rows)]
        for size in sizes:
            start = held[next(iter(held))].shape[1]
            new = operation.draw(noise, rows, size)
            visible = torch.zeros(rows, size, start + size, dtype=torch.bool)
            wanted: dict[tuple[int, int], Tensor] = {}
            for row in range(rows):
                real = chance.randint(0, size) if rows > 1 else size
                for place in range(size):
                    column = start + place
                    parent = -1
                    if place < real:
                        parent = chance.choice([-1] + [c for c, path in enumerate(paths[row]) if path])
                    path = [*paths[row][parent], column] if parent >= 0 else [column]
                    visible[row, place, path] = True
                    before = states[row][parent] if parent >= 0 else truth[row]
                    after, out = operation.step(before, {n: v[row, place] for n, v in new.items()})
                    # Nothing descends from padding, and nobody looks at what it gives.
                    paths[row].append(path if place < real else [])
                    states[row].append(after)
                    if place < real:
                        wanted[row, place] = out
            found, new = operation.attend(held, new, state, visible)
            assert all(near(found[key], out) for key, out in wanted.items())
            held = grown(held, new)
        kept = torch.zeros(rows, held[next(iter(held))].shape[1], dtype=torch.bool)
        for row in range(rows):
            last = chance.choice([-1] + [column for column, path in enumerate(paths[row]) if path])
            if last >= 0:
                kept[row, paths[row][last]] = True
                truth[row] = states[row][last]
        state = operation.replay(held, state, kept)
        assert state.dtype == dtype
        assert all(near(found, wanted) for found, wanted in zip(state, truth, strict=True))


@pytest.mark.parametrize("name", OPERATIONS)
def test_strong_decay_does_not_overflow(name: str) -> None:
    operation = OPERATIONS[name](torch.float32)
    old, new = (operation.draw(torch.ones, 1, n) for n in (0, 3))
    for kind, worst in (("decay", -1e30), ("steps", 1e30)):
        if kind in new:
            new[kind] = torch.full_like(new[kind], worst)
    # Two siblings that do not see each other.
    visible = torch.tensor([[[True, False, False], [True, True, False], [True, False, True]]])
    state = operation.blank(1) + 1
    found, kept = operation.attend(old, new, state, visible)
    assert found.isfinite().all()
    assert operation.replay(grown(old, kept), state, visible[:, 2]).isfinite().all()


def shapes_made(call: Callable[[], Any]) -> set[tuple[int, ...]]:
    """The shape of every tensor that torch makes in a call, sizes sorted and ones left out."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    made = set[tuple[int, ...]]()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            made.update(tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, Tensor))
            return out

    with Watch():
        call()
    return made


@pytest.mark.parametrize("name", ["mamba2_tree", "gated_delta_tree"])
def test_no_node_has_a_state(name: str) -> None:
    operation = OPERATIONS[name](torch.float32)
    nodes = 11
    old, new = (operation.draw(torch.randn, 1, n) for n in (0, nodes))
    visible = torch.ones(1, nodes, nodes, dtype=torch.bool).tril()
    state = operation.blank(1)

    def call() -> None:
        _, kept = operation.attend(old, new, state, visible)
        operation.replay(grown(old, kept), state, visible[:, -1])

    most = max(torch.Size(shape).numel() for shape in shapes_made(call))
    assert most < nodes * HEADS * DIM * SIZE
    assert most >= nodes * nodes * HEADS
