"""Layers whose decay differs by place of the key: closed forms against one step after another, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood.backends.recurrent import KeyDecayDeltaState, KeyDecayState, Pass, grown

HEADS, N, P = 2, 3, 4


def step(state: Tensor, vectors: tuple[Tensor, ...], *, delta: bool) -> tuple[Tensor, Tensor]:
    """The next state `[heads, p, n]` and the output of one token, as the docstrings have it."""
    query, key, value, decay, *rate = vectors
    state = state * decay.exp().unsqueeze(1)
    if delta:
        value = rate[0].unsqueeze(-1) * (value - torch.einsum("hpn,hn->hp", state, key))
    state = state + value.unsqueeze(-1) * key.unsqueeze(1)
    return state, torch.einsum("hpn,hn->hp", state, query)


def drawn(rows: int, nodes: int, seed: int, *, delta: bool, steep: float) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(rows, nodes, HEADS, *shape, generator=generator, dtype=torch.float64)

    vectors = [normal(N), normal(N), normal(P), -steep * normal(N).abs()]
    return (*vectors, normal().sigmoid()) if delta else tuple(vectors)


def seen(parents: list[list[int]]) -> Tensor:
    """Bool `[rows, nodes, nodes]`: a node sees itself and its ancestors."""
    visible = torch.zeros(len(parents), len(parents[0]), len(parents[0]), dtype=torch.bool)
    for row, above in enumerate(parents):
        for node, parent in enumerate(above):
            visible[row, node, node] = True
            if parent >= 0:
                visible[row, node] |= visible[row, parent]
    return visible


@settings(deadline=None, max_examples=60)
@given(
    data=st.data(),
    delta=st.booleans(),
    seed=st.integers(0, 2**20),
    steep=st.sampled_from([0.0, 0.1, 1.0, 30.0, 1000.0]),
)
def test_a_tree_is_its_paths_and_a_commit_their_end(data: Any, delta: bool, seed: int, steep: float) -> None:
    rows, nodes = data.draw(st.integers(1, 3), "rows"), data.draw(st.integers(1, 9), "nodes")
    parents = [[data.draw(st.integers(-1, node - 1)) for node in range(nodes)] for _ in range(rows)]
    cut = data.draw(st.integers(0, nodes - 1), "nodes of a first call")
    vectors = drawn(rows, nodes, seed, delta=delta, steep=steep)
    generator = torch.Generator().manual_seed(seed + 1)
    start = torch.randn(rows, HEADS, P, N, generator=generator, dtype=torch.float64)
    layer, visible = (KeyDecayDeltaState if delta else KeyDecayState)(), seen(parents)
    old: tuple[Tensor, ...] = ()
    outputs = []
    for first, last in ((0, cut), (cut, nodes)):
        if first < last:
            now = Pass(visible[:, first:last, :last])
            out, kept = layer.attend(start, old, tuple(v[:, first:last] for v in vectors), now)
            outputs.append(out)
            old = grown(old, kept)
    found = torch.cat(outputs, 1)
    for row in range(rows):
        states: list[Tensor] = []
        for node, parent in enumerate(parents[row]):
            before = start[row] if parent < 0 else states[parent]
            state, out = step(before, tuple(v[row, node] for v in vectors), delta=delta)
            states.append(state)
            torch.testing.assert_close(found[row, node], out, atol=1e-10, rtol=1e-10)
        for node in range(nodes):
            after = layer.replay(start, old, visible[:, node])[row]
            torch.testing.assert_close(after, states[node], atol=1e-10, rtol=1e-10)
        none = layer.replay(start, old, torch.zeros(rows, nodes, dtype=torch.bool))
        assert torch.equal(none, start)


@pytest.mark.parametrize("kind", [KeyDecayState, KeyDecayDeltaState])
def test_a_dropped_node_does_not_reach_the_state(kind: type[KeyDecayState]) -> None:
    vectors = drawn(1, 4, 3, delta=kind is KeyDecayDeltaState, steep=1.0)
    start = torch.zeros(1, HEADS, P, N, dtype=torch.float64)
    visible = seen([[-1, 0, -1, 2]])
    _, kept = kind().attend(start, (), vectors, Pass(visible))
    for poisoned in kept:
        poisoned[:, 1] = torch.nan
    after = kind().replay(start, kept, visible[:, 3])
    assert after.isfinite().all()
    assert after.abs().sum() > 0
