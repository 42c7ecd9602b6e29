"""Top-plus-one: its optimum, SpecHub's acceptance, and the law it is drawn by."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import TopThenSample, draw_children
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.top_plus_one import TopPlusOne
from draftwood.strategies.verifiers.top_plus_one_traversal import TopPlusOneTraversal
from draftwood.testing import ToyModel, enumerate_outcomes
from draftwood.testing.proofs.block_efficiency import drawn_trees, one_round_law, optimal_tokens
from tests.strategies.one_level import distributions, on_edges, one_level, pairs_of_distributions, toy


def top_and_rest(draft, count):
    """The fixed tokens of a top-plus-one draft of `count` children and the law of the drawn one."""
    top = [token for token in draft.topk(min(count - 1, len(draft))).indices.tolist() if draft[token] > 0]
    rest = draft.clone()
    rest[top] = 0
    return top, rest / rest.sum() if rest.sum() > 0 else rest


@on_edges
@settings(max_examples=40, deadline=None)
@given(pair=pairs_of_distributions)
def test_top_plus_one_gives_every_token_all_it_can_have(pair):
    target, draft = pair
    for count in (1, 2, 3):
        top, rest = top_and_rest(draft, count)
        best = float(target[top].sum() + torch.minimum(rest, target).sum())
        accepted = one_level(TopPlusOne(), TopThenSample, target, draft, count)[1]
        assert abs(accepted - best) <= 1e-12
        assert accepted >= one_level(RecursiveRejection(), TopThenSample, target, draft, count)[1] - 1e-12


@pytest.mark.parametrize(("vocab", "count"), [(4, 2), (4, 3), (5, 2)])
def test_top_plus_one_is_the_linear_programmes_optimum(vocab, count):
    gained = 0.0
    for seed in range(4):
        target, drafter = ToyModel(vocab, seed=seed, sharpness=0.5 + seed), toy(vocab, seed + 20)
        T, D = target.probs([0]), drafter.backend.model.probs([0])
        best = optimal_tokens(drawn_trees(FixedTree(1, count, law="top-and-sample"), drafter), target=target)
        accepted = one_level(TopPlusOne(), TopThenSample, T, D, count)[1]
        gained += accepted - one_level(RecursiveRejection(), TopThenSample, T, D, count)[1]
        assert abs(1 + accepted - best) <= 1e-9
    assert gained > 1e-3


def spechub_pairs(draft):
    """SpecHub's joint law of (first, second): x, then the top token; or the top token, then x of the rest."""
    (top,), rest = top_and_rest(draft, 2)
    pairs = {(x, top): float(draft[x]) for x in range(len(draft)) if x != top}
    return top, pairs | {(top, x): float(draft[top] * rest[x]) for x in range(len(draft)) if x != top}


@settings(max_examples=40, deadline=None)
@given(pair=pairs_of_distributions.filter(lambda pair: (pair[1] > 0).sum() > 1))
def test_spechub_draws_the_top_token_and_one_of_the_rest_and_accepts_as_much(pair):
    target, draft = pair
    top, pairs = spechub_pairs(draft)
    sets = dict[Any, float]()
    for tokens, weight in pairs.items():
        sets[frozenset(tokens)] = sets.get(frozenset(tokens), 0.0) + weight

    def draw(rng):
        (drawn,) = draw_children(TopThenSample, draft[None], count=2, rng=rng)
        return frozenset(drawn.tokens)

    ours = dict[Any, float]()
    for weight, tokens in enumerate_outcomes(draw):
        ours[tokens] = ours.get(tokens, 0.0) + weight
    assert all(abs(ours.get(tokens, 0.0) - sets[tokens]) <= 1e-12 for tokens in sets)
    # Its transport: every x from both of its pairs, up to T(x); what is left over to the top token.
    served = {x: min(float(target[x]), weight) for (first, x), weight in pairs.items() if first == top}
    for (x, second), weight in pairs.items():
        if second == top:
            served[x] = min(float(target[x]), weight + pairs[top, x])
    hub = min(float(target[top]), 1 - sum(served.values()))
    accepted = one_level(TopPlusOne(), TopThenSample, target, draft, 2)[1]
    assert abs(accepted - hub - sum(served.values())) <= 1e-12


@settings(max_examples=40, deadline=None)
@given(draft=st.integers(2, 4).flatmap(distributions), count=st.integers(1, 4))
def test_top_and_sample_draws_by_its_conditional_law(draft, count):
    def draw(rng):
        return draw_children(TopThenSample, draft[None], count=count, rng=rng)[0]

    total = 0.0
    for weight, drawn in enumerate_outcomes(draw):
        chance = 1.0
        for k, token in enumerate(drawn.tokens):
            law = drawn.proposal.conditional(k, drawn.tokens[:k])
            assert abs(float(law.sum()) - 1) <= 1e-12
            chance *= float(law[token])
        assert abs(chance - weight) <= 1e-12
        assert drawn.chances == draft[drawn.tokens].tolist()
        assert len(set(drawn.tokens)) == len(drawn.tokens) == min(count, int((draft > 0).sum()))
        assert all(draft[token] >= draft[drawn.tokens[-1]] for token in drawn.tokens[:-1])
        total += weight
    assert abs(total - 1) <= 1e-12


@pytest.mark.parametrize("branching", [(2, 2), (3, 1), (2, 1, 1)])
def test_leaf_first_emits_more_of_the_same_trees(branching):
    """The exact expected tokens are at least the token-wise rule's and at most the optimum."""
    gained, policy = 0.0, FixedTree(len(branching), branching, law="top-and-sample")
    for seed in range(3):
        target, drafter = ToyModel(3, seed=seed), toy(3, seed + 40)
        trees = drawn_trees(policy, drafter)
        token_wise, leaf_first = (
            sum(weight * len(tokens) for tokens, weight in one_round_law(trees, judge, target=target).items())
            for judge in (TopPlusOne(), TopPlusOneTraversal())
        )
        assert token_wise - 1e-12 <= leaf_first <= optimal_tokens(trees, target=target) + 1e-9
        gained += leaf_first - token_wise
    assert gained > 1e-3


@pytest.mark.parametrize("count", [1, 2, 3])
def test_leaf_first_is_the_token_wise_rule_on_one_level(count):
    for seed in range(4):
        T, D = ToyModel(4, seed=seed).probs([0]), toy(4, seed + 20).backend.model.probs([0])
        token_wise, leaf_first = (
            one_level(judge, TopThenSample, T, D, count)[1] for judge in (TopPlusOne(), TopPlusOneTraversal())
        )
        assert abs(token_wise - leaf_first) <= 1e-12
