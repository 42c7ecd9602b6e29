"""A widened model is another shape of the same function."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from draftwood import zoo
from draftwood.errors import InvalidInput, UnsupportedModel
from draftwood.zoo.widen import parameter_count, widen, widen_to

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
def test_target_keeps_its_logits(shape: dict[str, int], target: Any, text: torch.Tensor) -> None:
    wide = widen(target, **shape)
    assert {name: getattr(wide.config, name) for name in shape} == shape
    torch.testing.assert_close(logits(wide, text), logits(target, text), atol=1e-4, rtol=0)


@pytest.mark.parametrize("seed", range(8))
def test_any_shape_keeps_the_logits(seed: int, draft: Any, text: torch.Tensor) -> None:
    chance = random.Random(seed)
    shape = {
        "hidden_size": chance.randint(96, 400),
        "intermediate_size": chance.randint(256, 700),
        "num_hidden_layers": chance.randint(draft.config.num_hidden_layers, 5),
        "num_attention_heads": 4 * chance.randint(1, 4),
    }
    shape["hidden_size"] += draft.config.hidden_size
    shape["intermediate_size"] += draft.config.intermediate_size
    wide = widen(draft, **shape, seed=seed)
    torch.testing.assert_close(logits(wide, text), logits(draft, text), atol=1e-4, rtol=0)


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
    wide = widen(model, hidden_size=80, intermediate_size=100, num_hidden_layers=3)
    assert not wide.config.tie_word_embeddings
    assert (wide.config.num_attention_heads, wide.config.num_key_value_heads) == (9, 3)
    torch.testing.assert_close(logits(wide, text), logits(model, text), atol=1e-4, rtol=0)


def test_cached_decoding_and_ties_survive(draft: Any, text: torch.Tensor) -> None:
    wide = widen(draft, hidden_size=300, intermediate_size=800, num_hidden_layers=4)
    assert wide.get_output_embeddings().weight is wide.get_input_embeddings().weight
    settings = {"max_new_tokens": 12, "do_sample": False}
    assert wide.generate(text, **settings).tolist() == draft.generate(text, **settings).tolist()


def test_added_weights_are_random_and_the_original_is_untouched(draft: Any) -> None:
    before = {name: weight.clone() for name, weight in draft.state_dict().items()}
    shape = {"hidden_size": 256, "intermediate_size": 600, "num_hidden_layers": 4}
    first, again, other = (widen(draft, **shape, seed=seed) for seed in (1, 1, 2))
    added = [model.model.layers[-1].mlp.gate_proj.weight for model in (first, again, other)]
    assert torch.equal(added[0], added[1])
    assert not torch.equal(added[0], added[2])
    assert added[0].std() > 0.01
    assert all(torch.equal(draft.state_dict()[name], kept) for name, kept in before.items())


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
    shape = {"hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8}
    with pytest.raises(InvalidInput, match=r"hidden_size=128 is smaller .* give 256 or more"):
        widen(target, **{**shape, "hidden_size": 128})
    with pytest.raises(InvalidInput, match="num_attention_heads=5 is not a multiple of 2"):
        widen(target, **shape, num_attention_heads=5)
    with pytest.raises(UnsupportedModel, match="'mamba2' cannot be widened yet"):
        widen_to(zoo.load("mamba2-draft"))
