"""Beams, reranked beams and the chain that stops: against plain transcriptions."""

import heapq
import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.redrafter import BeamPaths
from tests.strategies.tables import ROOT, grow, longer, path_prob, paths, table

SEEDS = st.integers(0, 10**6)


def beams(probs, vocab, width, steps):
    """The levels of a beam search."""
    levels = [[ROOT]]
    for _ in range(steps):
        every = [(*path, token) for path in levels[-1] for token in range(vocab)]
        levels.append(heapq.nlargest(width, every, key=lambda one: path_prob(probs, one)))
    return levels[1:]


@given(SEEDS, st.integers(1, 6), st.integers(1, 4))
def test_beam_keeps_the_most_likely_paths_of_every_level(seed, width, steps):
    probs = table(4, seed)
    tree, requests = grow(Beam(width, steps), probs)
    assert set(paths(tree)) == {ROOT, *itertools.chain(*beams(probs, 4, width, steps))}
    assert len(requests) == steps


@given(SEEDS, st.integers(1, 5), st.integers(1, 12))
def test_the_budget_of_a_beam_takes_the_best_of_all_its_levels(seed, width, budget):
    probs = table(4, seed)
    tree, _ = grow(Beam(width, 4, budget), probs)
    everything = [path for level in beams(probs, 4, width, 4) for path in level]
    best = heapq.nlargest(budget, everything, key=lambda one: path_prob(probs, one))
    assert set(paths(tree)) == {ROOT, *best}


@given(SEEDS, st.integers(1, 6), st.integers(1, 4))
def test_beam_paths_are_the_paths_that_a_beam_search_ends_with(seed, width, length):
    probs = table(4, seed)
    tree, requests = grow(BeamPaths(width, length), probs)
    last = beams(probs, 4, width, length)[-1]
    assert {paths(tree)[leaf] for leaf in tree.leaves} == set(last)
    assert set(paths(tree)) == {path[:depth] for path in last for depth in range(1, length + 2)}
    assert len(requests) == length


def test_a_path_that_the_draft_leaves_drops_out_while_others_go_on():
    rows = {(0,): [0.0, 0.6, 0.4], (0, 1): [0.0, 0.0, 0.0], (0, 2): [1.0, 0.0, 0.0]}
    tree, _ = grow(BeamPaths(2, 3), lambda path: torch.tensor(rows.get(path, [0.0, 0.0, 0.0])))
    assert paths(tree) == [(0,), (0, 2), (0, 2, 0)]
    # The likelier child, which is gone, must not stand in the law of the one that stays.
    assert tree.proposals[0].tokens == (2,)


@given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 30))
def test_expand_rerank_takes_the_best_of_all_candidates(seed, depth, branching, width, budget):
    probs = table(5, seed)
    tree, requests = grow(ExpandRerank(depth, branching, width, budget), probs)
    level, candidates = [ROOT], []
    for _ in range(depth):
        new = [one for path in level for one in longer(probs, path, 5, branching)]
        candidates += new
        level = heapq.nlargest(width, new, key=lambda one: path_prob(probs, one))
    best = heapq.nlargest(budget, candidates, key=lambda one: path_prob(probs, one))
    assert set(paths(tree)) == {ROOT, *best}
    assert len(requests) <= depth
    for node in range(len(tree)):
        values = [path_prob(probs, paths(tree)[child]) for child in tree.children(node)]
        assert values == sorted(values, reverse=True)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("budget", [1, 2, 3, 4])
def test_the_greedy_tree_of_top_k_has_the_largest_sum_of_path_probabilities(seed, budget):
    # OPT-Tree's aim: the sum is the expected number of accepted tokens if the draft is right.
    probs = table(3, seed)
    trees = {frozenset([ROOT])}
    for _ in range(budget):
        trees = {
            tree | {(*path, token)}
            for tree in trees
            for path in tree
            for token in range(3)
            if (*path, token) not in tree
        }
    value = {path: path_prob(probs, path) for path in frozenset().union(*trees)}
    best = max(sum(value[path] for path in tree) for tree in trees)
    tree, _ = grow(LayeredDySpec(budget, law="top-k"), probs)
    assert sum(value[path] for path in paths(tree)) == pytest.approx(best, rel=1e-12)


@given(SEEDS, st.floats(0, 1), st.sampled_from(["without-replacement", "top-k"]))
def test_a_chain_stops_behind_the_first_unlikely_token(seed, stop_below, law):
    probs = table(4, seed)
    whole, _ = grow(Chain(6, law), probs, seed)
    tree, requests = grow(Chain(6, law, stop_below), probs, seed)
    path = paths(whole)[-1]
    chances = [float(probs(path[:depth])[path[depth]]) for depth in range(1, 7)]
    kept = next((index for index, chance in enumerate(chances, start=1) if chance < stop_below), 6)
    assert paths(tree) == [path[: depth + 1] for depth in range(kept + 1)]
    assert len(requests) == kept
