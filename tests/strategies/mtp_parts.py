"""Sizes of tiny MTP layers, and the shapes of the parts that families share."""

from __future__ import annotations

from typing import Any

import attrs

WIDTH, WORDS, EXPERTS, INNER = 16, 23, 4, 12
PLAIN: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": INNER}
GROUPED = {**ROUTED, "n_routed_experts": EXPERTS, "n_group": 1, "topk_group": 1}
SHARED = {**ROUTED, "num_experts": EXPERTS, "shared_expert_intermediate_size": INNER}
LINEAR = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 4,
    "layer_types": ["linear_attention", "full_attention"],
}
MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.5,
    "mrope_section": [1, 1, 0],
    "mrope_interleaved": True,
}


def gated(inner: int, *, at: str = "mlp") -> dict[str, tuple[int, ...]]:
    """Shapes of a gated MLP's weights."""
    return {
        f"{at}.gate_proj.weight": (inner, WIDTH),
        f"{at}.up_proj.weight": (inner, WIDTH),
        f"{at}.down_proj.weight": (WIDTH, inner),
    }


def experts(inner: int = INNER) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (EXPERTS, WIDTH)}
    for number in range(EXPERTS):
        shapes |= gated(inner, at=f"mlp.experts.{number}")
    return shapes


def attention(
    dim: int, *, queries: int = 1, norms: bool = False, bias: bool = False, at: str = "self_attn"
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        f"{at}.q_proj.weight": (4 * dim * queries, WIDTH),
        f"{at}.k_proj.weight": (2 * dim, WIDTH),
        f"{at}.v_proj.weight": (2 * dim, WIDTH),
        f"{at}.o_proj.weight": (WIDTH, 4 * dim),
    }
    if norms:
        shapes |= {f"{at}.q_norm.weight": (dim,), f"{at}.k_norm.weight": (dim,)}
    if bias:
        shapes |= {
            f"{at}.{name}.bias": shapes[f"{at}.{name}.weight"][:1] for name in ("q_proj", "k_proj", "v_proj")
        }
    return shapes


NORMS: dict[str, tuple[int, ...]] = {
    "input_layernorm.weight": (WIDTH,),
    "post_attention_layernorm.weight": (WIDTH,),
}
WIDE, WIDTHS = (WIDTH, 2 * WIDTH), (WIDTH,)


def below(prefix: str, *parts: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {prefix + name: shape for part in parts for name, shape in part.items()}


MLA = {
    "self_attn.q_a_proj.weight": (8, WIDTH),
    "self_attn.q_a_layernorm.weight": (8,),
    "self_attn.q_b_proj.weight": (4 * 10, 8),
    "self_attn.kv_a_proj_with_mqa.weight": (8 + 4, WIDTH),
    "self_attn.kv_a_layernorm.weight": (8,),
    "self_attn.kv_b_proj.weight": (4 * (6 + 5), 8),
    "self_attn.o_proj.weight": (WIDTH, 4 * 5),
}
LATENT = {
    **GROUPED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}
# Few keys are chosen, and by many heads, since the scores of few are often all zero.
INDEXED = {"index_topk": 4, "index_head_dim": 6, "index_n_heads": 24}
INDEXER = {
    "self_attn.indexer.wq_b.weight": (24 * 6, 8),
    "self_attn.indexer.wk.weight": (6, WIDTH),
    "self_attn.indexer.k_norm.weight": (6,),
    "self_attn.indexer.k_norm.bias": (6,),
    "self_attn.indexer.weights_proj.weight": (24, WIDTH),
}
APPENDED = {
    "enorm.weight": WIDTHS,
    "hnorm.weight": WIDTHS,
    "eh_proj.weight": WIDE,
    "shared_head.norm.weight": WIDTHS,
}
QWEN = below(
    "mtp.",
    {
        "pre_fc_norm_embedding.weight": WIDTHS,
        "pre_fc_norm_hidden.weight": WIDTHS,
        "fc.weight": WIDE,
        "norm.weight": WIDTHS,
    },
)
SHARED_EXPERT = {**gated(INNER, at="mlp.shared_expert"), "mlp.shared_expert_gate.weight": (1, WIDTH)}
CORRECTED = {
    **experts(),
    "mlp.gate.e_score_correction_bias": (EXPERTS,),
    **gated(INNER, at="mlp.shared_experts"),
}


@attrs.frozen(kw_only=True)
class Kind:
    """A family's tiny model, and the tensors of its MTP layer.

    Attributes:
        model_type: in transformers.
        options: of its config.
        told: what the checkpoint's `config.json` says besides.
        shapes: of the layer's tensors, by the names of real checkpoints.
        classes: transformers' module and the beginning of its classes, for the forward without a cache.
        outer: the names of the norms of embedding, state and output, and of the projection.
        layer: the beginnings of its blocks' names.
        state_first: whether the state comes before the embedding.
        before_norm: whether states come before the model's last norm, which is the layer's own too.
        sparse: which numbers of an indexer's queries and keys turn together, halves or neighbours; "all": the
            layer has no indexer. It is written from its definition then, in `latent_layers`.
        mlp: `mlp_layer_types` of the layer.
    """

    model_type: str
    options: dict[str, Any]
    told: dict[str, Any] = attrs.field(factory=dict)
    shapes: dict[str, tuple[int, ...]]
    classes: tuple[str, str] = ("", "")
    outer: tuple[str, ...] = ("", "", "", "")
    layer: tuple[str, ...] = ()
    state_first: bool = False
    before_norm: bool = False
    sparse: str = ""
    mlp: str = "sparse"
