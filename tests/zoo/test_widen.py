"""A widened model is another shape of the same function."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.zoo.widen import parameter_count, widen, widen_to
from tests.cache_names import cache_name

TARGET_SHAPES = {
    "same": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8},
    "layers": {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 11},
    "heads": {
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 8,
        "num_attention_heads": 10,
    },
    "wider": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 9},
}


def logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(tokens).logits
    return found


@pytest.mark.parametrize("shape", TARGET_SHAPES.values(), ids=TARGET_SHAPES.keys())
def test_target_keeps_its_logits(shape: dict[str, Any], target: Any, text: torch.Tensor) -> None:
    wide = widen(target, **shape)
    assert {name: getattr(wide.config, name) for name in shape} == shape
    torch.testing.assert_close(logits(wide, text), logits(target, text), atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_any_shape_keeps_the_logits(seed: int, draft: Any, text: torch.Tensor) -> None:
    chance = random.Random(seed)
    shape: dict[str, Any] = {
        "hidden_size": chance.randint(96, 400),
        "intermediate_size": chance.randint(256, 700),
        "num_hidden_layers": chance.randint(draft.config.num_hidden_layers, 5),
        "num_attention_heads": 4 * chance.randint(1, 4),
    }
    shape["hidden_size"] += draft.config.hidden_size
    shape["intermediate_size"] += draft.config.intermediate_size
    wide = widen(draft, **shape, seed=seed)
    torch.testing.assert_close(logits(wide, text), logits(draft, text), atol=1e-4, rtol=0)


RECURRENT = {
    "mamba2-draft": {"intermediate_size": None, "num_attention_heads": None},
    "bamba-6m": {},
}


def token_by_token(model: Any, tokens: torch.Tensor, *, prompt: int) -> torch.Tensor:
    """Returns logits of every token after the prompt, each in a separate pass."""
    found, cache = [], None
    name = cache_name(model)
    with torch.inference_mode():
        for piece in (tokens[:, :prompt], *tokens[:, prompt:].split(1, dim=1)):
            output = model(piece, use_cache=True, **{name: cache})
            cache = output[name]
            found.append(output.logits)
    return torch.cat(found[1:], 1)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", RECURRENT)
def test_any_recurrent_shape_keeps_the_logits(name: str, seed: int, text: torch.Tensor) -> None:
    model, chance = zoo.load(name), random.Random(seed)
    config = model.config
    shape: dict[str, Any] = {
        "hidden_size": config.hidden_size + 32 * chance.randint(0, 9),
        "num_hidden_layers": config.num_hidden_layers + chance.randint(0, 3),
        "intermediate_size": chance.randint(512, 900),
        "num_attention_heads": 2 * chance.randint(2, 5),
        **RECURRENT[name],
    }
    wide = widen(model, **shape, seed=seed)
    assert {key: getattr(wide.config, key, None) for key in shape} == shape
    torch.testing.assert_close(logits(wide, text), logits(model, text), atol=1e-4, rtol=0)
    some, prompt = text[:, : chance.randint(12, 20)], chance.randint(1, 9)
    found, wanted = (token_by_token(one, some, prompt=prompt) for one in (wide, model))
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


def test_groups_biases_and_untied_embeddings_of_mamba2(text: torch.Tensor) -> None:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        vocab_size=4096,
        hidden_size=48,
        num_hidden_layers=2,
        num_heads=6,
        head_dim=16,
        n_groups=3,
        state_size=8,
        use_bias=True,
        residual_in_fp32=True,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    wide = widen(model, hidden_size=96, num_hidden_layers=3)
    assert (wide.config.num_heads, wide.config.n_groups) == (12, 3)
    torch.testing.assert_close(logits(wide, text), logits(model, text), atol=1e-4, rtol=0)
    with pytest.raises(
        InvalidInput, match="hidden_size=56 does not divide into heads; give a multiple of 24"
    ):
        widen(model, hidden_size=56, num_hidden_layers=2)


@pytest.mark.parametrize("name", ["mamba2-5m", "bamba-6m"])
def test_added_heads_compute_and_layers_come_by_turns(name: str, text: torch.Tensor) -> None:
    model = zoo.load(name)
    wide = widen_to(model, parameters=20e6)
    assert 20e6 <= parameter_count(wide) < 24e6
    kinds = model.config.layer_types
    assert wide.config.layer_types == (kinds * 9)[: wide.config.num_hidden_layers]
    with torch.inference_mode():
        cache = wide(text, use_cache=True)
    cache = cache[cache_name(wide)]
    states = [
        layer.recurrent_states[0]
        for layer, kind in zip(cache.layers, wide.config.layer_types, strict=True)
        if kind == "linear_attention"
    ]
    assert all((state.abs().amax((0, 2, 3)) > 1e-9).all() for state in states)


def test_untied_embeddings_and_biases(text: torch.Tensor) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.1)
    wide = widen(model, hidden_size=80, num_hidden_layers=3)
    assert wide.config.intermediate_size == 106
    assert not wide.config.tie_word_embeddings
    assert (wide.config.num_attention_heads, wide.config.num_key_value_heads) == (9, 3)
    torch.testing.assert_close(logits(wide, text), logits(model, text), atol=1e-4, rtol=0)


def test_cached_decoding_and_ties_survive(draft: Any, text: torch.Tensor) -> None:
    wide: Any = widen(draft, hidden_size=300, intermediate_size=800, num_hidden_layers=4)
    assert wide.get_output_embeddings().weight is wide.get_input_embeddings().weight
    settings = {"max_new_tokens": 12, "do_sample": False}
    assert wide.generate(text, **settings).tolist() == draft.generate(text, **settings).tolist()


def test_added_weights_are_random_and_the_original_is_untouched(draft: Any) -> None:
    before = {name: weight.clone() for name, weight in draft.state_dict().items()}
    shape: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 600, "num_hidden_layers": 4}
    first, again, other = (widen(draft, **shape, seed=seed) for seed in (1, 1, 2))
    added = [model.model.layers[-1].mlp.gate_proj.weight for model in (first, again, other)]
    assert torch.equal(added[0], added[1])
    assert not torch.equal(added[0], added[2])
    assert added[0].std() > 0.01
    assert all(torch.equal(draft.state_dict()[name], kept) for name, kept in before.items())


@pytest.mark.thorough
def test_350_million_parameters(target: Any, text: torch.Tensor) -> None:
    wide = widen_to(target, parameters=350e6, dtype=torch.bfloat16)
    assert 350e6 <= parameter_count(wide) < 400e6
    assert wide.dtype == torch.bfloat16
    best, other = logits(target, text).topk(2).values.unbind(-1)
    clear = best - other > 0.5  # in bfloat16 near-ties may fall either way
    agree = logits(wide, text).argmax(-1) == logits(target, text).argmax(-1)
    assert clear.sum() > 20
    assert agree[clear].all()


@pytest.mark.parametrize("parameters", [1, 20e6, 60e6])
def test_parameters_are_a_lower_bound(parameters: float, target: Any) -> None:
    wide = widen_to(target, parameters=parameters, dtype=torch.bfloat16)
    assert parameters <= parameter_count(wide) <= max(1.3 * parameters, parameter_count(target))


def test_refusals(target: Any) -> None:
    shape: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
    with pytest.raises(InvalidInput, match=r"hidden_size=128 is smaller .* give 256 or more"):
        widen(target, **{**shape, "hidden_size": 128})
    with pytest.raises(InvalidInput, match="num_attention_heads=5 is not a multiple of 2"):
        widen(target, **shape, num_attention_heads=5)
    with pytest.raises(InvalidInput, match="a model of type 'mamba2' has no intermediate_size; leave it out"):
        widen(zoo.load("mamba2-draft"), **shape)
    target.config.model_type = "gpt_neox"
    try:
        with pytest.raises(UnsupportedModel, match="'gpt_neox' cannot be widened .* 'llama' or 'mamba2'"):
            widen_to(target)
    finally:
        target.config.model_type = "llama"
