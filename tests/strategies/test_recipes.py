"""Recipes: what they are made of, on toy models and on the zoo's pair."""

import pytest

from draftwood import IncompatibleStrategy, Recipe, SamplingParams, create, load, registry, zoo
from draftwood.strategies import recipes
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.verifiers.block import Block
from draftwood.testing import ToyBackend, ToyModel, assert_lossless

NAMES = registry.names("recipes")
# Options with which a method's tree is small enough to visit every outcome of a round.
SMALL = {
    "length": 2, "branching": (2, 1), "width": 2, "depth": 2, "budget": 3, "paths": 2, "beams": 2,
    "steps": 2, "max_depth": 3, "shape": ((0,), (1,), (0, 0)),
}  # fmt: skip


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


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("medusa", 63),
        ("rsd-c", 30),
        ("rsd-s", 30),
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
    round_ = next(
        recipe.decoder(target, drafter).stream([prompt], max_new_tokens=64, sampling=sampling, seed=3)
    )
    assert round_.rows[0].outcome.drafted == nodes


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
