"""Law P by enumeration: what policies draw, what they declare, and what they ask for."""

from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    Deterministic,
    Request,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.testing import ToyModel, assert_proposal_law
from draftwood.testing.models.small_strategies import small_policies, toy_drafter
from draftwood.testing.models.tree_shapes import BRANCHING, ShapedPolicy

DRAFTS = ToyModel(3, seed=1), ToyModel(3, seed=2)
SPARSE = ToyModel(3, seed=3, sparsity=0.5), ToyModel(3, seed=4, sparsity=0.5)


def prove(policy, drafts=DRAFTS, **options):
    assert_proposal_law(policy, toy_drafter(policy, *drafts), prompt=(2, 0), **options)


@pytest.mark.parametrize("named", small_policies(), ids=str)
def test_registered_policies_draw_what_they_declare(named):
    prove(named.strategy)
    prove(named.strategy, SPARSE, temperature=0.5)


@attrs.frozen
class Changed(TreePolicy):
    """A correct tree of two drawn children whose proposals are `declared` afterwards."""

    declared: Any
    laws = frozenset({WithoutReplacement, WithReplacement, Deterministic})

    def grow(self, root, rng):
        tree = yield from FixedTree(1, 2).grow(root, rng)
        return attrs.evolve(tree, proposals=self.declared(tree))


def sharper(tree):
    p = tree.proposals[0].p ** 2
    return {0: WithoutReplacement(p / p.sum())}


def drawn_with_replacement(tree):
    return {0: WithReplacement(tree.proposals[0].p)}


def top_declared(tree):
    best = tree.proposals[0].p.topk(2).indices.tolist()
    return {0: Deterministic(best, 3)}


@pytest.mark.parametrize("declared", [sharper, drawn_with_replacement, top_declared])
def test_a_proposal_that_was_not_drawn_from_is_named_with_both_laws(declared):
    message = (
        r"breaks law P after \(0,\).*: child \d, where it exists, has the law \[.*\], and .* declares \["
    )
    with pytest.raises(AssertionError, match=message):
        prove(Changed(declared))


def test_point_masses_may_be_declared_once_tokens_are_known():
    prove(Changed(lambda tree: {0: Deterministic(tree.tokens[1:].tolist(), 3)}))


def test_a_node_with_children_and_no_proposal_is_named():
    with pytest.raises(AssertionError, match=r"names no proposal for node 0 after \(0,\), which has"):
        prove(Changed(lambda tree: {}))


class OneLaw(FixedTree):
    laws = frozenset({WithReplacement})


def test_a_law_that_is_not_declared_is_named():
    with pytest.raises(AssertionError, match=r"declares WithoutReplacement after .*none of its laws \["):
        prove(OneLaw(1, 2))


class Calm(DySpec):
    adaptive = False


class Hidden(TreePolicy):
    """Says nothing of what its trees are."""

    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        return (yield from ShapedPolicy(BRANCHING["two"], WithoutReplacement, adaptive=True).grow(root, rng))


def test_an_adaptive_policy_obeys_the_law():
    prove(ShapedPolicy(BRANCHING["two"], WithoutReplacement, adaptive=True))


@pytest.mark.parametrize("policy", [Calm(3), Hidden()], ids=["DySpec", "own"])
def test_a_policy_that_hides_that_it_is_adaptive_is_named(policy):
    message = r"declares adaptive = False, but after \(0,.*declare adaptive = True"
    with pytest.raises(AssertionError, match=message):
        prove(policy)


@attrs.frozen
class Asks(TreePolicy):
    """Yields what it is told to."""

    asked: Any
    result: object = None
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        for request in self.asked:  # noqa: UP028 (a list cannot be sent to)
            yield request
        return self.result or TreeBuilder(root).finish()


def request(tokens, parents):
    return Request(torch.tensor(tokens), torch.tensor(parents))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (Asks(["nodes"]), "yielded str; yield what TreeBuilder.open or .request gives"),
        (Asks([request([1], [-1])]), "first asks for token 1 with parent -1; number 0 is the root 0"),
        (Asks([request([0], [-1]), request([1], [1])]), r"node 1 \(token 1\) with parent 1; its parent must"),
        (Asks([request([0], [-1]), request([1], [-1])]), r"node 1 \(token 1\) with parent -1"),
        (Asks([], "tree"), "returned str; it must return a TokenTree"),
        (
            Asks([], TokenTree(torch.tensor([0, 7]), torch.tensor([-1, 0]))),
            "malformed tree: Node 1 holds token 7",
        ),
        (
            Asks([], TokenTree(torch.tensor([1]), torch.tensor([-1]))),
            "puts token 1 at the root, which holds 0",
        ),
    ],
    ids=range(7),
)
def test_malformed_requests_and_trees_are_named(policy, message):
    with pytest.raises(AssertionError, match=message):
        prove(policy)
