"""Greedy text on the zoo's state-space and hybrid targets is that of transformers' `generate`, in fp32."""

import json
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import SpeculativeDecoder, custom_generate, load, zoo
from draftwood.strategies.drafters.layer_skip import LayerSkip
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.thorough import marks_unless

FEW = 24
PROMPTS = [row["prompt"] for row in json.loads((Path(__file__).parent / "data" / "prompts.json").read_text())]
TARGETS = ("mamba2-5m", "bamba-6m")
DRAFTS = ("llama-draft", "mamba2-draft")
STRATEGIES = {
    "DySpec": lambda: (LayeredDySpec(16, law="top-k"), Greedy()),
    "sampled DySpec": lambda: (LayeredDySpec(16), RecursiveRejection()),
    "beam": lambda: (Beam(3, 4), Greedy()),
    "RSD-S": lambda: (StochasticBeam(3, 4), RecursiveRejection()),
}


@cache
def model(name):
    return zoo.load(name)


@cache
def prompts():
    tokenizer = zoo.tokenizer()
    return [tokenizer(text, return_tensors="pt").input_ids for text in PROMPTS]


@cache
def text(target, prompt, tokens):
    ids = prompts()[prompt]
    return model(target).generate(ids, max_new_tokens=tokens, do_sample=False)[0, ids.shape[1] :].tolist()


def wanted(target, prompt, tokens):
    # The texts of most tests are the beginning of one.
    return text(target, prompt, max(tokens, FEW))[:tokens]


def check(target, drafter, strategy, *, count, tokens, rows):
    policy, verifier = STRATEGIES[strategy]()
    decoder = SpeculativeDecoder(model(target), drafter, policy, verifier)
    for start in range(0, count, rows):
        batch = range(start, min(start + rows, count))
        out: Any = decoder.generate(
            [prompts()[prompt][0].tolist() for prompt in batch],
            max_new_tokens=tokens,
            return_dict_in_generate=True,
        )
        assert out.tokens == [wanted(target, prompt, tokens) for prompt in batch]
    assert out.statistics.tokens_per_round > 1


OFTEN = [
    *(("mamba2-5m", "mamba2-draft", strategy) for strategy in ("DySpec", "RSD-S")),
    *(("bamba-6m", "llama-draft", strategy) for strategy in ("DySpec", "RSD-S")),
    ("mamba2-5m", "llama-draft", "beam"),
    ("bamba-6m", "mamba2-draft", "beam"),
]
"""Every target with every draft, every draft with every strategy, every strategy with every target."""


@pytest.mark.parametrize(
    ("count", "tokens", "rows"), [(4, FEW, 4), pytest.param(20, 128, 10, marks=pytest.mark.thorough)]
)
@pytest.mark.parametrize(
    ("target", "draft", "strategy"),
    [
        pytest.param(*one, marks=marks_unless(one in OFTEN))
        for one in product(TARGETS, DRAFTS, ["DySpec", "beam", "RSD-S"])
    ],
)
def test_any_draft_writes_what_generate_writes(target, draft, strategy, count, tokens, rows):
    check(target, ModelDrafter(load(model(draft))), strategy, count=count, tokens=tokens, rows=rows)


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("target", TARGETS)
def test_sampled_trees_of_any_draft(target, draft):
    check(target, ModelDrafter(load(model(draft))), "sampled DySpec", count=4, tokens=FEW, rows=3)


@pytest.mark.parametrize("target", TARGETS)
def test_the_text_itself_drafts(target):
    drafter = PromptLookup(model(target).config.vocab_size)
    check(target, drafter, "DySpec", count=3, tokens=FEW, rows=1)


@pytest.mark.parametrize("draft", TARGETS + DRAFTS)
def test_recurrent_models_draft_for_a_transformer(draft):
    drafter = ModelDrafter(load(model(draft)))
    check("llama-7m", drafter, "sampled DySpec", count=3, tokens=FEW, rows=3)


@pytest.mark.parametrize("target", TARGETS)
def test_generate_takes_the_loop_as_one_argument(target):
    tokenizer = zoo.tokenizer()
    tokenizer.padding_side = "left"
    inputs = tokenizer(PROMPTS[:2], return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    options = {"max_new_tokens": 24, "do_sample": False}
    speculative = custom_generate(drafter=model("mamba2-draft"), policy=LayeredDySpec(12), verifier=Greedy())
    found = model(target).generate(**inputs, **options, custom_generate=speculative)
    assert torch.equal(found, model(target).generate(**inputs, **options))


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_drafts_for_itself_without_some_layers(target):
    drafter = LayerSkip(load(model(target)), skip=[1, 3])
    check(target, drafter, "DySpec", count=2, tokens=FEW, rows=2)
