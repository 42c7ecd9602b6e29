"""Law S on tiny random models of every family, with windows shorter than the texts of the tests."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.backends.loading.loader import load
from draftwood.protocols import StateBackend
from draftwood.testing.backends import StateBackendTests
from tests.backends.attention_models import plain, randomised
from tests.thorough import marks_unless

VOCAB = 61
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
GROUPED: dict[str, Any] = {**SMALL, "num_key_value_heads": 2}
MIXED: dict[str, Any] = {
    **GROUPED,
    "num_hidden_layers": 3,
    "head_dim": 8,
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
}
GPT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 128,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def deepseek() -> Any:
    """Latent attention, whose keys and values differ in head dim, and routed experts."""
    return hf.DeepseekV3Config(
        **GROUPED | {"num_key_value_heads": 4},
        moe_intermediate_size=16,
        n_routed_experts=4,
        n_shared_experts=1,
        num_experts_per_tok=2,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        kv_lora_rank=16,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=12,
    )


MASKED: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**GROUPED),
    "gpt_neox": lambda: hf.GPTNeoXConfig(**SMALL),
    "opt": lambda: hf.OPTConfig(**SMALL, ffn_dim=48, word_embed_proj_dim=32),
    "gpt2": lambda: hf.GPT2Config(**GPT),
    "qwen3": lambda: hf.Qwen3Config(**GROUPED, head_dim=8),
    "gemma2": lambda: hf.Gemma2Config(**MIXED, query_pre_attn_scalar=8),
    "gemma3": lambda: hf.Gemma3TextConfig(**MIXED, query_pre_attn_scalar=8),
    "mistral": lambda: hf.MistralConfig(**GROUPED, sliding_window=8),
    "phi": lambda: hf.PhiConfig(**SMALL),
    "phi3": lambda: hf.Phi3Config(**GROUPED, sliding_window=9),
    "falcon": lambda: hf.FalconConfig(**SMALL, alibi=False, new_decoder_architecture=False, multi_query=True),
    "stablelm": lambda: hf.StableLmConfig(**GROUPED),
    "olmo2": lambda: hf.Olmo2Config(**GROUPED),
    "cohere": lambda: hf.CohereConfig(**GROUPED),
    "starcoder2": lambda: hf.Starcoder2Config(**GROUPED, sliding_window=8),
    "gpt_bigcode": lambda: hf.GPTBigCodeConfig(**GPT),
    "gptj": lambda: hf.GPTJConfig(**GPT, rotary_dim=4),
    "codegen": lambda: hf.CodeGenConfig(**GPT, rotary_dim=4),
    "gpt_oss": lambda: hf.GptOssConfig(**MIXED, num_local_experts=4, num_experts_per_tok=2),
    "llama4": lambda: hf.Llama4TextConfig(
        **GROUPED,
        head_dim=8,
        intermediate_size_mlp=48,
        num_local_experts=2,
        attention_chunk_size=8,
        layer_types=["chunked_attention", "full_attention"],
    ),
    "mixtral": lambda: hf.MixtralConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
    "deepseek_v3": deepseek,
}
"""Attention takes a tree mask."""

UNROLLED: dict[str, Callable[[], Any]] = {
    "bloom": lambda: hf.BloomConfig(
        vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0, pad_token_id=0
    ),
    "falcon_alibi": lambda: hf.FalconConfig(**SMALL, alibi=True, new_decoder_architecture=False),
    "mpt": lambda: hf.MptConfig(vocab_size=VOCAB, d_model=32, n_layers=2, n_heads=4, max_seq_len=128),
    "gpt_neo": lambda: hf.GPTNeoConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        intermediate_size=48,
        attention_types=[[["global", "local"], 1]],
        window_size=8,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=0,
    ),
}
"""Attention biases by key index, so one path goes in one batch row."""


# Exact in double precision; the others compute attention, or experts, in single precision whatever they get.
EXACT = [
    *["llama", "gpt_neox", "opt", "gpt2", "qwen3", "gemma3", "mistral", "phi", "phi3", "falcon", "stablelm"],
    *["olmo2", "cohere", "starcoder2", "gpt_bigcode", "falcon_alibi"],
]
# A model of each kind of position and of window, and one whose paths go in batch rows.
SOME = ["llama", "gemma3", "gpt2", "falcon_alibi"]
# Latent attention, experts, sinks, chunks, and a table that reads positions off the mask.
KINDS = ["deepseek_v3", "gpt_oss", "llama4", "opt", "gpt_neo"]
CASES = [
    pytest.param(name, torch.float32, 1e-4, id=f"{name}-fp32", marks=marks_unless(name in KINDS))
    for name in [*MASKED, *UNROLLED]
] + [
    pytest.param(name, torch.float64, 1e-10, id=f"{name}-fp64", marks=marks_unless(name in SOME))
    for name in EXACT
]


def build(name: str, dtype: torch.dtype = torch.float32) -> Any:
    """A model with random weights large enough that its logits differ from token to token."""
    torch.manual_seed(7)
    config = (MASKED | UNROLLED)[name]()
    return randomised(hf.AutoModelForCausalLM.from_config(config)).to(dtype)


@cache
def pair(name: str, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model, and what a copy of it says, which keeps the attention that transformers gives it."""
    model = build(name, dtype)
    stock = copy.deepcopy(model)
    known = cache(lambda tokens: plain(stock, list(tokens)))
    return model, lambda tokens: known(tuple(tokens))


@pytest.mark.parametrize(("name", "dtype", "tolerance"), CASES)
class TestArchitectures(StateBackendTests):
    vocab_size = VOCAB

    @pytest.fixture(autouse=True)
    def _model(self, name: str, dtype: torch.dtype, tolerance: float) -> None:
        self.model, self.logits_after = pair(name, dtype)  # type: ignore[method-assign]
        self.tolerance = tolerance
        self.kind = TransformerBackend if name in MASKED else UnrolledBackend
        if dtype != torch.float32:
            self.examples, self.longest = 2, 40

    def make_backend(self) -> StateBackend:
        return self.kind(self.model)


@pytest.mark.parametrize("name", [*MASKED, *UNROLLED])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_self_check_chooses_the_backend_that_serves(name: str, dtype: torch.dtype) -> None:
    assert type(load(build(name, dtype))) is (TransformerBackend if name in MASKED else UnrolledBackend)
