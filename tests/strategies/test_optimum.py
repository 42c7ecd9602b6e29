"""The benchmark against the exact optimum: trees whose nodes are drawn when they are looked at."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.research.expected_tokens import by_shape, expected_tokens
from benchmarks.research.optimum import SHAPES, Shape, contenders, levels
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyModel, drawn_trees, one_round_law, optimal_tokens
from draftwood.testing.models.small_strategies import toy_drafter

SMALL = {
    "[2,1]": SHAPES["[2,1]"],
    "[2,2]": levels(2, 2, 2),
    "DySpec, 3 nodes": Shape(3, "dyspec", {"budget": 3}),
    "i.i.d. 2 x 2": levels(3, 2, 1, law="with-replacement"),
    "top and sample": levels(3, 2, 1, law="top-and-sample"),
}


def pair(shape, seed, mix):
    target = ToyModel(shape.vocab, seed=2 * seed, sharpness=1.5)
    return target, ToyModel(shape.vocab, seed=2 * seed + 1, sharpness=1.0, near=target, mix=mix)


def drawn(shape, seed, mix):
    target, draft = pair(shape, seed, mix)
    policy = shape.create()
    return target, policy, drawn_trees(policy, toy_drafter(policy, draft))


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), mix=st.sampled_from([0.0, 0.3, 0.6]), data=st.data())
def test_trees_drawn_as_they_are_seen_give_every_verifier_its_expected_tokens(name, seed, mix, data):
    target, policy, trees = drawn(SMALL[name], seed, mix)
    judges = contenders(policy)
    judge = judges[data.draw(st.sampled_from(sorted(judges)))]
    law = one_round_law(trees, judge, target=target)
    expected = sum(chance * len(emitted) for emitted, chance in law.items())
    assert expected_tokens(by_shape(trees), judge, target=target) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", ["[2,1]", "[2,2]"])
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), mix=st.sampled_from([0.0, 0.3, 0.6]), data=st.data())
def test_trees_worked_out_by_level_give_what_all_of_them_give(name, seed, mix, data):
    shape = SMALL[name]
    target, policy, trees = drawn(shape, seed, mix)
    by_level = shape.level_trees(pair(shape, seed, mix)[1])
    assert by_level is not None
    sets = by_level.sets()
    assert len(sets) < len(trees)
    assert sum(one.weight for one in sets) == pytest.approx(1, abs=1e-12)
    assert optimal_tokens(sets, target=target) == pytest.approx(
        optimal_tokens(trees, target=target), abs=1e-9
    )
    judges = contenders(policy)
    label = data.draw(st.sampled_from(sorted(judges)))
    judge, expected = judges[label], expected_tokens(by_shape(trees), judges[label], target=target)
    if isinstance(judge, TreeWalk):
        assert by_level.expected_tokens(judge, target) == pytest.approx(expected, abs=1e-12)
    else:
        assert label == "sample-and-match"
        assert expected_tokens(by_shape(sets), judge, target=target) == pytest.approx(expected, abs=1e-12)
