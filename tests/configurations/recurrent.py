"""Random configurations of the families with recurrent layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import transformers as hf

from tests.configurations.drawing import ACTIVATIONS, LETTERS, Draw

WIDTHS = (2, 3, 4, 5, 8)
CHUNKS = (1, 2, 4, 7, 16, 64, 256)
STATES = (1, 2, 8, 16, 24)
RANKS: tuple[Any, ...] = ("auto", 1, 4)
LIMITS = ((0.0, math.inf), (0.0, 0.6), (0.5, math.inf), (0.4, 0.8))


def mamba(draw: Draw, config: Any) -> Any:
    hidden = draw.of(4, 16, 24, 32)
    return config(
        **LETTERS,
        hidden_size=hidden,
        num_hidden_layers=draw.randint(1, 3),
        state_size=draw.choice(STATES),
        expand=draw.of(1, 2, 3),
        conv_kernel=draw.choice(WIDTHS),
        use_bias=draw.flag(),
        use_conv_bias=draw.flag(),
        hidden_act=draw.choice(ACTIVATIONS),
        time_step_rank=draw.of("auto", 1, 3, 8),
        tie_word_embeddings=draw.flag(),
        residual_in_fp32=draw.flag(),
    )


def heads(draw: Draw) -> tuple[int, int, int, int]:
    """Heads of Mamba-2, their size and groups, and a hidden size that is half as wide as they are."""
    count = draw.of(1, 2, 4, 6, 8)
    dim = draw.of(8, 12) if count == 1 else draw.of(4, 8, 12)
    return count, dim, draw.divisor(count), count * dim // 2


def mamba2(draw: Draw) -> Any:
    count, dim, groups, hidden = heads(draw)
    return hf.Mamba2Config(
        **LETTERS,
        hidden_size=hidden,
        num_hidden_layers=draw.randint(1, 3),
        num_heads=count,
        head_dim=dim,
        n_groups=groups,
        expand=2,
        state_size=draw.choice(STATES),
        conv_kernel=draw.choice(WIDTHS),
        chunk_size=draw.choice(CHUNKS),
        use_bias=draw.flag(),
        use_conv_bias=draw.flag(),
        hidden_act=draw.choice(ACTIVATIONS),
        time_step_limit=draw.choice(LIMITS),
        tie_word_embeddings=draw.flag(),
        residual_in_fp32=draw.flag(),
    )


def bamba_heads(draw: Draw) -> dict[str, Any]:
    """Settings that Bamba, Falcon-H1 and Granite 4 have in common."""
    count, dim, groups, mixed = heads(draw)
    found = draw.own_head_dim()
    found["head_dim"], found["hidden_size"] = 2 * draw.of(1, 2, 4), mixed
    return found | {
        "mamba_n_heads": count,
        "mamba_d_head": draw.of(dim, "auto"),
        "mamba_n_groups": groups,
        "mamba_expand": 2,
        "mamba_d_state": draw.choice(STATES),
        "mamba_d_conv": draw.choice(WIDTHS),
        "mamba_chunk_size": draw.choice(CHUNKS),
        "mamba_conv_bias": draw.flag(),
        "mamba_proj_bias": draw.flag(),
        "time_step_limit": draw.choice(LIMITS),
    }


def bamba(draw: Draw) -> Any:
    layers = draw.randint(2, 4)
    sizes = bamba_heads(draw)
    options = draw.block(**sizes) | {"num_hidden_layers": layers}
    of_attention = sorted(draw.sample(range(layers), draw.randint(1, layers - 1)))
    return hf.BambaConfig(
        **options, **draw.rope(parts=(0.5, 1.0)), attn_layer_indices=of_attention, attention_bias=draw.flag()
    )


def falcon_h1(draw: Draw) -> Any:
    sizes = bamba_heads(draw)
    return hf.FalconH1Config(
        **draw.block(**sizes),
        **draw.rope(),
        mamba_d_ssm=2 * sizes["hidden_size"],
        mamba_rms_norm=draw.flag(),
        mamba_norm_before_gate=draw.flag(),
        attention_bias=draw.flag(),
        mlp_bias=draw.flag(),
        projectors_bias=draw.flag(),
        embedding_multiplier=draw.of(0.5, 1.0, 3.0),
        lm_head_multiplier=draw.of(0.5, 1.0),
        key_multiplier=draw.of(0.5, 1.0),
        attention_in_multiplier=draw.of(0.5, 1.0),
        attention_out_multiplier=draw.of(0.5, 1.0),
        ssm_in_multiplier=draw.of(0.7, 1.0, 1.5),
        ssm_out_multiplier=draw.of(0.7, 1.0, 1.5),
        ssm_multipliers=[draw.uniform(0.5, 1.5) for _ in range(5)],
        mlp_multipliers=[draw.uniform(0.5, 1.5) for _ in range(2)],
    )


def granite(draw: Draw) -> Any:
    sizes = bamba_heads(draw)
    del sizes["head_dim"]
    sizes["num_attention_heads"] = draw.divisor(max(1, sizes["hidden_size"] // 2))
    sizes["num_key_value_heads"] = draw.divisor(sizes["num_attention_heads"])
    layers = draw.layers("linear_attention", "full_attention")
    return hf.GraniteMoeHybridConfig(
        **draw.block(**sizes) | {"num_hidden_layers": len(layers)},
        **draw.rope() | draw.experts(count="num_local_experts"),
        layer_types=layers,
        shared_intermediate_size=draw.of(8, 24),
        position_embedding_type=draw.of(None, "rope"),
        attention_bias=draw.flag(),
        attention_multiplier=draw.of(0.3, 1.0),
        residual_multiplier=draw.of(0.5, 1.0),
        embedding_multiplier=draw.of(1.0, 3.0),
        logits_scaling=draw.of(1.0, 2.0),
    )


def zamba(draw: Draw) -> Any:
    kinds = ["linear_attention", *draw.layers("linear_attention", "hybrid", "hybrid")]
    hidden, count = draw.of(8, 16, 32), draw.of(1, 2, 4)
    return hf.ZambaConfig(
        **draw.block(hidden_size=hidden, num_attention_heads=4, num_key_value_heads=4)
        | {"num_hidden_layers": len(kinds)},
        layers_block_type=kinds,
        n_mamba_heads=count,
        mamba_expand=2,
        mamba_d_state=draw.choice(STATES),
        mamba_d_conv=draw.choice(WIDTHS),
        mamba_dt_rank=draw.choice(RANKS),
        mamba_conv_bias=draw.flag(),
        mamba_proj_bias=draw.flag(),
        hidden_mamba_act=draw.of("silu", "gelu"),
    )


def zamba2(draw: Draw) -> Any:
    kinds = draw.layers("linear_attention", "hybrid")
    count, dim, groups, hidden = heads(draw)
    attention_heads = draw.divisor(hidden)
    kind: Any = hf.Zamba2Config
    return kind(
        **draw.block(
            hidden_size=hidden, num_attention_heads=attention_heads, num_key_value_heads=attention_heads
        )
        | {"num_hidden_layers": len(kinds), "hidden_act": "gelu"},
        **draw.rope(),
        layers_block_type=kinds,
        n_mamba_heads=count,
        mamba_headdim=dim,
        mamba_ngroups=groups,
        mamba_expand=2,
        mamba_d_state=draw.choice(STATES),
        mamba_d_conv=draw.choice(WIDTHS),
        chunk_size=draw.choice(CHUNKS),
        use_conv_bias=draw.flag(),
        add_bias_linear=draw.flag(),
        use_mem_rope=draw.flag(),
        use_shared_attention_adapter=draw.flag(),
        adapter_rank=draw.of(1, 4),
        num_mem_blocks=draw.of(1, 2),
        time_step_min=draw.of(1e-3, 0.5),
    )


def nemotron_h(draw: Draw) -> Any:
    kinds = draw.layers("linear_attention", "full_attention", draw.of("mlp", "moe"))
    count, dim, groups, hidden = heads(draw)
    return hf.NemotronHConfig(
        **draw.block(**draw.own_head_dim()) | {"hidden_size": hidden},
        layers_block_type=kinds,
        mamba_num_heads=count,
        mamba_head_dim=dim,
        n_groups=groups,
        ssm_state_size=draw.choice(STATES),
        conv_kernel=draw.choice(WIDTHS),
        chunk_size=draw.choice(CHUNKS),
        use_conv_bias=draw.flag(),
        use_bias=draw.flag(),
        mamba_proj_bias=draw.flag(),
        mamba_hidden_act=draw.of("silu", "gelu"),
        mlp_hidden_act=draw.of("relu2", "silu"),
        attention_bias=draw.flag(),
        mlp_bias=draw.flag(),
        time_step_min=draw.of(1e-3, 0.5),
        moe_intermediate_size=8,
        moe_shared_expert_intermediate_size=8,
        n_routed_experts=4,
        num_experts_per_tok=draw.of(1, 2),
        norm_topk_prob=draw.flag(),
        residual_in_fp32=draw.flag(),
    )


def jamba(draw: Draw) -> Any:
    return hf.JambaConfig(
        **draw.block(**draw.heads()) | {"num_hidden_layers": draw.randint(2, 4)},
        **draw.experts(),
        attn_layer_period=2,
        attn_layer_offset=draw.of(0, 1),
        expert_layer_period=draw.of(1, 2),
        expert_layer_offset=0,
        mamba_expand=draw.of(1, 2),
        mamba_d_state=draw.choice(STATES),
        mamba_d_conv=draw.choice(WIDTHS),
        mamba_dt_rank=draw.choice(RANKS),
        mamba_conv_bias=draw.flag(),
        mamba_proj_bias=draw.flag(),
    )


def delta(draw: Draw) -> dict[str, Any]:
    """Sizes of gated delta rules."""
    keys = draw.of(1, 2, 3)
    return {
        "linear_num_key_heads": keys,
        "linear_num_value_heads": keys * draw.of(1, 2, 3),
        "linear_key_head_dim": draw.of(2, 4, 8, 16),
        "linear_value_head_dim": draw.of(2, 4, 8, 16),
        "linear_conv_kernel_dim": draw.choice(WIDTHS),
    }


def qwen3(draw: Draw, config: Any, *, experts: bool) -> Any:
    kinds = draw.layers("linear_attention", "full_attention")
    options = draw.block(**draw.own_head_dim()) | {"head_dim": draw.of(4, 8, 16)}
    if experts:
        options |= draw.experts()
        options |= {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    return config(
        **options | {"num_hidden_layers": len(kinds)},
        **delta(draw),
        **draw.rope(parts=(0.5, 1.0)),
        layer_types=kinds,
        attention_bias=draw.flag(),
    )


def olmo_hybrid(draw: Draw) -> Any:
    kinds = draw.layers("linear_attention", "full_attention")
    sizes = delta(draw)
    sizes["linear_num_value_heads"] = sizes["linear_num_key_heads"]
    return hf.OlmoHybridConfig(
        **draw.block(**draw.heads()) | {"num_hidden_layers": len(kinds)},
        **sizes,
        layer_types=kinds,
        linear_allow_neg_eigval=draw.flag(),
        attention_bias=draw.flag(),
    )


def lfm2(draw: Draw, config: Any, *, experts: bool) -> Any:
    kinds = draw.layers("conv", "full_attention")
    options = draw.block(**draw.heads()) | {"num_hidden_layers": len(kinds)}
    del options["hidden_act"]
    if experts:
        options |= draw.experts() | {"moe_intermediate_size": 8, "num_dense_layers": draw.randint(0, 2)}
        options |= {"use_expert_bias": draw.flag(), "norm_topk_prob": draw.flag()}
    else:
        options |= {"block_auto_adjust_ff_dim": draw.flag(), "block_multiple_of": 4}
    return config(**options, layer_types=kinds, conv_L_cache=draw.choice(WIDTHS), conv_bias=draw.flag())


def recurrent_gemma(draw: Draw) -> Any:
    count, dim = draw.of(1, 2, 4), draw.of(4, 8, 12)
    own = draw.block(hidden_size=count * dim, num_attention_heads=count)
    del own["max_position_embeddings"], own["hidden_act"]
    kinds = draw.layers("recurrent", "attention")
    return hf.RecurrentGemmaConfig(
        **own | {"num_hidden_layers": len(kinds)},
        **draw.rope(parts=(0.5, 1.0)),
        num_key_value_heads=draw.divisor(count),
        lru_width=count * dim,
        conv1d_width=draw.choice(WIDTHS),
        attention_window_size=draw.of(2, 3, 8, 64, 200),
        block_types=kinds,
        logits_soft_cap=draw.of(5.0, 30.0),
        attention_bias=draw.flag(),
        hidden_activation=draw.of("gelu_pytorch_tanh", "silu"),
    )


RECURRENT: dict[str, Callable[[Draw], Any]] = {
    "mamba": lambda draw: mamba(draw, hf.MambaConfig),
    "falcon_mamba": lambda draw: mamba(draw, hf.FalconMambaConfig),
    "mamba2": mamba2,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "granitemoehybrid": granite,
    "zamba": zamba,
    "zamba2": zamba2,
    "nemotron_h": nemotron_h,
    "jamba": jamba,
    "qwen3_next": lambda draw: qwen3(draw, hf.Qwen3NextConfig, experts=True),
    "qwen3_5": lambda draw: qwen3(draw, hf.Qwen3_5TextConfig, experts=False),
    "qwen3_5_moe": lambda draw: qwen3(draw, hf.Qwen3_5MoeTextConfig, experts=True),
    "olmo_hybrid": olmo_hybrid,
    "lfm2": lambda draw: lfm2(draw, hf.Lfm2Config, experts=False),
    "lfm2_moe": lambda draw: lfm2(draw, hf.Lfm2MoeConfig, experts=True),
    "recurrent_gemma": recurrent_gemma,
}
