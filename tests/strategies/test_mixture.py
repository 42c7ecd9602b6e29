"""The merged tree of several drafters: against the trees it was merged from, and proved."""

import itertools
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidInput, SpeculativeDecoder, TreePolicy, UnknownStrategy
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.mixture import Mixture
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.sample_and_match import SampleAndMatch
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, parametrize_with_checks
from tests.strategies.tables import grow, paths, several, table

SEEDS = st.integers(0, 10**6)
MEMBERS = {
    "chain": Chain(3),
    "heap": DySpec(6),
    "layers": LayeredDySpec(7),
    "equal siblings": FixedTree(2, 2, law="with-replacement"),
    "top-k": Beam(2, 3),
    "empty": Chain(3, stop_below=1.0),
}


@attrs.frozen
class Keeps(TreePolicy):
    """Grows the tree of `policy`, and keeps it with the requests it took."""

    policy: TreePolicy
    trees: list = attrs.field(factory=list)
    laws = frozenset()

    def grow(self, root, rng):
        growing, requests = self.policy.grow(root, rng), 0
        answer: Any = None
        try:
            while True:
                request = growing.send(answer)
                requests += 1
                answer = yield request
        except StopIteration as finished:
            self.trees.append((finished.value, requests))
            return finished.value


def grown(names, seed, budget=1000):
    """The merged tree, its requests, and every member's tree with the number of its requests."""
    members = [Keeps(MEMBERS[name]) for name in names]
    probs = several(*(table(3, seed + index) for index in range(len(names))))
    tree, requests = grow(Mixture(members, budget), probs, seed)
    return tree, requests, [member.trees[0] for member in members]


NAMES = st.lists(st.sampled_from(sorted(MEMBERS)), min_size=2, max_size=3)


@given(NAMES, SEEDS)
def test_a_path_has_the_children_that_the_trees_give_it_one_tree_after_the_other(names, seed):
    tree, _, members = grown(names, seed)
    expected, laws = dict[Any, Any](), dict[Any, Any]()
    for one, _ in members:
        for node, path in enumerate(paths(one)):
            tokens = one.tokens[one.children(node)].tolist()
            expected.setdefault(path, []).extend(tokens)
            for k in range(len(tokens)):
                laws.setdefault(path, []).append(one.proposals[node].conditional(k, tokens[:k]))
    result = {}
    for node, path in enumerate(paths(tree)):
        # A sibling that repeats an earlier one has nothing below it.
        if path not in result:
            result[path] = tree.tokens[tree.children(node)].tolist()
            for k, law in enumerate(laws.get(path, ())):
                assert torch.equal(tree.proposals[node].conditional(k, result[path][:k]), law)
        else:
            assert not tree.children(node)
    assert result == expected
    assert len(tree) == 1 + sum(len(one) - 1 for one, _ in members)


@given(NAMES, SEEDS)
def test_the_drafters_are_asked_together_and_once_a_node(names, seed):
    _, requests, members = grown(names, seed)
    asked = list(itertools.chain(*requests))
    assert len(set(asked)) == len(asked)
    assert all(path[:-1] in asked[:index] for index, path in enumerate(asked) if index)
    assert len(requests) <= max(1, *(count for _, count in members))


@given(NAMES, SEEDS, st.integers(1, 12))
def test_the_budget_cuts_the_merged_tree_in_the_order_of_its_levels(names, seed, budget):
    whole, _, _ = grown(names, seed)
    tree, _, _ = grown(names, seed, budget)
    assert len(tree) == min(budget + 1, len(whole))
    assert tree.tokens.tolist() == whole.tokens[: len(tree)].tolist()
    assert tree.parents.tolist() == whole.parents[: len(tree)].tolist()


def test_policies_by_name_share_the_budget_and_the_law():
    assert Mixture("chain, dyspec", 7, "top-k").members(2) == [Chain(law="top-k"), DySpec(3, "top-k")]
    assert Mixture(budget=9).members(3) == [LayeredDySpec(3)] * 3
    assert Mixture("beam", 8, "top-k").members(2) == [Beam(budget=4)] * 2
    assert Mixture([Chain(2), "dyspec"], 6).members(2) == [Chain(2), DySpec(3)]
    assert Mixture(budget=1).members(2) == [LayeredDySpec(1)] * 2
    assert Mixture(DySpec(5), 2).members(2) == [DySpec(5)] * 2


def toy(seed):
    return ModelDrafter(ToyBackend(ToyModel(3, seed=seed)))


@parametrize_with_checks(
    [
        Mixture(Chain(2)),
        Mixture([LayeredDySpec(2), Chain(1)]),
        Mixture("chain", 3, "top-k"),
        Mixture([FixedTree(1, 2), Chain(2, "top-k")]),
        Mixture([FixedTree(1, 2, law="with-replacement"), Chain(1)], 3),
        Mixture([Beam(2, 2), DySpec(2)]),
    ],
    models=2,
)
def test_law_p_and_law_v(check):
    check()


@pytest.mark.thorough
@parametrize_with_checks(
    [Mixture(budget=4), Mixture([FixedTree(1, 2, law="with-replacement"), Chain(2)], 4)], models=3
)
def test_law_p_and_law_v_of_larger_trees(check):
    check()


@pytest.mark.parametrize("verifier", [RecursiveRejection(), Traversal(), SampleAndMatch()], ids=str)
@pytest.mark.parametrize(
    "policy",
    [Mixture([FixedTree(2, 2, 3), Chain(2)]), Mixture([FixedTree(1, 2, law="with-replacement"), Chain(2)])],
    ids=["without replacement", "equal siblings"],
)
def test_whatever_judges_several_drafters_keeps_the_targets_law(policy, verifier):
    target = ToyModel(3, seed=1)
    result = assert_lossless(
        policy, verifier, target=target, drafter=Several([toy(2), toy(3)]), tokens=4, rounds=1
    )
    assert result.expected_tokens > 1


def test_three_drafters():
    drafter = Several([toy(2), toy(3), toy(4)])
    assert_lossless(
        Mixture(Chain(1)), RecursiveRejection(), target=ToyModel(3, seed=1), drafter=drafter, tokens=2
    )


def test_several_rounds_with_commits():
    drafter = Several([toy(2), toy(3)])
    assert_lossless(
        Mixture(Chain(2, "top-k")), RecursiveRejection(), target=ToyModel(3, seed=1), drafter=drafter
    )


@pytest.mark.parametrize("law", ["top-k", "without-replacement"])
def test_greedy_text_is_that_of_sequential_decoding_in_any_batch(law):
    target, prompts = ToyModel(5, seed=1), [[1, 2, 3], [0]]
    draft = partial(ToyModel, 5, seed=1, sharpness=1.0)
    drafter = Several([ModelDrafter(ToyBackend(draft(order=order))) for order in (2, 3)])
    decoder = SpeculativeDecoder(ToyBackend(target), drafter, Mixture(law=law, budget=8), Greedy())
    out: Any = decoder.generate(prompts, max_new_tokens=15, return_dict_in_generate=True)
    for prompt, new in zip(prompts, out.tokens, strict=True):
        text = list(prompt)
        for token in new:
            assert token == int(target.logits(text).argmax())
            text.append(token)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixture(budget=0), "budget is 0; give an integer >= 1"),
        (lambda: Mixture(DynaTree()), "learns from the outcomes"),
        (lambda: Mixture("dynamic-depth"), "learns from the outcomes"),
        (lambda: Mixture("fixed-tree", law="per-drafter"), "needs several drafters for one tree"),
        (lambda: Mixture(["chain"] * 3).members(2), "3 policies were given for 2 drafters"),
        (lambda: Mixture(law="with-replacement"), "cannot be drawn by WithReplacement"),
        (lambda: Mixture(()), "0 policies were given for 2 drafters"),
    ],
)
def test_what_cannot_be_mixed_is_refused(make, message):
    with pytest.raises(InvalidInput, match=message):
        make()


def test_a_misspelt_policy_is_refused():
    with pytest.raises(UnknownStrategy, match="did you mean 'chain'"):
        Mixture("chain,chian")
