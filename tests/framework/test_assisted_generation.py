"""The exact law of transformers' assisted generation: of its sampler, and of all of `generate`."""

import copy
from typing import Any
from unittest import mock

import pytest
import torch
import transformers as hf
from transformers.generation import utils

from draftwood.testing import (
    LawBroken,
    measure_sampler,
    prove_sampler,
    sampler_models,
    torch_law,
    transformers_sampler,
)

OPEN = {
    name: pair
    for name, pair in sampler_models().items()
    if name not in ("a target that forbids tokens", "both one-hot")
}
PROMPT = torch.tensor([[0, 1]])


def tiny(seed, scale=0.7):
    """A random model over three tokens."""
    config = hf.LlamaConfig(
        vocab_size=3,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = hf.LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight.data = scale * torch.randn(weight.shape, generator=generator)
    return model


def law(model, tokens=3, assistant=None, drafted=2, threshold=0.0, schedule="constant", **options):
    """The exact law of what `generate` writes; that of the assistant's options is set anew for every run."""
    options = {"max_new_tokens": tokens, "do_sample": True, "top_k": 0, "pad_token_id": 0} | options

    def write():
        if assistant is not None:
            assistant.generation_config.num_assistant_tokens = drafted
            assistant.generation_config.num_assistant_tokens_schedule = schedule
            assistant.generation_config.assistant_confidence_threshold = threshold
        mask = torch.ones_like(PROMPT)
        return model.generate(PROMPT, attention_mask=mask, assistant_model=assistant, **options)[0, 2:]

    return torch_law(write)


def test_the_sampler_is_exact_where_the_target_forbids_nothing():
    report = prove_sampler(transformers_sampler(), models=OPEN)
    assert report.error < 1e-15
    assert prove_sampler(transformers_sampler(), models=OPEN, dtype=torch.float32).error < 2**-23


def test_a_coin_of_zero_accepts_a_forbidden_token():
    with pytest.raises(LawBroken, match=r"though the target gives token \d probability 0") as caught:
        prove_sampler(transformers_sampler(), dtype=torch.float32)
    # A float32 is 0 once in 2^24; probabilities in float32 are off by as little.
    assert caught.value.error is not None
    assert 2**-25 < caught.value.error < 2**-22
    assert "test coin < p" in caught.value.likely
    # By transformers' own hands: token 0 has no chance after the prompt, and comes.
    expected = torch.tensor([[[-torch.inf, 0.0], [0.0, 0.0]]])
    with mock.patch.object(torch, "rand_like", torch.zeros_like):
        tokens, _ = utils._speculative_sampling(torch.tensor([[0]]), torch.zeros(1, 1, 2), 1, expected)
    assert int(tokens[0, 0]) == 0


def test_a_residual_that_rounding_left_empty_ends_in_an_error():
    target = torch.tensor([1.638981580734253, -1.1660146713256836, -1.2797791957855225])
    draft = target + 2.9419498443603516  # the same distribution

    def run():
        both = torch.stack([target, target]).unsqueeze(0)
        return utils._speculative_sampling(torch.tensor([[0]]), draft[None, None], 1, both)[0]

    actual = torch_law(run)
    assert actual.probabilities[-1,] == pytest.approx(3 * 2**-24)
    assert "nan" in actual.fault
    with (
        mock.patch.object(torch, "rand_like", lambda like: torch.full_like(like, 1 - 2**-24)),
        pytest.raises(RuntimeError, match="probability tensor contains either"),
    ):
        run()


def test_an_ensemble_weight_below_1_is_lossy():
    report = measure_sampler(transformers_sampler(assistant_ensemble_weight=0.9), models=OPEN)
    assert 0.01 < report.error < 0.1


TARGET, DRAFT = tiny(1), tiny(2)


@pytest.mark.parametrize(
    ("assisted", "plain"),
    [
        ({}, {}),
        pytest.param({}, {"temperature": 0.7, "top_k": 2}, marks=pytest.mark.thorough),
        ({}, {"eos_token_id": 2}),
        ({"threshold": 0.4, "drafted": 20}, {"eos_token_id": 2}),
        pytest.param({"schedule": "heuristic", "drafted": 1}, {}, marks=pytest.mark.thorough),
        ({"schedule": "heuristic_transient", "drafted": 1}, {"repetition_penalty": 2.0}),
    ],
    ids=str,
)
def test_the_whole_of_generate_has_the_targets_law(assisted, plain):
    expected = law(TARGET, **plain)
    actual = law(TARGET, assistant=DRAFT, **assisted, **plain)
    assert not actual.fault
    assert actual.runs > expected.runs
    assert actual.error(expected.probabilities) < 2e-7


def test_an_ensemble_weight_shows_in_generate():
    actual = law(TARGET, tokens=2, assistant=DRAFT, assistant_ensemble_weight=0.5)
    assert 0.01 < actual.error(law(TARGET, tokens=2).probabilities) < 0.5


def test_an_assistant_that_is_the_target_may_end_in_an_error():
    target = tiny(1, scale=1.0)
    actual = law(target, tokens=2, assistant=copy.deepcopy(target), drafted=1)
    raised = actual.probabilities.get((-1,), 0.0)
    assert bool(actual.fault) == (raised > 0)  # whether it does depends on the last bits of a float32
    assert raised < 1e-6


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.7}, {"top_k": 2}, {"repetition_penalty": 2.0}], ids=str
)
def test_the_drafts_law_is_the_one_that_it_was_drawn_by(options):
    drawn, off = list[Any](), list[float]()
    judge, draw = utils._speculative_sampling, torch.multinomial

    def judged(ids, logits, length, *rest, **more):
        rows = zip(drawn[-length:], logits.softmax(-1)[0], strict=True)
        off.extend(float((by[0] - said).abs().max()) for by, said in rows)
        return judge(ids, logits, length, *rest, **more)

    def drawing(weights, num_samples):
        drawn.append(weights.clone())
        return draw(weights, num_samples)

    DRAFT.generation_config.num_assistant_tokens = 2
    options = {"max_new_tokens": 12, "do_sample": True, "top_k": 0, "pad_token_id": 0} | options
    with (
        mock.patch.object(utils, "_speculative_sampling", judged),
        mock.patch.object(torch, "multinomial", drawing),
    ):
        TARGET.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), assistant_model=DRAFT, **options)
    assert len(off) > 4
    assert max(off) == 0


def test_the_confidence_threshold_ends_a_draft_behind_the_token_and_keeps_it():
    """Whether a second token is drafted depends on the first, which stays: law P allows it."""
    judge, lengths = utils._speculative_sampling, dict[Any, Any]()

    def judged(ids, logits, length, *rest, **more):
        if ids.shape[1] - length == PROMPT.shape[1]:
            lengths.setdefault(int(ids[0, 2]), set()).add(length)
        return judge(ids, logits, length, *rest, **more)

    with mock.patch.object(utils, "_speculative_sampling", judged):
        actual = law(TARGET, assistant=DRAFT, threshold=0.4)
    chances = DRAFT(PROMPT).logits[0, -1].softmax(-1).tolist()
    assert lengths == {token: {2 if chance >= 0.4 else 1} for token, chance in enumerate(chances)}
    assert {1, 2} == set.union(*lengths.values())
    assert actual.error(law(TARGET).probabilities) < 2e-7
