"""The meaning of `adaptive = False`, tested with verifiers that look at several siblings at once."""

import random
from typing import Any

import attrs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwood import Proposal, TreeBuilder, TreePolicy, Verifier, WithoutReplacement, WithReplacement
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.k_sequential import KSequential
from draftwood.strategies.verifiers.optimal_iid import OptimalIID
from draftwood.strategies.verifiers.transport_block import TransportBlock
from draftwood.testing import ToyModel, assert_proposal_law, drawn_trees, joint_law
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.models.toy import ConstantModel
from draftwood.testing.proofs.lossless import target_law
from draftwood.testing.proofs.sibling_counts import assert_counts_settled
from tests.mutations.policy_mistakes import CousinsUndeclared, WinnerUndeclared

PROMPT = (1,)
EXACT = 1e-12
BY_LAW: dict[type[Proposal], list[Verifier]] = {
    WithoutReplacement: [ClassOrderedRejection(), ClassOrderedTraversal()],
    WithReplacement: [KSequential(), OptimalIID(), TransportBlock()],
}


@attrs.frozen
class Whimsical(TreePolicy):
    """Grows by rules that `seed` makes up of all that was drawn before, and by coins.

    With `settled`, the number of a node's children is settled before the first of them is drawn; others are
    drawn in between. Without, the next child of any node may come at any time.
    """

    seed: int
    settled: bool
    law: type = WithoutReplacement
    nodes: int = 3
    depth: int = 2

    @property
    def laws(self):  # type: ignore[override]
        return frozenset({self.law})

    def grow(self, root, rng):
        tree, probs = TreeBuilder(root), dict[int, Any]()
        below, settled = dict[int, Any](), dict[int, Any]()
        (probs[0],), below[0] = (yield tree.request([0])), []
        while len(tree) <= self.nodes:
            rule = random.Random(repr((self.seed, tree.tokens, tree.parents, sorted(settled.items()))))
            owed = {node: count - len(below[node]) for node, count in settled.items()}
            room = self.nodes + 1 - len(tree) - sum(owed.values())
            moves = [(node, 0) for node, count in owed.items() if count]
            new = [node for node in probs if node not in settled] if self.settled else []
            moves += [(node, count) for node in new for count in (1, 2) if count <= room]
            if not self.settled:
                moves = [(node, 0) for node in probs if len(below[node]) < 2]
            stops = rule.random() < 0.15 and not any(owed.values())
            if not moves or stops:
                break
            move = int(rule.random() * len(moves))
            if rule.random() < 0.2 and rng.accept(0.4):
                move = len(moves) - 1
            node, count = moves[move]
            if count:
                settled[node] = count
            left = probs[node].clone()
            if self.law is WithoutReplacement:
                left[[tree.tokens[child] for child in below[node]]] = 0
            child = tree.add(node, rng.choose(left))
            tree.proposals[node] = self.law(probs[node])
            below[node].append(child)
            if tree.depths[child] < self.depth:
                (probs[child],), below[child] = (yield tree.request([child])), []
        return tree.finish()


def declared(policy, seed):
    """The trees of `policy`, its drafter, and how far off the check finds them; 0 where it finds nothing."""
    drafter = toy_drafter(policy, ToyModel(3, seed=seed, sharpness=1.0))
    trees = drawn_trees(policy, drafter, prompt=PROMPT)
    try:
        assert_counts_settled(policy, [(one.weight, one.tree) for one in trees], EXACT)
    except LawBroken as broken:
        return trees, drafter, broken.error
    return trees, drafter, 0.0


def off(policy, trees, drafter, seed):
    """Returns the errors on `trees` of the verifiers that look at several siblings at once."""
    (law,) = policy.laws
    worst = 0.0
    for verifier in BY_LAW[law]:
        target = ToyModel(3, seed=seed + 1, sharpness=1.5)
        joint = joint_law(
            policy, verifier, target=target, drafter=drafter, prompt=PROMPT, rounds=1, trees=trees
        )
        worst = max(worst, joint.error(target_law(target, prompt=PROMPT)))
    return worst


@pytest.mark.parametrize("law", BY_LAW)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_counts_settled_before_the_draw_pass_and_are_served_exactly(law, seed):
    policy = Whimsical(seed, settled=True, law=law)
    trees, drafter, error = declared(policy, seed)
    assert error == 0
    assert off(policy, trees, drafter, seed) <= EXACT


@pytest.mark.parametrize("law", BY_LAW)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_where_the_verifiers_are_off_the_check_says_so(law, seed):
    policy = Whimsical(seed, settled=False, law=law)
    trees, drafter, error = declared(policy, seed)
    assume(off(policy, trees, drafter, seed) > EXACT)
    assert error > EXACT


@pytest.mark.parametrize(
    ("policy", "seed", "where"),
    [
        (WinnerUndeclared(), 1, r"after \(1,\) the children \(\d,.*\) come"),
        (
            CousinsUndeclared(),
            10,
            r"after \(\d, \d\) the children .* and after \(\d, \d\) the children .* come",
        ),
    ],
    ids=["what came below a sibling", "two nodes together"],
)
def test_counts_that_tell_are_named_with_their_nodes(policy, seed, where):
    trees, drafter, error = declared(policy, seed)
    assert error > 1e-4
    assert off(policy, trees, drafter, seed) > 1e-5
    with pytest.raises(LawBroken, match=rf"declares adaptive = False, but {where}.*declare adaptive = True"):
        assert_proposal_law(policy, drafter, prompt=PROMPT)


def test_one_branch_may_count_what_another_has_drawn():
    # A budget in which one branch's children leave room for another's.
    for budget in (3, 4, 5):
        policy = FixedTree(3, (2, 1, 2), budget, 0.3)
        sparse = ToyModel(3, seed=4, sharpness=1.0, sparsity=0.4)
        assert_proposal_law(policy, toy_drafter(policy, sparse), prompt=PROMPT)


def test_a_law_whose_certain_token_does_not_come_is_no_fault():
    # A probability of 1 beside one of 1e-30, which comes all the same where every outcome is visited.
    draft = ConstantModel(3, p=torch.tensor([1e-30, 1.0, 0.0], dtype=torch.float64))
    policy = FixedTree(2, 1, 5)
    assert_proposal_law(policy, toy_drafter(policy, draft), prompt=PROMPT)
