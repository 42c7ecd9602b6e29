"""The benchmark against the exact optimum: trees drawn as they are seen, windows computed once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.as_seen import by_shape, expected_as_seen
from benchmarks.grafted import grafted_trees
from benchmarks.optimum import SHAPES, Shape, contenders, levels
from benchmarks.remembered import remembered_windows
from draftwood.strategies.verifiers.window import Window
from draftwood.testing import ToyModel, drawn_trees, one_round
from draftwood.testing.pairs import toy_drafter

SMALL = {
    "[2,1]": SHAPES["[2,1]"],
    "[2,2]": levels(2, 2, 2),
    "DySpec, 3 nodes": Shape(3, "dyspec", {"budget": 3}),
    "i.i.d. 2 x 2": levels(3, 2, 1, law="with-replacement"),
    "top and sample": levels(3, 2, 1, law="top-and-sample"),
}


def drawn(shape, seed, mix):
    target = ToyModel(shape.vocab, seed=2 * seed, sharpness=1.5)
    policy = shape.create()
    draft = ToyModel(shape.vocab, seed=2 * seed + 1, sharpness=1.0, near=target, mix=mix)
    return target, policy, drawn_trees(policy, toy_drafter(policy, draft))


@pytest.mark.parametrize("name", SMALL)
@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), mix=st.sampled_from([0.0, 0.3, 0.6]), data=st.data())
def test_trees_drawn_as_they_are_seen_give_every_verifier_its_expected_tokens(name, seed, mix, data):
    target, policy, trees = drawn(SMALL[name], seed, mix)
    judges = {label: one for label, one in contenders(policy).items() if "luck" not in label}
    judge = judges[data.draw(st.sampled_from(sorted(judges)))]
    law = one_round(trees, judge, target=target)
    wanted = sum(chance * len(emitted) for emitted, chance in law.items())
    assert expected_as_seen(by_shape(trees), judge, target=target) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("label", ["class-ordered-traversal", "class-ordered-traversal, luck 0.5"])
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(levels(3, 3, 1), id="[3,1]"),
        pytest.param(levels(2, 2, 2), id="[2,2]", marks=pytest.mark.thorough),
    ],
)
def test_remembering_windows_changes_no_figure(label, shape):
    target, policy, trees = drawn(shape, random.Random(label).randrange(1000), 0.3)
    judge = contenders(policy)[label]
    wanted = expected_as_seen(by_shape(trees), judge, target=target)
    whole = Window.__dict__["open"], Window.first
    with remembered_windows(most=7):
        assert expected_as_seen(by_shape(trees), judge, target=target) == wanted
        assert Window.first is not whole[1]
    assert (Window.__dict__["open"], Window.first) == whole


@pytest.mark.parametrize(
    "shape", [levels(3, 2, 1, 1), levels(2, 2, 2), levels(2, 2, 2, law="with-replacement")], ids=str
)
def test_grafted_trees_are_the_grown_ones(shape):
    _, policy, grown = drawn(shape, 7, 0.3)
    draft = ToyModel(shape.vocab, seed=15, sharpness=1.0, near=ToyModel(shape.vocab, seed=14), mix=0.3)
    found = by_tokens(grafted_trees(policy, draft))
    wanted = by_tokens(grown)
    assert found.keys() == wanted.keys()
    for key, (weight, laws) in wanted.items():
        assert found[key][0] == pytest.approx(weight, abs=1e-14)
        assert found[key][1] == laws


def by_tokens(trees):
    """Weight and laws of every tree, by its tokens and parents."""
    return {
        (*one.tree.tokens.tolist(), *one.tree.parents.tolist()): (
            one.weight,
            {node: (type(law), tuple(law.p.tolist())) for node, law in one.tree.proposals.items()},
        )
        for one in trees
    }
