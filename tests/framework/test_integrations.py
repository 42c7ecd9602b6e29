"""Ways in from elsewhere: loops from names, and the folder of a hub repository."""

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.errors import InvalidInput, UnknownStrategy
from draftwood.integrations.loops import loop_of

HUB = Path(__file__).parents[2] / "hub"
NEW = 24
PROMPTS = ["Question: Tom has 3 apples and buys 4. How many?\nAnswer:", "def add(a, b):", "Dear Sir,"]


@pytest.fixture(scope="module")
def model():
    return zoo.load("llama-7m")


@pytest.fixture(scope="module")
def tokenizer():
    fast_tokenizer = zoo.tokenizer()
    fast_tokenizer.padding_side = "left"
    return fast_tokenizer


def test_a_loop_is_made_once(model):
    assert loop_of(model, drafter=None) is loop_of(model, recipe="prompt-lookup")
    draft = zoo.load("llama-draft")
    assert loop_of(model, drafter=draft, budget=4) is not loop_of(model, drafter=draft, budget=5)
    assert loop_of(model, drafter=draft, budget=4) is loop_of(model, drafter=draft, budget=4, recipe="dyspec")


def test_the_hub_form_is_a_folder(model, tokenizer, monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    inputs = tokenizer(PROMPTS, return_tensors="pt", padding=True)
    plain = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)
    hub = {"custom_generate": str(HUB), "trust_remote_code": True, "max_new_tokens": NEW, "do_sample": False}
    assert torch.equal(model.generate(**inputs, **hub), plain)
    output = model.generate(
        **inputs, **hub, drafter=zoo.load("llama-draft"), recipe="sequoia", return_dict_in_generate=True
    )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.tokens_per_round > 1


def test_an_unknown_recipe_is_named(model):
    with pytest.raises(UnknownStrategy, match="dyspek"):
        loop_of(model, recipe="dyspek")


def test_learnt_tokens_in_front_of_the_text_are_refused(model, tokenizer, monkeypatch):
    class Wrapper:
        """As PEFT's: it prepares the inputs of the model below, whose `generate` it calls."""

        active_peft_config = type("Config", (), {"is_prompt_learning": True})

        def prepare_inputs_for_generation(self, *args, **kwargs):
            return type(model).prepare_inputs_for_generation(model, *args, **kwargs)

    wrapper = Wrapper()
    monkeypatch.setitem(vars(model), "prepare_inputs_for_generation", wrapper.prepare_inputs_for_generation)
    inputs = tokenizer(PROMPTS[:1], return_tensors="pt")
    with pytest.raises(InvalidInput, match="prefix tuning"):
        model.generate(**inputs, max_new_tokens=4, custom_generate=loop_of(model))
    config: Any = Wrapper.active_peft_config
    config.is_prompt_learning = False  # an adapter of weights
    assert model.generate(**inputs, max_new_tokens=4, custom_generate=loop_of(model)).shape[1] > 4
