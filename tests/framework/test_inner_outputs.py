"""Attentions and hidden states of a call equal `generate()`'s, step by step and layer by layer."""

import copy
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import InvalidInput, custom_generate
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.backends.attention_models import SMALL, VOCAB, bloom, randomised, tiny
from tests.cache_names import cache_name
from tests.framework import test_text_alone
from tests.generate_fuzz.models import draft, model

FIELDS = ("attentions", "hidden_states")
LAYERS = {"num_hidden_layers": 3, "sliding_window": 4, "head_dim": 8}
KINDS: dict[str, Any] = {
    "llama": lambda: tiny(hf.LlamaConfig),
    "mistral": lambda: tiny(hf.MistralConfig, sliding_window=4),
    "gemma2": lambda: tiny(hf.Gemma2Config, **LAYERS),
    "gemma3": lambda: tiny(hf.Gemma3TextConfig, **LAYERS, sliding_window_pattern=2),
    # Layers that read the keys of others, and hidden states of four streams.
    "gemma3n": lambda: gemma3n(),
    "gpt2": lambda: tiny(hf.GPT2Config, n_layer=2, n_head=4, n_embd=32, n_positions=512),
    "bloom": bloom,
}


def gemma3n() -> Any:
    torch.manual_seed(3)
    of_layers = {"intermediate_size": [48] * 4, "activation_sparsity_pattern": [0.0] * 4}
    small = {"vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "laurel_rank": 4}
    config = hf.Gemma3nTextConfig(
        **SMALL | LAYERS | of_layers | small | {"num_hidden_layers": 4},
        layer_types=["sliding_attention", "full_attention"] * 2,
        num_kv_shared_layers=2,
    )
    return randomised(hf.Gemma3nForCausalLM(config))


@cache
def eager(kind: str) -> Any:
    found = KINDS[kind]().eval()
    if kind != "bloom":  # it has no other
        found.set_attn_implementation("eager")
    return found


def loop() -> Any:
    return custom_generate(drafter=ModelDrafter(draft()), policy=DySpec(6), verifier=RecursiveRejection())


def both(target: Any, ids: Any, **options: Any) -> tuple[Any, Any]:
    options = {
        "max_new_tokens": 12,
        "do_sample": False,
        "return_dict_in_generate": True,
        "output_attentions": True,
        "output_hidden_states": True,
        **options,
    }
    cached = {name: value for name, value in options.items() if isinstance(value, hf.Cache)}
    plain = target.generate(ids, **options | copy.deepcopy(cached))
    return plain, target.generate(ids, **options, custom_generate=loop())


def assert_same(plain: Any, ours: Any) -> None:
    assert torch.equal(plain.sequences, ours.sequences)
    for field in FIELDS:
        wanted, found = getattr(plain, field), getattr(ours, field)
        if wanted is None:
            assert found is None
            continue
        assert [len(step) for step in wanted] == [len(step) for step in found]
        for one, other in zip(wanted, found, strict=True):
            assert isinstance(other, tuple)
            for mine, theirs in zip(one, other, strict=True):
                assert (mine is None) == (theirs is None)
                if mine is None:
                    continue
                assert mine.shape == theirs.shape
                torch.testing.assert_close(theirs, mine, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_padding_and_an_early_end(kind):
    target = eager(kind)
    ids = torch.tensor([[1, 1, 1, 7, 9, 11, 4], [6, 8, 20, 9, 14, 30, 31], [1, 1, 1, 1, 1, 1, 12]])
    mask = (ids != 1).long()
    free = target.generate(ids, attention_mask=mask, max_new_tokens=12, eos_token_id=None)
    end = int(free[1, 10])  # the second row's fourth token ends texts
    plain, ours = both(target, ids, attention_mask=mask, eos_token_id=end, pad_token_id=1)
    assert plain.sequences.shape[1] > 12
    assert plain.sequences[1, -1] == 1
    assert_same(plain, ours)


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_5_vl"])
def test_models_that_read_images_with_text_only(kind):
    torch.manual_seed(3)
    target = randomised(test_text_alone.KINDS[kind]())
    target.generation_config = hf.GenerationConfig(pad_token_id=1, eos_token_id=5)
    target.set_attn_implementation("eager")
    given = {**test_text_alone.options(), "max_new_tokens": 8}
    ids = given.pop("input_ids")
    marks = {test_text_alone.MARKS[kind]: torch.zeros_like(ids)}  # as their processors give them
    assert_same(*both(target, ids, **given, **marks))


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_steps_before_and_beyond_the_window(kind):
    for length, new in ((1, 9), (2, 1), (3, 2), (9, 3)):
        ids = torch.arange(6, 6 + length)[None]
        assert_same(*both(eager(kind), ids, max_new_tokens=new, eos_token_id=None))


@pytest.mark.parametrize("kind", ["llama", "gemma3", "bamba"])
def test_without_a_cache_every_step_is_of_the_whole_text(kind):
    target = model(kind) if kind == "bamba" else eager(kind)
    ids = torch.tensor([[1, 1, 7, 9, 11], [6, 8, 20, 9, 14]])
    plain, ours = both(target, ids, attention_mask=(ids != 1).long(), use_cache=False, max_new_tokens=4)
    assert plain.hidden_states[-1][0].shape[1] == 8
    assert_same(plain, ours)


def test_only_what_is_asked_for():
    ids, target = torch.tensor([[7, 9, 11]]), eager("llama")
    for options in (
        {"output_attentions": False},
        {"output_hidden_states": False},
        {"output_hidden_states": [1], "output_attentions": None},
    ):
        plain, ours = both(target, ids, **options)
        assert_same(plain, ours)
        assert (ours.attentions is None) == (not options.get("output_attentions", True))
    assert isinstance(both(target, ids, return_dict_in_generate=False)[1], torch.Tensor)


def test_attentions_need_eager_attention_as_in_transformers():
    plain, ours = both(model("llama"), torch.tensor([[7, 9, 11]]))
    assert_same(plain, ours)
    assert not any(ours.attentions)
    assert all(ours.hidden_states)


def test_attentions_that_change_the_text_are_refused():
    falcon = tiny(hf.FalconConfig)  # which then reads a mask for SDPA as one for eager attention
    with pytest.raises(InvalidInput, match="changes the text that FalconForCausalLM writes with sdpa"):
        falcon.generate(
            torch.tensor([[7, 9, 11]]),
            max_new_tokens=3,
            output_attentions=True,
            return_dict_in_generate=True,
            custom_generate=loop(),
        )


@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral"])
def test_a_given_cache_is_read_and_not_changed(kind):
    target = eager(kind)
    ids = torch.tensor([[1, 7, 9, 11, 4, 20, 22, 8], [9, 8, 7, 12, 13, 14, 15, 16]])
    mask = (ids != 1).long()
    given = hf.DynamicCache(config=target.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        target(
            ids[:, :5],
            attention_mask=mask[:, :5],
            position_ids=positions[:, :5],
            **{cache_name(target): given},
        )
    plain, ours = both(target, ids, attention_mask=mask, past_key_values=given)
    assert plain.hidden_states[0][0].shape[1] == 3
    assert_same(plain, ours)
    assert given.get_seq_length() == 5


def test_what_cannot_be_given_is_refused():
    ids = torch.tensor([[7, 9, 11]])
    asked = {"max_new_tokens": 3, "return_dict_in_generate": True, "custom_generate": loop()}
    kept = eager("llama").generate(ids, **asked).past_key_values
    for options in (
        {"cache_implementation": "static"},
        {"prefill_chunk_size": 2},
        {"past_key_values": kept},
    ):
        with pytest.raises(InvalidInput, match="output_attentions=True is supported with a dynamic cache"):
            eager("llama").generate(ids, **asked, **options, output_attentions=True)
    recurrent = [model(kind) for kind in ("mamba2", "bamba", "qwen3_next")]
    recurrent.append(tiny(hf.Lfm2Config, layer_types=["conv", "full_attention"]))
    for target in recurrent:
        with pytest.raises(InvalidInput, match="output_hidden_states=True is not supported for recurrent"):
            target.generate(ids, **asked, output_hidden_states=True)
