"""Dynamic depth around other policies."""

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import Deterministic, Outcome, TreeBuilder, TreePolicy
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from tests.strategies.tables import grow, path_prob, paths, table

SEEDS = st.integers(0, 10**6)


def outcome(accepted):
    nodes = range(accepted + 1)
    return Outcome(nodes, [0] * len(nodes), extra=0, bonus=False, drafted=20)


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
    sums = [sum(path_prob(probs, path) for path in request) for request in requests]
    levels = next((level for level, sure in enumerate(sums) if sure < stop_below), len(sums))
    assert asked == requests[:levels]
    # EAGLE-2's reranking may leave the deepest level out.
    assert tree.depth == levels or (name == "eagle-2" and tree.depth < levels)


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
    """Goes on with the tokens 1 and 2, whatever the draft says."""

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
        state = policy.first_state()
        for _ in range(rounds):
            tree, _ = grow(policy, table(4, 3), state=state)
            state = policy.observe(state, outcome(round(share * tree.depth)), tree)
        return state.threshold

    assert after(0.0, 0.3) == pytest.approx(0.303)
    assert after(1.0, 0.99) == pytest.approx(0.987)
    assert after(1.0, 0.0) == 0.0
    assert after(1.0, 1e-9) == 1e-9, "no level was stopped, so a lower threshold changes nothing"
    assert after(0.0, 1.0) == 1.0
    policy, certain = DynamicDepth(Chain(4, "top-k"), 0.9), torch.tensor([0.0, 1.0, 0.0])
    state = policy.first_state()
    for probs, threshold in ((table(4, 3), 0.899), (lambda path: certain, 0.899)):
        tree, _ = grow(policy, probs, state=state)
        state = policy.observe(state, outcome(tree.depth), tree)
        assert state.threshold == pytest.approx(threshold), "what was stopped in an earlier round is past"
