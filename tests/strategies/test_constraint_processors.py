"""Structured output as people already write it: the same call of `generate()` with draft trees besides."""

import json
import re
from typing import Any

import pytest
import torch
import transformers as hf
import xgrammar

from draftwood import InvalidInput, create, custom_generate, zoo
from draftwood.protocols import registry

TOKENIZER: Any = zoo.tokenizer()
PROMPTS = ["Answer: ", "The number is", "{"]


@pytest.fixture(scope="module")
def model():
    found = zoo.load("llama-7m")
    found.generation_config.pad_token_id = 1
    return found


@pytest.fixture(scope="module")
def speculative():
    return loop()


def loop(**options):
    method = create("recipes", "dyspec", {"budget": 8})
    drafter = zoo.load("llama-draft")
    return custom_generate(drafter=drafter, policy=method.policy, verifier=method.verifier, **options)


def inputs(prompts):
    return TOKENIZER(prompts, return_tensors="pt", padding=True, padding_side="left")


def holding(name):
    """The schema of an object with a number of this name."""
    return json.dumps({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]})


def compiled(schema, model):
    info = xgrammar.TokenizerInfo.from_huggingface(TOKENIZER, vocab_size=model.config.vocab_size)
    return xgrammar.GrammarCompiler(info).compile_json_schema(schema)


def test_xgrammars_own_processor(model, speculative):
    schemas = [
        f'{{"type":"object","properties":{{"{n}":{{"type":"integer"}}}},"required":["{n}"]}}' for n in "abc"
    ]
    grammars = [compiled(schema, model) for schema in schemas]
    options = {**inputs(PROMPTS), "max_new_tokens": 20, "do_sample": False}
    for given in (grammars, grammars[0], [grammars[0]] * 3):
        processor = xgrammar.contrib.hf.LogitsProcessor(given)
        ours = model.generate(**options, logits_processor=[processor], custom_generate=speculative)
        again = model.generate(**options, logits_processor=[processor], custom_generate=speculative)
        assert torch.equal(ours, again)
        processor = xgrammar.contrib.hf.LogitsProcessor(given)
        assert torch.equal(ours, model.generate(**options, logits_processor=[processor]))
    options = {**inputs(PROMPTS[:1]), "max_new_tokens": 20, "num_return_sequences": 3, "do_sample": True}
    processor = xgrammar.contrib.hf.LogitsProcessor(grammars[0])
    texts = model.generate(**options, logits_processor=[processor], custom_generate=speculative)
    written = TOKENIZER.batch_decode(texts[:, options["input_ids"].shape[1] :])
    # Spaces are allowed, so a short text may end before the name.
    assert all(re.match(r'\{\s*("a"\s*:|$)', text) for text in written), written


def test_scores_are_those_of_generate(model, speculative):
    shown = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    options = {**inputs(PROMPTS[:2]), "max_new_tokens": 12, "do_sample": False, "repetition_penalty": 1.3}
    given = compiled(holding("n"), model)
    plain, ours = (
        model.generate(
            **options, **shown, **more, logits_processor=[xgrammar.contrib.hf.LogitsProcessor(given)]
        )
        for more in ({}, {"custom_generate": speculative})
    )
    for name in ("scores", "logits"):
        # xgrammar writes its mask into the scores, which shows in the logits of `generate`.
        for mine, theirs in zip(ours[name], plain[name], strict=True):
            allowed = theirs > -torch.inf
            torch.testing.assert_close(mine[allowed], theirs[allowed], atol=1e-3, rtol=1e-3)
            assert name == "logits" or torch.equal(mine > -torch.inf, allowed)


def test_what_cannot_be_followed_is_told(model, speculative):
    given = compiled('{"type":"object"}', model)
    options = {**inputs(PROMPTS[:2]), "max_new_tokens": 12, "do_sample": False}

    def ask(*processors, using=speculative, **more):
        chosen = [xgrammar.contrib.hf.LogitsProcessor(one) for one in processors]
        model.generate(**options, **more, logits_processor=chosen, custom_generate=using)

    with pytest.raises(InvalidInput, match="holds 3 grammars for 2 rows"):
        ask([given, compiled('{"type":"array"}', model), given])
    with pytest.raises(InvalidInput, match="2 logits processors hold a grammar"):
        ask(given, given)
    with pytest.raises(InvalidInput, match=r"give generate\(\) eos_token_id=\[0, 7\]"):
        ask(given, eos_token_id=7)
    with pytest.raises(InvalidInput, match=r"ExponentialDecayLengthPenalty comes before the grammar"):
        ask(given, exponential_decay_length_penalty=(2, 1.1))
    constraint = registry.get("constraints", "xgrammar").regex("[a-c]+", TOKENIZER)
    with pytest.raises(InvalidInput, match="leave one of the two out"):
        ask(given, using=loop(constraint=constraint))

    class Counts(hf.LogitsProcessor):
        calls = 0

        def __call__(self, input_ids, scores):
            self.calls += 1
            return scores

    with pytest.raises(InvalidInput, match="LLGuidanceConstraint, XGrammarConstraint"):
        model.generate(**options, logits_processor=[Counts()], custom_generate=speculative)
