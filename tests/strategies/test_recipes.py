"""Recipes: what they are made of, on toy models and on the zoo's pair."""

from typing import Any

import pytest

from draftwood import (
    Deterministic,
    IncompatibleStrategy,
    InvalidInput,
    Recipe,
    SamplingParams,
    TopThenSample,
    WithReplacement,
    create,
    load,
    zoo,
)
from draftwood.protocols import registry
from draftwood.strategies import recipes
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.redrafter import BeamPaths
from draftwood.strategies.policies.sequoia import ZOO_PAIR, Sequoia
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.policies.svip import SVIP
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.greedy_multi_path import GreedyMultiPath
from draftwood.strategies.verifiers.k_sequential import KSequential
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.top_plus_one import TopPlusOne
from draftwood.strategies.verifiers.top_plus_one_traversal import TopPlusOneTraversal
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel, assert_lossless

NAMES = registry.names("recipes")
# Options with which a method's tree is small enough to visit every outcome of a round.
SMALL = {
    "length": 2, "branching": (2, 1), "width": 2, "depth": 2, "budget": 3, "paths": 2, "beams": 2,
    "steps": 2, "max_depth": 3, "trunk": 1, "shape": ((0,), (1,), (0, 0)),
}  # fmt: skip
EIGHT = (1, 1, 3, 1, 1, 1, 1, 1)
DELAYED = (
    (0,),
    (0, 0),
    *((0, 0, path, *(0,) * below) for path in range(4) for below in range(2)),
)
ROOM = 10**6  # more nodes than any such tree has
# What the papers' tables name: the policy, the verifier, and what else is not the usual.
PAPERS = {
    "leviathan": (Chain(5), RecursiveRejection()),
    "block": (Chain(8), Block()),
    "draft-verify": (DynamicDepth(Chain(12), 0.6, target=0.9), RecursiveRejection(), "layer-skip"),
    "prompt-lookup": (Chain(10, Deterministic), RecursiveRejection(), "prompt-lookup"),
    "rest": (LayeredDySpec(64, law=Deterministic), RecursiveRejection(), "retrieval"),
    "suffix-decoding": (
        LayeredDySpec(32, threshold=0.02, law=Deterministic),
        RecursiveRejection(),
        "suffix-cache",
        1.0,
    ),
    "spectr": (IndependentPaths(8, 8), KSequential()),
    "gbv": (IndependentPaths(4, 4), GreedyMultiPath()),
    "delayed-expansion": (StaticTree(DELAYED, WithReplacement), Traversal()),
    "specinfer": (FixedTree(8, EIGHT, ROOM, law=WithReplacement), RecursiveRejection()),
    "rsd-c": (FixedTree(4, (2, 2, 2, 2), ROOM), RecursiveRejection()),
    "rsd-s": (StochasticBeam(6, 5), RecursiveRejection()),
    "traversal": (FixedTree(4, (2, 2, 2, 2), ROOM), Traversal()),
    "class-ordered": (FixedTree(4, (2, 2, 2, 2), ROOM), ClassOrderedTraversal()),
    "class-ordered-sequoia": (Sequoia(64, 10, ZOO_PAIR), ClassOrderedTraversal()),
    "race": (StaticTree("race-64", sort=True), RaceTraversal()),
    "spechub": (FixedTree(3, (2, 2, 2), ROOM, law=TopThenSample), TopPlusOne()),
    "sequoia": (Sequoia(64, 10, ZOO_PAIR), RecursiveRejection(), "model", 0.6),
    "dyspec": (LayeredDySpec(64), RecursiveRejection(), "model", 0.6),
    "dyspec-threshold": (ThresholdDySpec(768, 0.001), RecursiveRejection(), "model", 0.6),
    "dynatree": (DynaTree(5, 8, budget=256), RecursiveRejection()),
    "fixed-tree": (FixedTree(5, 2, 256, law=Deterministic), RecursiveRejection()),
    "medusa": (StaticTree("medusa", Deterministic), RecursiveRejection(), "medusa"),
    "redrafter": (BeamPaths(45, 5), RecursiveRejection()),
    "eagle2": (ExpandRerank(6, 10, 10, 59), RecursiveRejection()),
    "dynamic-depth": (DynamicDepth(ExpandRerank(11, 10, 10, 59), 0.3, history=False), RecursiveRejection()),
    "opt-tree": (LayeredDySpec(50, law=Deterministic), RecursiveRejection()),
    "ddtree": (LayeredDySpec(64, law=Deterministic), RecursiveRejection()),
    "svip": (SVIP(16, 0.8), RecursiveRejection(), "model", 1.0),
    "lookahead": (LayeredDySpec(16, law=Deterministic), RecursiveRejection(), "lookahead"),
    "specexec": (Beam(32, 16, 128), RecursiveRejection()),
    "token-recycling": (LayeredDySpec(64, law=Deterministic), RecursiveRejection(), "token-recycling"),
    "univer": (FixedTree(4, (2, 2, 2, 2), ROOM, law=TopThenSample), TopPlusOneTraversal()),
    "stree": (StaticTree("stree-a"), RecursiveRejection()),
    "stree-beam": (Beam(3, 4), RecursiveRejection()),
}


def build(name, **options):
    known = registry.options("recipes", name)
    chosen = {option: value for option, value in options.items() if option in known}
    if "branching" in chosen and isinstance(known["branching"].default, int):
        chosen["branching"] = 2
    return create("recipes", name, chosen)


@pytest.fixture(scope="module")
def pair():
    return load(zoo.path("llama-7m")), create("drafters", "model", {"backend": zoo.load("llama-draft")})


@pytest.fixture(scope="module")
def prompt():
    return zoo.tokenizer()("def area(width, height):")["input_ids"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_every_recipe_keeps_the_targets_law(name, temperature):
    recipe = build(name, **SMALL, temperature=temperature)
    assert recipe.verifier.lossless
    drafter = create("drafters", "model", {"backend": ToyBackend(ToyModel(3, seed=2))})
    assert_lossless(
        recipe.policy,
        recipe.verifier,
        target=ToyModel(3, seed=1),
        drafter=drafter,
        rounds=1,
        temperature=temperature,
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_names_its_source_and_the_settings_of_its_paper(name):
    words = [line.strip().split(": ")[0] for line in registry.get("recipes", name).__doc__.splitlines()]
    assert words.count("Source") == words.count("Settings") == 1
    assert build(name).drafter in registry.names("drafters")


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_is_its_papers_method(name):
    policy, verifier, *other = PAPERS[name]
    drafter = other[0] if other else "model"
    draft_temperature = other[1] if len(other) > 1 else None
    result = build(name)
    assert (repr(result.policy), repr(result.verifier)) == (repr(policy), repr(verifier))
    assert (result.drafter, result.draft_temperature) == (drafter, draft_temperature)


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "temperature" in registry.options("recipes", name)]
)
def test_at_temperature_0_the_most_likely_tokens_are_drafted(name):
    recipe = build(name, temperature=0)
    assert recipe.policy.laws == {Deterministic}
    assert isinstance(recipe.verifier, Greedy)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("medusa", 63),
        ("rsd-c", 30),
        ("rsd-s", 30),
        ("race", 64),
        ("sequoia", 64),
        ("dyspec", 64),
        ("stree", 12),
        ("eagle2", 59),
    ],
)
def test_the_papers_trees_have_the_papers_sizes(name, nodes, pair, prompt):
    target, drafter = pair
    recipe = build(name)
    sampling = SamplingParams(temperature=1.0)
    rounds = recipe.decoder(target, drafter).stream([prompt], max_new_tokens=64, sampling=sampling, seed=3)
    round_ = next(one for one in rounds if not one.prefill)
    assert round_.rows[0].outcome.drafted == nodes


@pytest.mark.parametrize(
    ("budget", "nodes"), [(None, 64), (1, 1), (3, 3), (4, 4), (15, 8), (16, 16), (1000, 64)]
)
def test_a_race_takes_the_largest_shape_that_its_budget_holds(budget, nodes):
    policy: Any = recipes.race(budget).policy
    assert policy.sort
    assert len(policy.shape) == nodes


def test_a_budget_that_the_shape_does_not_meet_is_refused():
    with pytest.raises(InvalidInput, match="shape has 3 nodes and budget is 2; leave one of the two out"):
        recipes.race(2, "2/1")
    with pytest.raises(InvalidInput, match="budget is 0"):
        recipes.race(0)


def test_the_drafts_own_temperature():
    sampling = SamplingParams(temperature=1.0, top_k=5)
    assert recipes.dyspec().draft_sampling(sampling) == SamplingParams(temperature=0.6, top_k=5)
    assert recipes.rsd_s().draft_sampling(sampling) is None


def test_typical_acceptance_is_lossy_and_says_so():
    assert not recipes.medusa(typical=True).verifier.lossless


def test_a_recipe_whose_parts_do_not_fit_is_refused():
    assert Recipe(Chain(), Block()).drafter == "model"
    with pytest.raises(IncompatibleStrategy, match="Block"):
        Recipe(IndependentPaths(), Block())
