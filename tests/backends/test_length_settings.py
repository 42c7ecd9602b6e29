"""Settings that depend on a text's length, far beyond the tokens of a short check, family by family."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
import transformers as hf

from benchmarks.research.families_check import worst_node
from benchmarks.research.families_models import build
from draftwood.backends.kinds.longrope import LongRopeBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.backends.structure import length_settings as settings_of
from draftwood.backends.structure.length_settings import length_settings, unused_settings, with_small_settings
from draftwood.base.errors import UnsupportedModel
from tests.backends.attention_models import SMALL, against, plain, randomised, tiny, words

FAR = 40
"""Of windows and scales: beyond the tokens that the self-check reads of the model itself."""


def gpt_neo() -> Any:
    return hf.GPTNeoConfig(
        vocab_size=53,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=48,
        attention_types=[[["global", "local"], 1]],
        window_size=FAR,
        max_position_embeddings=128,
    )


def llama4() -> Any:
    return hf.Llama4TextConfig(
        **SMALL,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        num_experts_per_tok=1,
        floor_scale=FAR,
        attention_chunk_size=512,
        layer_types=["chunked_attention", "full_attention"],
        no_rope_layers=[1, 0],
    )


@pytest.mark.parametrize("config", [gpt_neo, llama4])
def test_what_goes_by_the_place_in_the_cache_goes_by_paths(config: Any) -> None:
    torch.manual_seed(3)
    model = randomised(hf.AutoModelForCausalLM.from_config(config()))
    backend = load(model)
    assert type(backend) is UnrolledBackend
    mirror = against(model, backend)
    mirror.prefill([words(60), words(3), words(30)])
    mirror.extend([[(1, -1), (2, 0), (3, 0), (4, 2)]] * 3)
    mirror.commit([[0, 2], [0, 1], [0, 2, 3]])
    mirror.check_state()
    # Its mask would serve short rows of one length.
    masked = against(model, TransformerBackend(model))
    masked.prefill([words(60), words(3)])
    with pytest.raises(AssertionError, match="is off by"):
        masked.extend([[(1, -1), (2, 0)]] * 2)


@pytest.mark.parametrize("window", [30, 4096])
def test_windows_that_the_code_uses_keep_the_mask(window: int) -> None:
    assert type(load(tiny(hf.MistralConfig, sliding_window=window))) is TransformerBackend


def test_a_window_that_the_code_does_not_use_is_refused() -> None:
    with pytest.raises(
        UnsupportedModel, match=r"LlamaForCausalLM cannot continue .*beyond 4096 tokens, its logits"
    ):
        load(tiny(sliding_window=4096))


def longrope() -> dict[str, Any]:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    return {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": FAR, **factors}


def test_a_rotation_that_switches_asks_for_the_whole_text_again() -> None:
    model = tiny(hf.Phi3Config, rope_parameters=longrope(), original_max_position_embeddings=FAR)
    assert type(load(model)) is LongRopeBackend
    backend = TransformerBackend(model)
    assert backend.max_length == FAR
    mirror = against(model, backend)
    mirror.prefill([words(FAR - 3), words(5)])
    mirror.extend([[(1, -1), (2, 0), (3, 0), (4, 2)]] * 2)
    # What is cached would have to be rotated anew behind it.
    tokens = words(FAR + 2)
    assert (plain(model, tokens)[:5] - plain(model, tokens[:-3])[:5]).abs().max() > 1e-2


@pytest.mark.parametrize(
    "family", ["kimi_linear", "bailing_hybrid", "lfm3", "zaya", "inkling_text", "deepseek_v4", "deepseek_v32"]
)
def test_families_of_unusual_caches_go_by_paths(family: str, caplog: pytest.LogCaptureFixture) -> None:
    model = build(family, reach=8)
    with caplog.at_level(logging.WARNING):
        assert type(load(model)) is UnrolledBackend
    assert "each path of a tree runs as its own batch row" in caplog.text
    assert worst_node(model, [words(12), words(3)], rounds=2) < 1e-3


@pytest.mark.parametrize(
    ("family", "words"),
    [
        ("idefics", "gives no logits for a prompt of tokens only"),
        ("openai-gpt", "keeps no cache, so it reads the whole text again"),
        ("minimax", "Layer 1 of MiniMaxForCausalLM is recurrent, but none of its parts"),
    ],
)
def test_families_that_are_refused(family: str, words: str) -> None:
    model = build(family, reach=8)
    for _ in range(2):
        with pytest.raises(UnsupportedModel, match=words) as caught:
            load(model)
        assert "\n" not in str(caught.value)


def test_settings_are_found_and_made_small() -> None:
    model = randomised(hf.AutoModelForCausalLM.from_config(llama4()))
    assert length_settings(model, above=8) == {"floor_scale": FAR, "attention_chunk_size": 512}
    small = with_small_settings(model, ["floor_scale"])
    assert small.config.floor_scale == small.model.layers[0].self_attn.floor_scale == settings_of.SMALL
    assert model.config.floor_scale == model.model.layers[0].self_attn.floor_scale == FAR
    assert small.lm_head.weight is model.lm_head.weight
    assert unused_settings(model, ["floor_scale", "attention_chunk_size"], words(20)) == []
    assert unused_settings(tiny(sliding_window=4096), ["sliding_window"], words(20)) == ["sliding_window"]
