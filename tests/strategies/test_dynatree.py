"""DynaTree: its algorithm, and what it learns."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import Outcome
from draftwood.strategies.policies.dynatree import DynaTree
from tests.strategies.tables import ROOT, grow, longer, path_prob, paths, table

SEEDS = st.integers(0, 10**6)


def algorithm_1(probs, vocab, policy):
    """DynaTree's algorithm 1 from the committed root, with a queue; its leaves pruned as in section 3.3."""
    result, queue = {ROOT}, [ROOT]
    while queue and len(result) <= policy.budget:
        path = queue.pop(0)
        depth, value = len(path) - 1, path_prob(probs, path)
        if depth >= policy.max_depth or value < policy.stop_below:
            continue
        if depth >= policy.depth and value < policy.deep:
            continue
        sure = float(probs(path).max())
        count = 1 if sure >= policy.confident else policy.branching if sure < policy.unsure else 2
        for one in longer(probs, path, vocab, count):
            if len(result) <= policy.budget and path_prob(probs, one) >= policy.threshold:
                result.add(one)
                queue.append(one)
    return result


@given(SEEDS, st.integers(1, 3), st.integers(2, 3), st.integers(1, 40), st.lists(st.floats(0, 1), min_size=5))
def test_dynatree_is_algorithm_1(seed, depth, branching, budget, chances):
    unsure, confident = sorted(chances[:2])
    stop_below, deep = sorted(chance**3 for chance in chances[2:4])
    policy = DynaTree(
        depth, 5, branching, budget, unsure, confident, stop_below, deep, threshold=chances[4] ** 3
    )
    probs = table(4, seed)
    tree, requests = grow(policy, probs)
    assert set(paths(tree)) == algorithm_1(probs, 4, policy)
    assert len(requests) <= 5


@given(SEEDS, st.floats(0, 0.5), st.sampled_from(["without-replacement", "with-replacement"]))
def test_dynatree_never_drops_a_drawn_child(seed, threshold, law):
    probs = table(4, seed)
    policy = DynaTree(2, 3, 3, 100, stop_below=0.0, threshold=threshold, law=law)
    tree, _ = grow(policy, probs, seed)
    for node, path in enumerate(paths(tree)):
        value, sure = path_prob(probs, path), float(probs(path).max())
        expanded = value >= threshold and len(path) <= (3 if value >= 0.5 else 2)
        expected = 1 if sure >= 0.9 else 3 if sure < 0.4 else 2
        assert len(tree.children(node)) == (expected if expanded else 0)


def outcome(accepted):
    nodes = range(accepted + 1)
    return Outcome(nodes, [0] * len(nodes), extra=0, bonus=False, drafted=20)


def observed(policy, share, rounds, state=None):
    """Returns the state after `rounds` rounds in which `share` of the levels was accepted."""
    certain = torch.tensor([0.0, 1.0, 0.0])
    state = state or policy.first_state()
    for _ in range(rounds):
        tree, _ = grow(policy, lambda path: certain, state=state)
        state = policy.observe(state, outcome(round(share * tree.depth)), tree)
    return state


def test_dynatree_learns_by_the_authors_schedule():
    now = observed(DynaTree(), 1.0, 4)
    assert (now.depth, now.confident, now.deep) == (5, 0.9, 0.5), "less than five rounds say nothing"
    now = observed(DynaTree(), 1.0, 5)
    assert (now.depth, now.confident, now.deep) == (6, pytest.approx(0.85), pytest.approx(0.45))
    now = observed(DynaTree(), 1.0, 50)
    assert (now.depth, now.confident, now.deep) == (7, 0.5, 0.3)
    now = observed(DynaTree(), 0.0, 5)
    assert (now.depth, now.confident, now.deep) == (4, pytest.approx(0.95), pytest.approx(0.55))
    now = observed(DynaTree(), 0.0, 50)
    assert (now.depth, now.confident, now.deep) == (2, 0.95, 0.8)
    assert observed(DynaTree(), 0.7, 50).depth == 5
    assert observed(DynaTree(history=False), 1.0, 50).depth == 5


def test_dynatree_forgets_what_lies_behind_its_window():
    policy = DynaTree(window=5)
    state = observed(policy, 0.0, 10)
    assert observed(policy, 1.0, 10, state).depth > 2
    # Settings that start beyond the schedule's limits stay where they are.
    extreme = DynaTree(depth=1, max_depth=2, unsure=0.6, confident=0.99, deep=0.9)
    state = observed(extreme, 0.0, 30)
    assert (state.confident, state.deep, state.depth) == (0.99, 0.9, 1)
    state = observed(extreme, 1.0, 30, state)
    assert (state.confident, state.depth) == (0.6, 1)
    assert observed(DynaTree(depth=1), 0.0, 10).depth == 1
    assert observed(DynaTree(confident=0.45), 1.0, 10).confident == 0.45
