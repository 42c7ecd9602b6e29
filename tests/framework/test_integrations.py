"""Ways in from elsewhere: loops from names, and texts that end at a string, as lm-eval asks for them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.base.errors import UnknownStrategy
from draftwood.integrations.loops import loop_of
from draftwood.integrations.until import write_until

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


def texts(model, tokenizer, prompts, stop, **options):
    """Returns the text after each prompt, cut before the first stop string, as lm-eval cuts it."""
    inputs = tokenizer(prompts, return_tensors="pt", padding=True)
    length = inputs["input_ids"].shape[1]
    written = write_until(
        model,
        tokenizer,
        inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_length=length + NEW,
        stop=stop,
        **options,
    )
    decoded = tokenizer.batch_decode(written[:, length:], skip_special_tokens=True)
    for string in stop:
        decoded = [text.split(string)[0] for text in decoded]
    return decoded, written.shape[1] - length


@pytest.mark.parametrize(
    ("drafter", "stop"), [(None, ["\n"]), (str(zoo.path("llama-draft")), ["apples", "."]), (None, [])]
)
def test_drafted_texts_end_where_ordinary_ones_do(model, tokenizer, drafter, stop):
    loop = loop_of(model, drafter=drafter)
    plain, _ = texts(model, tokenizer, PROMPTS, stop)
    assert texts(model, tokenizer, PROMPTS, stop, custom_generate=loop)[0] == plain
    alone, length = texts(model, tokenizer, PROMPTS[:1], stop, custom_generate=loop)
    assert alone == plain[:1]
    assert (length < NEW) == bool(stop)  # it does not go on behind the string


@pytest.mark.parametrize(
    ("prompt", "stop"),
    [
        ("import torch\n", ["\n\n"]),
        ("x = 1\n", ["\n\n"]),
    ],
)
def test_a_string_that_begins_in_the_prompt_ends_no_text(model, tokenizer, prompt, stop):
    inputs = tokenizer([prompt], return_tensors="pt")
    length = inputs["input_ids"].shape[1]
    whole = model.generate(**inputs, max_new_tokens=NEW, do_sample=False)[:, length:]
    (expected,) = tokenizer.batch_decode(whole, skip_special_tokens=True)
    for string in stop:
        expected = expected.split(string)[0]
    assert expected
    for custom in ({}, {"custom_generate": loop_of(model)}):
        assert texts(model, tokenizer, [prompt], stop, **custom)[0] == [expected]


def test_a_temperature_is_sampled_at(model, tokenizer):
    def written(**options):
        (text,), _ = texts(model, tokenizer, PROMPTS[2:], [], custom_generate=loop_of(model), **options)
        return text

    torch.manual_seed(0)
    assert written(temperature=1.0) != written(temperature=1.0)
    assert written() == written(temperature=0) == written(temperature=1.0, do_sample=False)


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


def test_a_wrapper_with_learnt_tokens_is_read_as_generate_reads_it(model, tokenizer, monkeypatch):
    class Wrapper:
        """A wrapper like PEFT's: it prepares the inputs of the inner model, and calls its `generate`."""

        active_peft_config = type("Config", (), {"is_prompt_learning": True})

        def prepare_inputs_for_generation(self, *args, **kwargs):
            return type(model).prepare_inputs_for_generation(model, *args, **kwargs)

    wrapper = Wrapper()
    monkeypatch.setitem(vars(model), "prepare_inputs_for_generation", wrapper.prepare_inputs_for_generation)
    inputs = tokenizer(PROMPTS[:1], return_tensors="pt")
    config: Any = Wrapper.active_peft_config
    plain = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    for learnt in (True, False):  # tokens in front of the text, an adapter of weights
        config.is_prompt_learning = learnt
        found = model.generate(**inputs, max_new_tokens=4, do_sample=False, custom_generate=loop_of(model))
        assert torch.equal(found, plain)
