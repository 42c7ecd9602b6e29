"""Policies whose trees follow the draft's confidence: against plain transcriptions, and proved."""

import heapq
import itertools
import math

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import Deterministic, InvalidInput, Outcome, TorchRandomness, TreeBuilder, TreePolicy
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.redrafter import BeamPaths
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, parametrize_with_checks

SEEDS = st.integers(0, 10**6)
ROOT = (0,)


def table(vocab, seed, live=None):
    """Draft distributions by path, with `live` tokens of probability above 0."""
    model = ToyModel(vocab, seed=seed, sharpness=2.0)

    def probs(path):
        p = model.probs(path)
        if live is not None:
            p[p.argsort()[: vocab - live]] = 0
        return p / p.sum()

    return probs


def grow(policy, probs, seed=None):
    """Drive a policy by a table; returns the tree and the paths of every request. No seed: no chance."""
    growing = policy.grow(ROOT[0], None if seed is None else TorchRandomness.seeded(seed))
    asked, requests = [], []
    try:
        request = next(growing)
        while True:
            for token, parent in zip(request.tokens.tolist(), request.parents.tolist(), strict=True):
                asked.append((*asked[parent], token) if parent >= 0 else (token,))
            requests.append(asked[len(asked) - len(request) :])
            request = growing.send(torch.stack([probs(path) for path in requests[-1]]))
    except StopIteration as finished:
        return finished.value, requests


def paths(tree):
    return [tuple(tree.tokens[tree.path(v)].tolist()) for v in range(len(tree))]


def reach(probs, path):
    return math.prod(float(probs(path[:depth])[path[depth]]) for depth in range(1, len(path)))


def longer(probs, path, vocab, branching):
    """The `branching` most likely continuations of a path."""
    return heapq.nlargest(
        branching, [(*path, token) for token in range(vocab)], key=lambda one: reach(probs, one)
    )


def beams(probs, vocab, width, steps):
    """The levels of a beam search."""
    levels = [[ROOT]]
    for _ in range(steps):
        every = [(*path, token) for path in levels[-1] for token in range(vocab)]
        levels.append(heapq.nlargest(width, every, key=lambda one: reach(probs, one)))
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
    best = heapq.nlargest(budget, everything, key=lambda one: reach(probs, one))
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


@given(SEEDS, st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(1, 30))
def test_expand_rerank_takes_the_best_of_all_candidates(seed, depth, branching, width, budget):
    probs = table(5, seed)
    tree, requests = grow(ExpandRerank(depth, branching, width, budget), probs)
    level, candidates = [ROOT], []
    for _ in range(depth):
        new = [one for path in level for one in longer(probs, path, 5, branching)]
        candidates += new
        level = heapq.nlargest(width, new, key=lambda one: reach(probs, one))
    best = heapq.nlargest(budget, candidates, key=lambda one: reach(probs, one))
    assert set(paths(tree)) == {ROOT, *best}
    assert len(requests) <= depth
    for node in range(len(tree)):
        values = [reach(probs, paths(tree)[child]) for child in tree.children(node)]
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
    value = {path: reach(probs, path) for path in frozenset().union(*trees)}
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
    kept = next((place for place, chance in enumerate(chances, start=1) if chance < stop_below), 6)
    assert paths(tree) == [path[: depth + 1] for depth in range(kept + 1)]
    assert len(requests) == kept


def algorithm_1(probs, vocab, policy):
    """DynaTree's algorithm 1 from the committed root, with a queue; its leaves pruned as in section 3.3."""
    found, queue = {ROOT}, [ROOT]
    while queue and len(found) <= policy.budget:
        path = queue.pop(0)
        depth, value = len(path) - 1, reach(probs, path)
        if depth >= policy.max_depth or value < policy.stop_below:
            continue
        if depth >= policy.depth and value < policy.deep:
            continue
        sure = float(probs(path).max())
        count = 1 if sure >= policy.confident else policy.branching if sure < policy.unsure else 2
        for one in longer(probs, path, vocab, count):
            if len(found) <= policy.budget and reach(probs, one) >= policy.threshold:
                found.add(one)
                queue.append(one)
    return found


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
        value, sure = reach(probs, path), float(probs(path).max())
        expanded = value >= threshold and len(path) <= (3 if value >= 0.5 else 2)
        wanted = 1 if sure >= 0.9 else 3 if sure < 0.4 else 2
        assert len(tree.children(node)) == (wanted if expanded else 0)


def outcome(accepted):
    nodes = range(accepted + 1)
    return Outcome(nodes, [0] * len(nodes), extra=0, bonus=False, drafted=20)


def observed(policy, share, rounds):
    """The settings after so many rounds in which `share` of the levels was accepted."""
    certain = torch.tensor([0.0, 1.0, 0.0])
    for _ in range(rounds):
        tree, _ = grow(policy, lambda path: certain)
        policy.observe(outcome(round(share * tree.depth)))
    return policy.now


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
    observed(policy, 0.0, 10)
    assert observed(policy, 1.0, 10).depth > 2
    # Settings that start beyond the schedule's limits stay where they are.
    extreme = DynaTree(depth=1, max_depth=2, unsure=0.6, confident=0.99, deep=0.9)
    assert (observed(extreme, 0.0, 30).confident, extreme.now.deep, extreme.now.depth) == (0.99, 0.9, 1)
    assert observed(extreme, 1.0, 30).confident == 0.6
    assert extreme.now.depth == 1
    assert observed(DynaTree(depth=1), 0.0, 10).depth == 1
    assert observed(DynaTree(confident=0.45), 1.0, 10).confident == 0.45


POLICIES = {
    "chain": Chain(4),
    "fixed": FixedTree(3, 2),
    "dyspec": DySpec(8),
    "layered": LayeredDySpec(8),
    "eagle-2": ExpandRerank(4, 3, 3, 12),
}


@given(SEEDS, st.sampled_from(sorted(POLICIES)))
def test_a_threshold_of_0_leaves_a_policy_alone(seed, name):
    probs = table(4, seed)
    plain, requests = grow(POLICIES[name], probs, seed)
    wrapped, asked = grow(DynamicDepth(POLICIES[name], 0.0), probs, seed)
    assert (paths(plain), requests) == (paths(wrapped), asked)


@given(SEEDS, st.floats(0, 1), st.sampled_from(["fixed", "layered", "eagle-2", "chain"]))
def test_a_level_that_the_draft_is_unsure_of_is_not_asked_for(seed, stop_below, name):
    probs = table(4, seed)
    _, requests = grow(POLICIES[name], probs, seed)
    tree, asked = grow(DynamicDepth(POLICIES[name], stop_below), probs, seed)
    sums = [sum(reach(probs, path) for path in request) for request in requests]
    levels = next((level for level, sure in enumerate(sums) if sure < stop_below), len(sums))
    assert asked == requests[:levels]
    assert tree.depth == levels


@given(SEEDS, st.floats(0, 1), st.integers(1, 4))
def test_a_heap_that_goes_on_elsewhere_gets_the_right_distributions(seed, stop_below, depth):
    probs = table(4, seed)
    tree, asked = grow(DynamicDepth(DySpec(12), stop_below, depth), probs, seed)
    assert tree.depth <= depth
    for node, proposal in tree.proposals.items():
        assert torch.equal(proposal.p, probs(paths(tree)[node]))
        assert any(paths(tree)[node] in request for request in asked)
    assert len(tree) <= 13


@attrs.frozen
class Guess(TreePolicy):
    """Goes on with token 1, and with token 2 beside it, whatever the draft says."""

    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree, level = TreeBuilder(root), [0]
        for _ in range(3):
            below = []
            for node in level:
                yield tree.request([node])
                below += tree.add_children(node, [1, 2], Deterministic([1, 2], 3))
            level = below
        return tree.finish()


def test_what_lies_below_a_node_that_was_not_asked_for_is_not_asked_for_either():
    rows = {(0,): [0.0, 0.2, 0.8]}
    tree, asked = grow(DynamicDepth(Guess(), 0.5), lambda path: torch.tensor(rows.get(path, [0.0, 0.0, 1.0])))
    assert len(tree) == 15
    assert asked == [[(0,)], [(0, 2)], [(0, 2, 2)]]
    tree, asked = grow(DynamicDepth(Guess(), 0.0, 1), lambda path: torch.full((3,), 1 / 3))
    assert (len(tree), asked) == (15, [[(0,)]])


def test_the_threshold_follows_the_outcomes():
    def after(share, stop_below, rounds=3):
        policy = DynamicDepth(Chain(4, "top-k"), stop_below)
        for _ in range(rounds):
            tree, _ = grow(policy, table(4, 3))
            policy.observe(outcome(round(share * tree.depth)))
        return policy.threshold

    assert after(0.0, 0.3) == pytest.approx(0.303)
    assert after(1.0, 0.99) == pytest.approx(0.987)
    assert after(1.0, 0.0) == 0.0
    assert after(1.0, 1e-9) == 1e-9, "no level was stopped, so a lower threshold changes nothing"
    assert after(0.0, 1.0) == 1.0
    policy, certain = DynamicDepth(Chain(4, "top-k"), 0.9), torch.tensor([0.0, 1.0, 0.0])
    for probs, threshold in ((table(4, 3), 0.899), (lambda path: certain, 0.899)):
        tree, _ = grow(policy, probs)
        policy.observe(outcome(tree.depth))
        assert policy.threshold == pytest.approx(threshold), "what was stopped in an earlier round is past"


def toy(seed=7, vocab=3):
    return ModelDrafter(ToyBackend(ToyModel(vocab, seed=seed)))


@parametrize_with_checks(
    [
        Chain(3, stop_below=0.5),
        Chain(2, "with-replacement", 0.6),
        Beam(2, 3),
        Beam(3, 3, 4),
        BeamPaths(2, 3),
        ExpandRerank(3, 2, 2, 5),
        DynaTree(2, 3, 2, 4),
        DynaTree(2, 3, 2, 4, law="without-replacement", threshold=0.2),
        DynaTree(1, 2, 2, 4, law="with-replacement"),
        DynaTree(1, 2, 2, 3, law="per-drafter"),
        DynaTree(1, 2, 3, 3, law="top-and-sample"),
        DynamicDepth(Chain(3), 0.5),
        DynamicDepth(DySpec(4), 0.6),
        DynamicDepth(FixedTree(2, 2, 4), 0.7),
        DynamicDepth(FixedTree(2, 2, 3, law="per-drafter"), 0.4),
        DynamicDepth("expand-rerank", 0.9, 2),
    ],
    models=5,
)
def test_law_p_and_law_v(check):
    check()


@pytest.mark.parametrize(
    ("policy", "drafter", "tokens"),
    [
        (DynaTree(1, 3, 2, 3, warmup=1), toy(), 4),
        (DynaTree(1, 2, 2, 2, warmup=1, law="without-replacement"), toy(), 3),
        (DynamicDepth(Chain(2), 0.6), toy(), 3),
        (DynamicDepth(FixedTree(1, 2, law="per-drafter"), 0.6), Several([toy(), toy(8)]), 2),
    ],
    ids=["DynaTree", "DynaTree, drawn", "dynamic depth", "dynamic depth, several drafters"],
)
def test_learning_keeps_the_targets_law_over_several_rounds(policy, drafter, tokens):
    assert policy.learns
    target = ToyModel(3, seed=1)
    found = assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter, tokens=tokens)
    assert found.expected_tokens > 1


EVERY = [
    Chain(4, "top-k", 0.1),
    Beam(9, 3),
    BeamPaths(9, 3),
    ExpandRerank(3, 9, 9, 40),
    DynaTree(branching=9, unsure=0.9, threshold=0.0),
    DynamicDepth(),
]


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: type(policy).__name__)
def test_a_node_has_no_more_children_than_tokens_with_a_chance(policy):
    for live, vocab in ((2, 6), (1, 2), (3, 3)):
        tree, _ = grow(policy, table(vocab, 5, live))
        assert max(len(tree.children(v)) for v in range(len(tree))) <= live


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: type(policy).__name__)
def test_a_drafter_with_nothing_to_propose_leaves_a_bare_root(policy):
    assert len(grow(policy, lambda path: torch.zeros(4))[0]) == 1


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 200))
def test_budgets_hold_at_any_size(seed, budget):
    for policy in (Beam(5, 5, budget), ExpandRerank(4, 4, 4, budget), DynaTree(budget=budget, threshold=0.0)):
        tree, _ = grow(policy, table(5, seed))
        assert len(tree) - 1 <= budget


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Chain(3, stop_below=1.1), "stop_below is 1.1"),
        (lambda: Beam(0), "width is 0"),
        (lambda: Beam(2, 0), "steps is 0"),
        (lambda: Beam(2, 2, 0), "budget is 0"),
        (lambda: BeamPaths(length=0), "length is 0"),
        (lambda: ExpandRerank(budget=0), "budget is 0"),
        (lambda: ExpandRerank(branching=0), "branching is 0"),
        (lambda: DynaTree(budget=0), "budget is 0"),
        (lambda: DynaTree(depth=8), "max_depth is 8 and depth is 8; give a max_depth above depth"),
        (lambda: DynaTree(unsure=0.95), "confident is 0.9 and unsure is 0.95; confident must not be less"),
        (lambda: DynaTree(stop_below=0.6), "deep is 0.5 and stop_below is 0.6"),
        (lambda: DynaTree(confident=1.5), r"confident is 1.5; give a number in \[0, 1\]"),
        (lambda: DynaTree(threshold=-0.1), "threshold is -0.1"),
        (lambda: DynamicDepth(stop_below=2), "stop_below is 2"),
        (lambda: DynamicDepth(depth=0), "depth is 0"),
        (lambda: DynamicDepth("chian"), "did you mean 'chain'"),
    ],
)
def test_options_out_of_range_name_the_value(make, message):
    with pytest.raises(InvalidInput if "mean" not in message else Exception, match=message):
        make()
