"""Random configurations of the families with attention only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import transformers as hf

from tests.configurations.drawing import LETTERS, POSITIONS, VOCAB, Draw

PARTS = (0.5, 1.0)


def llama(draw: Draw, config: Any, **options: Any) -> Any:
    """Families that have Llama's options, and some further `options`."""
    return config(
        **draw.block(**draw.heads()) | draw.rope() | {"attention_bias": draw.flag()} | options,
    )


def windowed(draw: Draw, config: Any, **options: Any) -> Any:
    """Families with one window for all layers, or none."""
    return config(
        **draw.block(**draw.heads()) | draw.rope() | options, sliding_window=draw.of(None, draw.window())
    )


def mixed(draw: Draw, config: Any, *, sizes: dict[str, Any] | None = None, **options: Any) -> Any:
    """Families with windows in some layers, and all of the text in the others."""
    layers = draw.layers("sliding_attention", "full_attention")
    block = draw.block(**(draw.own_head_dim() if sizes is None else sizes))
    return config(
        **block | {"num_hidden_layers": len(layers), "layer_types": layers} | options,
        sliding_window=draw.window(),
    )


def qwen(draw: Draw, config: Any, **options: Any) -> Any:
    layers = draw.randint(1, 3)
    return config(
        **draw.block(**draw.heads()) | {"num_hidden_layers": layers} | draw.rope() | options,
        use_sliding_window=draw.flag(),
        sliding_window=draw.window(),
        max_window_layers=draw.randint(0, layers),
    )


def gemma(draw: Draw, config: Any, **options: Any) -> Any:
    return mixed(
        draw,
        config,
        hidden_activation=draw.of("gelu_pytorch_tanh", "silu"),
        query_pre_attn_scalar=draw.of(1, 8, 20),
        attention_bias=draw.flag(),
        final_logit_softcapping=draw.of(None, 3.0, 30.0),
        attn_logit_softcapping=draw.of(None, 2.0, 50.0),
        **options,
    )


def gpt2(draw: Draw, config: Any, **options: Any) -> Any:
    count = draw.of(1, 2, 3, 4)
    return config(
        **LETTERS,
        n_embd=count * draw.of(4, 8, 12),
        n_head=count,
        n_layer=draw.randint(1, 3),
        n_positions=POSITIONS,
        n_inner=draw.of(None, 20),
        activation_function=draw.of("gelu_new", "relu", "silu"),
        tie_word_embeddings=draw.flag(),
        **options,
    )


def neox(draw: Draw) -> Any:
    heads = draw.heads(dims=(4, 8, 16))
    del heads["num_key_value_heads"]
    return hf.GPTNeoXConfig(
        **draw.block(**heads),
        **draw.rope(parts=(0.25, 0.5, 1.0)),
        use_parallel_residual=draw.flag(),
        attention_bias=draw.flag(),
    )


def gpt_neo(draw: Draw) -> Any:
    layers = draw.of(1, 2)
    count = draw.of(1, 2, 4)
    return hf.GPTNeoConfig(
        **LETTERS,
        hidden_size=count * draw.of(4, 8),
        num_heads=count,
        num_layers=2 * layers,
        attention_types=[[["global", "local"], layers]],
        window_size=draw.window(),
        max_position_embeddings=POSITIONS,
        intermediate_size=draw.of(None, 20),
        activation_function=draw.of("gelu_new", "relu"),
    )


def opt(draw: Draw) -> Any:
    heads = draw.heads()
    before = draw.flag()
    return hf.OPTConfig(
        **LETTERS,
        num_hidden_layers=draw.randint(1, 3),
        hidden_size=heads["hidden_size"],
        num_attention_heads=heads["num_attention_heads"],
        ffn_dim=draw.of(8, 24),
        max_position_embeddings=POSITIONS,
        do_layer_norm_before=before,
        word_embed_proj_dim=draw.of(heads["hidden_size"], 10),
        enable_bias=draw.flag(),
        activation_function=draw.of("relu", "gelu"),
        tie_word_embeddings=draw.flag(),
    )


def bloom(draw: Draw) -> Any:
    count = draw.of(1, 2, 3, 4)
    return hf.BloomConfig(
        **LETTERS,
        hidden_size=count * draw.of(4, 8),
        n_head=count,
        n_layer=draw.randint(1, 3),
        apply_residual_connection_post_layernorm=draw.flag(),
    )


def falcon(draw: Draw) -> Any:
    heads = draw.heads(dims=(4, 8))
    shared = heads.pop("num_key_value_heads")
    new, alibi = draw.flag(), draw.flag()
    return hf.FalconConfig(
        **draw.block(**heads),
        alibi=alibi,
        new_decoder_architecture=new,
        num_kv_heads=shared if new else None,
        multi_query=draw.flag(),
        parallel_attn=draw.flag(),
        bias=draw.flag(),
        num_ln_in_parallel_attn=draw.of(None, 1, 2) if new else None,
    )


def mpt(draw: Draw) -> Any:
    count = draw.of(1, 2, 3, 4)
    return hf.MptConfig(
        vocab_size=VOCAB,
        d_model=count * draw.of(4, 8),
        n_heads=count,
        n_layers=draw.randint(1, 3),
        max_seq_len=POSITIONS,
        expansion_ratio=draw.of(1, 2),
    )


def latent(draw: Draw, config: Any, **options: Any) -> Any:
    """DeepSeek's attention over latent vectors."""
    count, dense = draw.of(1, 2, 4), draw.of(0, 1)
    groups = draw.of(1, 2)
    return config(
        **draw.block(hidden_size=draw.of(16, 24), num_attention_heads=count, num_key_value_heads=count),
        **draw.rope(),
        kv_lora_rank=draw.of(4, 12),
        q_lora_rank=draw.of(None, 8),
        qk_rope_head_dim=draw.of(2, 4, 8),
        qk_nope_head_dim=draw.of(2, 4, 8),
        v_head_dim=draw.of(2, 6, 8),
        n_routed_experts=4,
        n_shared_experts=draw.of(1, 2),
        num_experts_per_tok=draw.of(1, 2),
        moe_intermediate_size=8,
        n_group=groups,
        topk_group=groups,
        first_k_dense_replace=dense,
        norm_topk_prob=draw.flag(),
        routed_scaling_factor=draw.of(1.0, 2.5),
        attention_bias=draw.flag(),
        **options,
    )


def cohere(draw: Draw) -> Any:
    return llama(
        draw, hf.CohereConfig, use_qk_norm=draw.flag(), logit_scale=draw.of(0.2, 1.0), pad_token_id=0
    )


def stablelm(draw: Draw) -> Any:
    return hf.StableLmConfig(
        **draw.block(**draw.heads(dims=(4, 8, 16))),
        **draw.rope(parts=(0.25, 0.5, 1.0)),
        use_qkv_bias=draw.flag(),
        qk_layernorm=draw.flag(),
        use_parallel_residual=draw.flag(),
    )


def phi(draw: Draw) -> Any:
    return hf.PhiConfig(
        **draw.block(**draw.heads(dims=(4, 8, 16))), **draw.rope(parts=PARTS), qk_layernorm=draw.flag()
    )


def granite(draw: Draw) -> Any:
    return llama(
        draw,
        hf.GraniteConfig,
        embedding_multiplier=draw.of(1.0, 3.0),
        logits_scaling=draw.of(1.0, 2.0),
        residual_multiplier=draw.of(0.5, 1.0),
        attention_multiplier=draw.of(0.2, 1.0),
        mlp_bias=draw.flag(),
    )


def glm(draw: Draw, config: Any) -> Any:
    return config(
        **draw.block(**draw.own_head_dim()) | {"head_dim": draw.of(4, 8)},
        **draw.rope(parts=PARTS),
        attention_bias=draw.flag(),
    )


def llama4(draw: Draw) -> Any:
    layers = draw.layers("chunked_attention", "full_attention")
    return hf.Llama4TextConfig(
        **draw.block(**draw.own_head_dim()) | {"num_hidden_layers": len(layers)},
        **draw.rope(),
        intermediate_size_mlp=24,
        num_local_experts=2,
        layer_types=layers,
        attention_chunk_size=draw.of(2, 3, 8, 64),
        no_rope_layers=[draw.of(0, 1) for _ in layers],
        use_qk_norm=draw.flag(),
        attn_temperature_tuning=draw.flag(),
        floor_scale=draw.of(4, 8192),
        attention_bias=draw.flag(),
    )


def minimax(draw: Draw) -> Any:
    layers = draw.layers("linear_attention", "full_attention")
    return hf.MiniMaxConfig(
        **draw.block(**draw.heads()) | {"num_hidden_layers": len(layers)},
        **draw.experts(count="num_local_experts"),
        layer_types=layers,
        block_size=draw.of(2, 16, 256),
    )


ATTENTION: dict[str, Callable[[Draw], Any]] = {
    "llama": lambda draw: llama(draw, hf.LlamaConfig, mlp_bias=draw.flag(), head_dim=draw.of(None, 4, 10)),
    "mistral": lambda draw: windowed(draw, hf.MistralConfig, head_dim=draw.of(None, 4, 10)),
    "mixtral": lambda draw: windowed(draw, hf.MixtralConfig, **draw.experts(count="num_local_experts")),
    "qwen2": lambda draw: qwen(draw, hf.Qwen2Config),
    "qwen3": lambda draw: qwen(draw, hf.Qwen3Config, head_dim=draw.of(4, 8), attention_bias=draw.flag()),
    "qwen3_moe": lambda draw: llama(
        draw,
        hf.Qwen3MoeConfig,
        head_dim=draw.of(4, 8),
        moe_intermediate_size=8,
        norm_topk_prob=draw.flag(),
        decoder_sparse_step=draw.of(1, 2),
        **draw.experts(),
    ),
    "gemma": lambda draw: llama(draw, hf.GemmaConfig, head_dim=draw.of(4, 8)),
    "gemma2": lambda draw: gemma(draw, hf.Gemma2Config, **draw.rope()),
    "gemma3": lambda draw: gemma(draw, hf.Gemma3TextConfig),
    "gpt2": lambda draw: gpt2(
        draw,
        hf.GPT2Config,
        scale_attn_weights=draw.flag(),
        scale_attn_by_inverse_layer_idx=draw.flag(),
        reorder_and_upcast_attn=draw.flag(),
    ),
    "gpt_bigcode": lambda draw: gpt2(draw, hf.GPTBigCodeConfig, multi_query=draw.flag()),
    "gptj": lambda draw: gpt2(draw, hf.GPTJConfig, rotary_dim=draw.of(2, 4)),
    "codegen": lambda draw: gpt2(draw, hf.CodeGenConfig, rotary_dim=draw.of(2, 4)),
    "gpt_neo": gpt_neo,
    "gpt_neox": neox,
    "opt": opt,
    "bloom": bloom,
    "falcon": falcon,
    "mpt": mpt,
    "olmo": lambda draw: llama(draw, hf.OlmoConfig, clip_qkv=draw.of(None, 1.0)),
    "olmo2": lambda draw: llama(draw, hf.Olmo2Config),
    "olmo3": lambda draw: mixed(draw, hf.Olmo3Config, sizes=draw.heads(), attention_bias=draw.flag()),
    "phi": phi,
    "phi3": lambda draw: windowed(draw, hf.Phi3Config),
    "cohere": cohere,
    "cohere2": lambda draw: mixed(draw, hf.Cohere2Config, logit_scale=draw.of(0.2, 1.0)),
    "stablelm": stablelm,
    "starcoder2": lambda draw: windowed(draw, hf.Starcoder2Config, use_bias=draw.flag()),
    "deepseek_v2": lambda draw: latent(
        draw, hf.DeepseekV2Config, topk_method=draw.of("greedy", "group_limited_greedy")
    ),
    "deepseek_v3": lambda draw: latent(draw, hf.DeepseekV3Config, rope_interleave=draw.flag()),
    "gpt_oss": lambda draw: mixed(
        draw, hf.GptOssConfig, **draw.rope() | draw.experts(count="num_local_experts")
    ),
    "granite": granite,
    "nemotron": lambda draw: llama(draw, hf.NemotronConfig, head_dim=draw.of(4, 8), mlp_bias=draw.flag()),
    "smollm3": lambda draw: llama(draw, hf.SmolLM3Config, no_rope_layer_interval=draw.of(1, 2, 4)),
    "glm": lambda draw: glm(draw, hf.GlmConfig),
    "glm4": lambda draw: glm(draw, hf.Glm4Config),
    "persimmon": lambda draw: hf.PersimmonConfig(
        **draw.block(hidden_size=32, num_attention_heads=4),
        **draw.rope(parts=PARTS),
        qk_layernorm=draw.flag(),
    ),
    "exaone4": lambda draw: mixed(draw, hf.Exaone4Config, sizes=draw.heads(), **draw.rope()),
    "llama4": llama4,
    "minimax": minimax,
}
