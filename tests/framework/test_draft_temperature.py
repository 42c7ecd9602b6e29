"""The draft's temperature with the largest overlap: what is counted, what is chosen, and when it stays."""

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import InvalidInput, SamplingParams, create, load, zoo
from draftwood.methods.draft_temperature import (
    FACTORS,
    Likelihoods,
    Overlaps,
    best_draft_temperature,
    measured_likelihoods,
    measured_overlaps,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.testing import ToyBackend, ToyModel
from tests.strategies.drawn_trees import grow, texts_of

PROMPTS = [[0, 1], [2], [1, 1, 3]]


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), length=st.integers(2, 4))
def test_overlaps_are_those_of_the_draft_at_every_temperature(seed, length):
    draft, target = ToyModel(7, seed=seed, sparsity=0.2), ToyModel(7, seed=seed + 1)
    tree = grow(Chain(length), draft, seed=seed)
    texts = texts_of(tree)
    probs = torch.stack([target.probs(text) for text in texts])
    path = range(1 + seed % length)  # what hangs below is no text of the target's
    overlaps = Overlaps()
    overlaps.add(tree, probs, path)
    asked = [node for node in path if tree.children(node)]
    assert overlaps.positions == len(asked)
    for factor, mean in zip(FACTORS, overlaps.means.tolist(), strict=True):
        drawn = [torch.softmax(draft.logits(texts[node]) / factor, -1) for node in asked]
        each = [float(torch.minimum(d, probs[node]).sum()) for d, node in zip(drawn, asked, strict=True)]
        assert mean == pytest.approx(sum(each) / len(each), abs=1e-12)


@pytest.mark.parametrize("sharper", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_a_draft_that_differs_in_temperature_alone_is_made_equal(sharper, temperature):
    target, draft = ToyModel(7, seed=3), ToyModel(7, seed=3, sharpness=1.5 * sharper)
    pair = (ToyBackend(target), ModelDrafter(ToyBackend(draft)))
    overlaps = measured_overlaps(*pair, PROMPTS, temperature=temperature, tokens=12)
    assert overlaps.best == sharper
    assert float(overlaps.means.max()) == pytest.approx(1)
    found = best_draft_temperature(*pair, PROMPTS, temperature=temperature, tokens=12)
    assert found == pytest.approx(sharper * temperature)


def test_a_gain_that_may_be_noise_changes_nothing():
    overlaps = Overlaps()
    target, draft = ToyModel(7, seed=3), ToyModel(7, seed=3, sharpness=1.5 * 1.04)
    tree = grow(Chain(3), draft)
    overlaps.add(tree, torch.stack([target.probs(text) for text in texts_of(tree)]), range(len(tree)))
    assert overlaps.means.max() > overlaps.means[FACTORS.index(1.0)]
    assert overlaps.best == 1.0
    assert Overlaps().best == 1.0


@pytest.mark.parametrize(("factor", "positions", "kept"), [(1.0, 12, (0.85, 1.0)), (0.6, 300, (0.0, 0.1))])
def test_what_few_positions_say_by_chance_changes_nothing(factor, positions, kept):
    """The target chooses as the draft would at `factor` times its temperature."""
    tree, texts, stays = grow(Chain(1), ToyModel(5, seed=1)), 40 if positions < 100 else 10, 0
    follows = torch.softmax(tree.proposals[0].conditional(0, ()).double().log() / factor, -1)
    for seed in range(texts):
        drawn, counted = torch.Generator().manual_seed(seed), Likelihoods()
        for choice in torch.multinomial(follows, positions, replacement=True, generator=drawn):
            counted.add(tree, torch.eye(5, dtype=torch.float64)[choice].expand(2, 5), [0])
        stays += counted.best == 1.0
    assert kept[0] <= stays / texts <= kept[1]


def test_a_drafter_that_has_no_temperature_keeps_the_targets():
    target = ToyModel(7, seed=3)
    drafter = PromptLookup(vocab_size=7)
    found = best_draft_temperature(ToyBackend(target), drafter, PROMPTS, temperature=0.8, tokens=12)
    assert found == 0.8


def test_the_draft_that_was_made_for_temperature_0_is_drawn_from_at_a_higher_one():
    """llama-draft was distilled towards the target's best token, llama-draft-sampled towards its samples."""
    prompt = zoo.tokenizer()("Question: Tom has 3 boxes with 12 apples each. How many are there?\nAnswer:")
    target = load(zoo.load("llama-7m"))

    def gain(draft: str) -> float:
        found = measured_overlaps(target, zoo.load(draft), [prompt["input_ids"]] * 4, temperature=0.6)
        return float(found.means[FACTORS.index(1.0) + 6] - found.means[FACTORS.index(1.0)])

    assert gain("llama-draft") > 0 > gain("llama-draft-sampled")


def test_overlaps_at_temperature_0_are_refused():
    target = ToyBackend(ToyModel(7, seed=3))
    with pytest.raises(InvalidInput, match="temperature=0: overlaps are of tokens that are drawn"):
        measured_overlaps(target, ModelDrafter(target), PROMPTS, temperature=0)


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), factor=st.sampled_from(FACTORS))
def test_the_likeliest_temperature_is_the_one_that_the_targets_choices_follow(seed, factor):
    draft = torch.softmax(0.5 * ToyModel(5, seed=seed).logits((0,)).double(), -1)
    at = [torch.softmax(draft.log() / one, -1) for one in FACTORS]
    counted, choices = Likelihoods(), torch.eye(5, dtype=torch.float64)
    follow = at[FACTORS.index(factor)]
    means = [float(sum(follow[y] * counted.worth(choices[y], one) for y in range(5))) for one in at]
    assert max(means) == pytest.approx(means[FACTORS.index(factor)])


def test_a_draft_that_knows_the_targets_choice_is_taken_as_sure_of_it():
    target = ToyModel(7, seed=3)
    pair = (ToyBackend(target), ModelDrafter(ToyBackend(target)))
    likelihoods = measured_likelihoods(*pair, PROMPTS, tokens=12)
    assert likelihoods.best == FACTORS[0]
    assert likelihoods.positions > 30
    assert best_draft_temperature(*pair, PROMPTS, temperature=0, tokens=12) == FACTORS[0]
    # One of tokens that it never gives has no temperature by which it would know them.
    assert best_draft_temperature(pair[0], PromptLookup(vocab_size=7), PROMPTS, temperature=0) == 1.0


def test_at_temperature_0_trees_of_likely_paths_write_more_at_the_fitted_one():
    texts = ["Question: Tom has 3 boxes with 12 apples each. How many are there?\nAnswer:", "Dear Sir,"]
    texts += ["def main():", "The history of the town begins with a river."]
    prompts = [zoo.tokenizer()(text)["input_ids"] for text in texts]
    target, drafter = load(zoo.load("llama-7m")), zoo.load("llama-draft")
    best = best_draft_temperature(target, drafter, prompts, temperature=0)
    assert 0.5 < best < 0.95

    def rounds(draft_temperature: float) -> int:
        recipe = attrs.evolve(
            create("recipes", "opt-tree", {"budget": 8}), draft_temperature=draft_temperature
        )
        greedy = SamplingParams(temperature=0)
        out = recipe.decoder(target, drafter).generate(
            prompts,
            max_new_tokens=64,
            eos_token_id=[],
            sampling=greedy,
            draft_sampling=recipe.draft_sampling(greedy),
            return_dict_in_generate=True,
        )
        return int(out.statistics.target_calls)

    assert rounds(best) < rounds(1.0)
