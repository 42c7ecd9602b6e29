"""Policies of a shape fixed beforehand, and independent paths."""

import itertools
from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import CounterRandomness, InvalidInput
from draftwood.protocols import policy_states
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.shapes import SHAPES, as_shape, as_text
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import (
    ToyBackend,
    ToyModel,
    assert_lossless,
    assert_proposal_law,
)
from tests.strategies.drawn_trees import drawn, grow, places_of, texts_of

seeds = st.integers(0, 10**6)


@st.composite
def shapes(draw, most=8, wide=4):
    """Places of a random shape; ranks may be skipped."""
    indices = [()]
    for _ in range(draw(st.integers(1, most))):
        index = (*draw(st.sampled_from(indices)), draw(st.integers(0, wide - 1)))
        if index not in indices:
            indices.append(index)
    return draw(st.permutations(indices[1:]))


@st.composite
def shapes_of_first_ranks(draw, most=8, wide=3):
    """Places of a random shape that skips no rank."""
    indices = [()]
    for _ in range(draw(st.integers(1, most))):
        above = draw(st.sampled_from(indices))
        rank = sum(index[:-1] == above for index in indices if index)
        if rank < wide:
            indices.append((*above, rank))
    return draw(st.permutations(indices[1:]))


@given(shapes(), seeds)
def test_a_static_tree_of_top_k_holds_the_tokens_of_its_ranks(shape, seed):
    model = ToyModel(4, seed=seed, sparsity=0.3)
    tree = grow(StaticTree(shape, "top-k"), model)
    expected = dict[Any, Any]()
    for index in as_shape(shape):
        above = expected.get(index[:-1], (0,) if len(index) == 1 else None)
        if above is not None:
            p = model.probs(above)
            token = int(p.argsort(descending=True)[index[-1]])
            if p[token] > 0:
                expected[index] = (*above, token)
    assert sorted(texts_of(tree)[1:]) == sorted(expected.values())


@given(shapes(wide=3), seeds, st.sampled_from(["without-replacement", "with-replacement"]))
def test_a_drawn_static_tree_has_the_numbers_of_children_of_its_shape(shape, seed, law):
    shape = as_shape(shape)
    tree = grow(StaticTree(shape, law), ToyModel(4, seed=seed), seed=seed)
    assert len(tree) == len(shape) + 1
    counts = Counter(index[:-1] for index in shape)
    below: dict[Any, Any] = {(): ()}  # from a place in the tree to that in the shape
    for index in places_of(tree):
        ranks = sorted(known[-1] for known in shape if known[:-1] == below[index[:-1]])
        below[index] = (*below[index[:-1]], ranks[index[-1]])
    result = Counter(index[:-1] for index in places_of(tree))
    assert {below[index]: count for index, count in result.items()} == counts


@given(shapes_of_first_ranks(wide=2))
def test_parents_and_places_name_one_shape(shape):
    indices = as_shape(shape)
    numbers = {index: node for node, index in enumerate(((), *indices))}
    parents = [-1, *(numbers[index[:-1]] for index in indices)]
    assert StaticTree(parents) == StaticTree(shape)


@given(shapes_of_first_ranks())
def test_text_and_places_name_one_shape(shape):
    indices = as_shape(shape)
    assert as_shape(as_text(indices)) == indices
    assert "/" in as_text(indices)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2/1,1,1", r"\[1, 1, 1\] at a level of 2 nodes"),
        ("2/0/1", r"\[1\] at a level of 0 nodes"),
        ("2,1", r"\[2, 1\] at a level of 1 nodes"),
        ("2//1", r"\[-1\] at a level of 2 nodes"),
        ("0", "no node below the root"),
    ],
)
def test_a_text_that_is_no_shape_is_refused(text, reason):
    with pytest.raises(InvalidInput, match=reason):
        as_shape(text)


def test_the_named_shapes_have_the_published_sizes():
    # STree, table 3: widest level, depth, tokens with the root. Medusa: 64 nodes for four heads.
    published = {"a": (3, 4, 13), "b": (16, 3, 29), "c": (6, 3, 16), "d": (4, 4, 13), "e": (3, 5, 16)}
    for name, expected in {**{f"stree-{k}": v for k, v in published.items()}, "medusa": (28, 4, 64)}.items():
        levels = Counter(len(index) for index in SHAPES[name])
        assert (max(levels.values()), max(levels), len(SHAPES[name]) + 1) == expected
        assert StaticTree(name) == StaticTree(SHAPES[name])
    assert {(0, 0, 0, 1), (0, 7, 0), (1, 6), (9, 0)} <= set(SHAPES["medusa"])


@given(st.integers(1, 4), st.integers(1, 4), seeds)
def test_independent_paths_share_the_root_alone(paths, length, seed):
    tree = grow(IndependentPaths(paths, length), ToyModel(3, seed=seed), seed=seed)
    assert len(tree) == paths * length + 1
    assert len(tree.children(0)) == paths
    assert all(len(tree.children(node)) <= 1 for node in range(1, len(tree)))
    assert [len(tree.path(leaf)) for leaf in tree.leaves] == [length + 1] * paths


def test_paths_are_independent_texts_of_the_draft():
    model = ToyModel(2, seed=3)
    law = defaultdict[Any, float](float)
    for weight, tree in drawn(IndependentPaths(2, 2), model):
        law[tuple(texts_of(tree)[leaf] for leaf in tree.leaves)] += weight

    def chance(text):
        return float(model.probs(text[:1])[text[1]] * model.probs(text[:2])[text[2]])

    texts = [(0, *rest) for rest in itertools.product(range(2), repeat=2)]
    assert law == pytest.approx({(a, b): chance(a) * chance(b) for a in texts for b in texts}, abs=1e-14)


@given(shapes(), seeds, st.sampled_from(["without-replacement", "with-replacement"]))
def test_sorted_siblings_have_the_subtrees_of_their_ranks_by_probability(shape, seed, law):
    shape = as_shape(shape)
    model = ToyModel(4, seed=seed)
    tree = grow(StaticTree(shape, law, sort=True), model, seed=seed)
    below: dict[int, Any] = {0: ()}  # the place in the shape of every node
    for node, text in enumerate(texts_of(tree)):
        children = tree.children(node)
        ranks = sorted(known[-1] for known in shape if known[:-1] == below[node])
        assert len(children) == len(ranks)
        p = model.probs(text)
        likeliest = sorted(children, key=lambda child: (-float(p[tree.tokens[child]]), child))
        below |= {child: (*below[node], rank) for child, rank in zip(likeliest, ranks, strict=True)}
    assert sorted(below.values()) == sorted([(), *shape])


SKIPS = ((0,), (2,), (0, 1), (0, 2))

POLICIES = [
    StaticTree(((0,), (1,), (0, 0)), sort=True),
    StaticTree(((0,), (1,), (1, 0), (1, 0, 0)), "with-replacement", sort=True),
    *(
        StaticTree(SKIPS, law)
        for law in ("top-k", "without-replacement", "with-replacement", "top-and-sample")
    ),
    IndependentPaths(2, 2),
    StochasticBeam(2, 2),
    StochasticBeam(3, 2),
    Sequoia(4, 2, (0.4, 0.3)),
]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_the_children_follow_their_law_and_keep_the_targets(policy):
    for seed in range(2):
        drafter = ModelDrafter(ToyBackend(ToyModel(3, seed=seed, sparsity=0.2 * seed)))
        assert_proposal_law(policy, drafter)
        target = ToyModel(3, seed=seed + 7)
        assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter, rounds=1)
    assert policy.laws <= {type(law) for law in grow(policy, ToyModel(3, seed=1)).proposals.values()}


@pytest.mark.parametrize("verifier", [Traversal(), ClassOrderedTraversal(), RaceTraversal()], ids=str)
def test_subtrees_that_go_by_probability_keep_the_targets_law(verifier):
    policy = StaticTree(((0,), (1,), (0, 0), (0, 1), (1, 0)), sort=True)
    for seed in range(3):
        drafter = ModelDrafter(ToyBackend(ToyModel(3, seed=seed, sparsity=0.1 * seed)))
        assert_lossless(policy, verifier, target=ToyModel(3, seed=seed + 7), drafter=drafter, rounds=1)


@pytest.mark.parametrize(
    ("policy", "branches"),
    [
        (StaticTree(((0,), (0, 0))), False),
        (StaticTree(((0,), (0, 0), (0, 1))), True),
        (IndependentPaths(1, 3), False),
        (StochasticBeam(1, 3), False),
        (Sequoia(3, 3, (0.9,)), False),
        (Sequoia(3, 3, (0.5, 0.4)), True),
    ],
    ids=str,
)
def test_a_chain_says_so(policy, branches):
    assert policy.branches == branches


@pytest.mark.parametrize("live", [1, 2, 3, 6])
@pytest.mark.parametrize("rows", [1, 3])
def test_rows_where_tokens_are_missing_grow_as_each_alone(live, rows):
    policy, seeds = StaticTree(((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))), range(5, 5 + rows)
    table = torch.rand(7, 7, generator=torch.Generator().manual_seed(live), dtype=torch.float64)
    # The first tokens have fewer to follow than the shape has room for, so that it shows on some level.
    for token, row in enumerate(table):
        row[max(live, 2 * (token % 3)) :] = 0

    def grown(rngs):
        growth = policy_states.growth(policy, [1] * len(rngs), rngs, [None] * len(rngs))
        while growth.requests is not None:
            growth.answer(table[growth.requests.tokens])
        return growth.trees()

    def streams():
        return [CounterRandomness.seeded(seed) for seed in seeds]

    together, alone = streams(), streams()
    trees = grown(together)
    for tree, own, rng in zip(trees, alone, together, strict=True):
        (expected,) = grown([own])
        assert tree.tokens.tolist() == expected.tokens.tolist()
        assert tree.parents.tolist() == expected.parents.tolist()
        assert own.used == rng.used
