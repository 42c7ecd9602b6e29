"""Tree policies: against independent transcriptions, and at the edges."""

import heapq
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import Deterministic, InvalidInput, UnknownStrategy
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from tests.strategies.tables import grow, paths, table


class ByNode:
    """Randomness whose k-th draw under a node only depends on the node's path and k."""

    def __init__(self, seed):
        self.seed = seed

    def token(self, path, k, weights):
        key = self.seed
        for part in (*path, -1, k):
            key = (key * 1_000_003 + part + 7) % (2**61 - 1)
        u = float(torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(key)))
        heights = weights.double().cumsum(0)
        return int((heights <= u * float(heights[-1])).sum())


def algorithm_1(probs, budget, chance, root=0):
    """DySpec's algorithm 1 as printed, with lines 6 and 7 exchanged: one draft call a node."""
    tree, heap, order = dict[Any, Any]({(root,): []}), list[Any](), 0
    heapq.heappush(heap, (-1.0, order, (root,), probs([root]).clone(), 0))
    size = 0
    while size < budget and heap:
        value, _, path, rest, drawn = heapq.heappop(heap)
        if not rest.any():
            continue
        rest = rest / rest.sum()
        token = chance.token(path, drawn, rest)
        p = float(rest[token])
        child = (*path, token)
        tree[path].append(token)
        tree[child] = []
        size += 1
        rest = rest.clone()
        rest[token] = 0
        order += 1
        heapq.heappush(heap, (value * (1 - p), order, path, rest, drawn + 1))
        order += 1
        heapq.heappush(heap, (value * p, order, child, probs(list(child)).clone(), 0))
    return tree


@given(
    st.sampled_from([DySpec, LayeredDySpec]),
    st.integers(0, 10**6),
    st.integers(1, 24),
    st.sampled_from([3, 6]),
)
def test_dyspec_is_algorithm_1_node_for_node(policy, seed, budget, vocab):
    probs, chance = table(vocab, seed), ByNode(seed)

    class Script:
        """Answers `choose` with the noise tied to the node that is being expanded."""

        known: tuple[tuple[int, ...], ...] = ((0,),)

        def nodes(self, n):
            return [self] * n

        def choose(self, weights):
            # The weights identify the node: distributions differ from context to context.
            for path in self.known:
                p = probs(list(path))
                gone = (weights == 0) & (p > 0)
                if torch.allclose(weights, p.masked_fill(gone, 0), rtol=0, atol=1e-15):
                    token = chance.token(path, int(gone.sum()), weights)
                    self.known = (*self.known, (*path, token))
                    return token
            raise AssertionError("drawn from a distribution of no node")

    tree, _ = grow(policy(budget), probs, rng=Script())
    got = {path: [int(tree.tokens[c]) for c in tree.children(v)] for v, path in enumerate(paths(tree))}
    assert got == algorithm_1(probs, budget, chance)


@given(st.sampled_from([DySpec, LayeredDySpec]), st.integers(0, 1000), st.integers(1, 40))
def test_dyspec_of_top_k_holds_the_most_likely_paths(policy, seed, budget):
    probs = table(5, seed)
    tree, _ = grow(policy(budget, law="top-k"), probs)
    assert len(tree) == budget + 1
    # A child is worth the draft's probability of its path: no path left out beats one that is in.
    inside = set(paths(tree)[1:])

    def path_prob(path):
        value = 1.0
        for depth in range(1, len(path)):
            value *= float(probs(list(path[:depth]))[path[depth]])
        return value

    outside = {(*path, token) for path in {(0,)} | inside for token in range(5)} - inside
    assert min(map(path_prob, inside)) >= max(map(path_prob, outside)) - 1e-12


@given(st.integers(0, 1000), st.floats(0.01, 0.5))
def test_a_threshold_keeps_the_slots_worth_more(seed, threshold):
    probs = table(5, seed)
    whole, _ = grow(LayeredDySpec(200, law="top-k", depth=4), probs)
    cut, _ = grow(LayeredDySpec(200, law="top-k", depth=4, threshold=threshold), probs)
    expected = set()
    for path in paths(whole):
        path_prob = 1.0
        for depth in range(1, len(path)):
            path_prob *= float(probs(list(path[:depth]))[path[depth]])
        if len(path) == 1 or path_prob > threshold:
            expected.add(path)
    assert set(paths(cut)) == expected


@given(st.integers(0, 1000), st.sampled_from(["top-k", "without-replacement"]))
def test_layered_dyspec_asks_once_a_layer(seed, law):
    tree, requests = grow(LayeredDySpec(32, law=law), table(6, seed), seed=seed)
    assert len(requests) <= tree.depth + 1
    shallow, requests = grow(LayeredDySpec(32, 2, law=law), table(6, seed), seed=seed)
    assert shallow.depth == len(requests) == 2


@given(st.integers(0, 1000), st.integers(1, 4), st.integers(1, 4), st.integers(1, 40))
def test_the_fixed_tree_has_its_shape_and_keeps_its_budget(seed, depth, branching, budget):
    tree, requests = grow(FixedTree(depth, branching, budget), table(5, seed), seed=seed)
    full = sum(branching**level for level in range(1, depth + 1))
    assert len(tree) - 1 == min(budget, full)
    assert len(requests) <= depth
    for node in range(len(tree)):
        drawn = tree.tokens[tree.children(node)].tolist()
        assert len(set(drawn)) == len(drawn) <= branching


@given(st.integers(0, 1000), st.floats(0.01, 0.9))
def test_a_pruned_tree_of_top_k_holds_just_the_likely_paths(seed, threshold):
    probs = table(4, seed)
    tree, _ = grow(FixedTree(3, 3, 100, threshold, "top-k"), probs)
    expected: set[tuple[int, ...]] = {(0,)}
    level: dict[tuple[int, ...], float] = {(0,): 1.0}
    for _ in range(3):
        level = {
            (*path, int(token)): path_prob * float(p)
            for path, path_prob in level.items()
            for p, token in zip(*probs(list(path)).topk(3), strict=True)
            if path_prob * float(p) >= threshold
        }
        expected |= set(level)
    assert set(paths(tree)) == expected


@given(st.integers(0, 1000), st.floats(0.05, 0.9))
def test_a_drawn_child_below_the_threshold_stays_and_gets_no_children(seed, threshold):
    probs = table(4, seed)
    tree, _ = grow(FixedTree(3, 2, 100, threshold), probs, seed=seed)
    for node, path in enumerate(paths(tree)):
        path_prob = 1.0
        for depth in range(1, len(path)):
            path_prob *= float(probs(list(path[:depth]))[path[depth]])
        likely = path_prob >= threshold and len(path) <= 3
        assert len(tree.children(node)) == (2 if likely else 0)


@pytest.mark.parametrize(
    "policy", [Chain(4), FixedTree(2, 3), DySpec(9), LayeredDySpec(9, law="top-k")], ids=str
)
def test_a_node_never_gets_more_children_than_tokens_with_a_chance(policy):
    tree, _ = grow(policy, table(6, 5, live=2), seed=0)
    assert max(len(tree.children(v)) for v in range(len(tree))) <= 2


@pytest.mark.parametrize("law", ["without-replacement", "with-replacement", "top-k"])
@pytest.mark.parametrize("make", [lambda law: Chain(3, law), lambda law: FixedTree(2, 2, law=law)])
def test_a_drafter_with_nothing_to_propose_leaves_a_bare_root(make, law):
    tree, _ = grow(make(law), lambda path: torch.zeros(4), seed=0)
    assert len(tree) == 1


@pytest.mark.parametrize("policy", [DySpec, LayeredDySpec])
@pytest.mark.parametrize("law", ["top-k", "without-replacement"])
def test_dyspec_without_proposals_is_a_bare_root(policy, law):
    assert len(grow(policy(4, law=law), lambda path: torch.zeros(4), seed=0)[0]) == 1


def test_every_expanded_node_names_its_law():
    tree, _ = grow(FixedTree(2, 2, law="top-k"), table(5, 0))
    for node, law in tree.proposals.items():
        assert isinstance(law, Deterministic)
        assert list(law.tokens)[: len(tree.children(node))] == tree.tokens[tree.children(node)].tolist()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(0), "length is 0; give an integer >= 1"),
        (lambda: FixedTree(budget=0), "budget is 0"),
        (lambda: FixedTree(branching=-1), "branching is -1"),
        (lambda: FixedTree(threshold=1.5), r"threshold is 1.5; give a number in \[0, 1\]"),
        (lambda: DySpec(0), "budget is 0"),
        (lambda: DySpec(4, "with-replacement"), "cannot be drawn by WithReplacement"),
        (lambda: Chain(2, "topk"), "did you mean 'top-k'"),
    ],
)
def test_options_out_of_range_name_the_value(make, message):
    with pytest.raises((InvalidInput, UnknownStrategy), match=message):
        make()
