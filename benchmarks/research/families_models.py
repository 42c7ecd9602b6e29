"""Every decoder family of the installed transformers, built tiny from its configuration class.

A configuration's own defaults say what a family is made of; its numbers are made small by their names, and of
its layers one of each kind is kept. Whatever depends on a text's length (windows, chunks, scales, switches of
the rotation) begins at a few tokens, so that a short text goes beyond it.
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
import transformers as hf
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VOCAB, WIDTH, HEADS, GROUPS, HEAD, WIDE, EXPERTS, SWITCH, CONTEXT = 96, 64, 4, 2, 16, 96, 4, 96, 512
"""Tokens, hidden size, heads, key heads, a head's size, inner size, experts, a switch, positions."""

SIZES: dict[str, int] = {
    name: size
    for size, names in (
        (VOCAB, "vocab_size vocab_size_per_layer_input unpadded_vocab_size"),
        (WIDTH, "hidden_size d_model n_embd embed_dim emb_dim dim_model out_hidden_size text_hidden_size"),
        (WIDTH, "embedding_size word_embed_proj_dim output_dim projection_dim"),
        (HEADS, "num_attention_heads n_head n_heads num_heads attention_heads swa_num_attention_heads"),
        (HEADS, "encoder_attention_heads decoder_attention_heads"),
        (GROUPS, "num_key_value_heads swa_num_key_value_heads n_head_kv"),
        (HEAD, "head_dim swa_head_dim kv_channels global_head_dim dim_head qk_nope_head_dim v_head_dim"),
        (HEAD, "index_head_dim indexer_head_dim kv_lora_rank q_lora_rank o_lora_rank query_pre_attn_scalar"),
        (8, "qk_rope_head_dim rotary_dim hidden_size_per_layer_input laurel_rank"),
        # Of few heads, the scores that choose keys are often all 0, and which are chosen is then open.
        (32, "index_n_heads"),
        (WIDE, "dff intermediate_size ffn_dim ffn_hidden_size n_inner dim_ff intermediate_size_mlp mlp_dim"),
        (WIDE, "dense_intermediate_size encoder_ffn_dim decoder_ffn_dim moe_intermediate_size"),
        (WIDE, "shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size"),
        (WIDE, "moe_shared_expert_intermediate_size shared_experts_intermediate_size"),
        (EXPERTS, "num_experts n_routed_experts num_local_experts moe_num_experts num_routed_experts"),
        (EXPERTS, "moe_num_primary_experts"),
        (2, "num_experts_per_tok num_experts_per_token moe_k moe_topk top_k_experts"),
        (1, "n_group topk_group num_expert_group"),
        (64, "encoder_hash_byte_group_vocab"),
        (8, "mamba_chunk_size chunk_size mamba_d_state state_size ssm_state_size"),
        (CONTEXT, "max_position_embeddings n_positions max_seq_len n_ctx max_sequence_length"),
        # Longer than the texts, as models whose rotation switches end there.
        (SWITCH, "original_max_position_embeddings"),
        (8, "mamba_n_heads mamba_num_heads"),
        (16, "mamba_d_head mamba_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim"),
        (2, "mamba_n_groups n_groups mamba_ngroups linear_num_key_heads"),
        (4, "mamba_dt_rank time_step_rank linear_num_value_heads linear_num_heads"),
    )
    for name in names.split()
}
"""What the numbers of a text model are set to, by name."""

REACHES = {
    *["sliding_window", "sliding_window_size", "attention_chunk_size", "floor_scale", "window_size"],
    *["attention_window_size", "local_attention", "index_topk", "log_scaling_n_floor", "rel_extent"],
    *["block_size", "index_block_size", "indexer_budget"],
}
"""Names of windows, chunks, scales and switches: what depends on a text's length."""

DEPTHS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_blocks", "layers", "depth")
OTHER = {
    *[
        "hidden_size",
        "d_model",
        "embed_dim",
        "out_hidden_size",
        "text_hidden_size",
        "output_dim",
        "projection_dim",
    ],
    *[
        "num_attention_heads",
        "num_heads",
        "attention_heads",
        "num_key_value_heads",
        "intermediate_size",
        "mlp_dim",
    ],
    *["encoder_ffn_dim", "encoder_attention_heads", "ffn_dim"],
}
"""Those that are set in the other parts of a composite model too."""

SPECIAL = ("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id")


def _turns(*section: int) -> dict[str, Any]:
    """A rotation whose pairs go by three positions: time, height, width."""
    return {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": list(section)}
    }


MIXED = ["sliding_attention", "full_attention"]
LINEAR = ["linear_attention", "full_attention"]
COMPASS = {"rope_parameters": {"full_attention": _turns(4, 2, 2)["rope_parameters"]}}
CHOSEN_KEYS = {
    "indexer_n_heads": 32,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 32,
    "indexer_compress_ratio": 4,
}
GIVEN: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "granitemoehybrid": {"layer_types": LINEAR},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "falcon_h1": {"mamba_d_ssm": 128, "mamba_d_head": 16},
    "gemma3n_text": {"layer_types": MIXED * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2},
    "gemma4_unified_assistant": {"layer_types": MIXED * 2, "num_hidden_layers": 4, "num_kv_shared_layers": 2},
    "mamba2": {"num_heads": 8},
    "dots1": {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_hidden_layers": 2, "num_dense_layers": 1},
    "step3p7": {"sliding_window": 32},
    "xlstm": {"num_heads": 4},
    "zaya": {"num_experts_per_tok": 1},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "zamba": {"layers_block_type": ["linear_attention", "hybrid"] * 2, "num_hidden_layers": 4},
    "cohere_compass": COMPASS,
    "cohere_compass_text": COMPASS,
    "dbrx": {
        "attn_config": {"more": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
        "more": {"moe_num_experts": 4},
    },
    "granite4_vision": {"deepstack_layer_map": [], "spatial_target_layers": []},
    "qwen2_5_omni_thinker": _turns(4, 2, 2) | {"more": {"vision_start_token_id": 95}},
    "qwen3_omni_moe_thinker": {"more": {"vision_start_token_id": 95}},
    "hunyuan_vl": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2, 2]}
    },
    "kyutai_speech_to_text": {"audio_pad_token_id": 2, "codebook_vocab_size": 32},
    "longcat_flash": {"qk_head_dim": 24, "head_dim": 8},
    "nemotron": {"num_key_value_heads": GROUPS},
    "qwen4_exp": CHOSEN_KEYS,
    "qwen4_exp_text": CHOSEN_KEYS,
    "xmod": {"default_language": "en_XX"},
    "reformer": {"axial_pos_embds_dim": [16, 48], "axial_pos_shape": [16, 32]},
    "deepseek_ocr2": {
        "num_experts_per_tok": 2,
        "mlp_layer_types": ["dense", "sparse"],
        "num_hidden_layers": 2,
    },
    "chameleon": {"vocabulary_map": {"<image>": 90}},
    "musicgen_melody": {},
    "glm5_next": {"index_kpool": 8},
    **dict.fromkeys(
        [
            "qwen2_vl",
            "qwen2_5_vl",
            "paddleocr_vl",
            "glm46v",
            "glm4v",
            "glm_ocr",
            "glmga",
            "qwen2_5_omni_thinker",
        ],
        _turns(4, 2, 2),
    ),
    "ernie4_5_vl_moe": _turns(3, 3, 2),
    "glm4v_moe": _turns(2, 1, 1),
}
"""What a family needs besides, wherever its configuration has the name."""

LONG = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": SWITCH,
    "short_factor": [1.0 + 0.1 * pair for pair in range(HEAD // 2)],
    "short_mscale": 1.1,
    "long_mscale": 1.2,
    "long_factor": [2.0 + 0.7 * pair for pair in range(HEAD // 2)],
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    f"{family} (longrope)": (family, {"rope_parameters": LONG})
    for family in ("phi3", "phimoe", "phi4_multimodal")
}
"""Settings that a family's defaults lack and its published models have."""

WHOLE = ("attn_config", "ffn_config", "patcher_config", "encoder_config", "decoder_config", "global_config")
"""Parts of models that are text from end to end."""

TEXT = ("text_config", "decoder", "generator", "language_config", "llm_config", "lm_config", "thinker_config")
"""What composite configurations call the part that writes text."""


def families() -> list[str]:
    """Every `model_type` that transformers' classes for text generation know, encoder-decoders included."""
    return sorted({name for mapping in _mappings() for name in mapping})


def small(
    config: Any, overrides: Mapping[str, Any], *, reach: int, text: bool = True, cut: Collection[str] = ()
) -> Any:
    """A configuration of the same class with few and narrow layers, one of each kind that `config` has.

    Args:
        config: with the defaults of its class.
        overrides: what else to say, by name; for a part, by the part's name, a mapping.
        reach: tokens of every window, chunk, scale and switch.
        text: whether it describes what writes text.
        cut: names of what is made small in the other parts, besides their depth; nothing: they are left.
    """
    changed: dict[str, Any] = {}
    parts = {
        name: part
        for name in getattr(config, "sub_configs", {})
        if isinstance(part := getattr(config, name, None), hf.PreTrainedConfig)
    }
    writes = [name for name in TEXT if name in parts]
    for name, part in parts.items():
        own = text and name in (writes or WHOLE)
        if own or cut:
            changed[name] = small(
                part, overrides.get(name, overrides if own else {}), reach=reach, text=own, cut=cut
            )
    known = set(inspect.signature(type(config).__init__).parameters)
    depth = next((n for n in DEPTHS if isinstance(getattr(config, n, None), int)), None)
    if depth is not None:
        changed |= _fewer_layers(config, depth)
    rotation = getattr(config, "rope_parameters", None)
    if (
        text
        and isinstance(rotation, dict)
        and "mrope_section" in rotation
        and "rope_parameters" not in overrides
    ):
        share = rotation.get("partial_rotary_factor", 1.0)
        turns = int(HEAD * share) // 2
        changed["rope_parameters"] = rotation | {
            "mrope_section": [turns - 2 * (turns // 4), *[turns // 4] * 2]
        }
    for name, value in vars(config).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if name in (SIZES if text else cut) and value > 0:
            changed[name] = min(int(value), SIZES[name]) if "head" in name else SIZES[name]
        elif text and name in REACHES and value > 0:
            changed[name] = reach
        elif text and name in SPECIAL:
            changed[name] = SPECIAL.index(name)
    own = vars(config)
    if text and own.get("num_key_value_heads") == own.get("num_attention_heads", 0):
        changed["num_key_value_heads"] = HEADS
    if text:
        missing = {"head_dim": HEAD} if not writes and own.get("head_dim", 0) is None else {}
        here = {name: value for name, value in overrides.items() if name in own and name not in parts}
        here |= dict.fromkeys(REACHES & here.keys(), reach)
        changed |= missing | here
    changed |= overrides.get("more", {})
    if "is_decoder" in known and not parts and not config.is_encoder_decoder:
        changed["is_decoder"] = True
    return type(config)(
        **{name: value for name, value in changed.items() if name in known | {*overrides.get("more", {})}}
    )


def _fewer_layers(config: Any, depth: str) -> dict[str, Any]:
    """The depth, and everything told layer by layer, for one layer of each kind, two at least."""
    count = getattr(config, depth)
    by_layer = {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, list | tuple) and len(value) == count > 3 and "idx" not in name
    }
    kinds = list(zip(*by_layer.values(), strict=True)) if by_layer else [()] * count
    kept = sorted({repr(kind): layer for layer, kind in reversed(list(enumerate(kinds)))}.values())[:6]
    if len(kept) < 2:
        kept = sorted(
            {*kept, *[layer for layer in range(min(count, 3)) if layer not in kept][: 2 - len(kept)]}
        )
    return {depth: len(kept)} | {
        name: type(value)(value[layer] for layer in kept) for name, value in by_layer.items()
    }


def build(
    family: str,
    *,
    reach: int,
    classes: Mapping[str, Any] | None = None,
    more: Mapping[str, Any] | None = None,
    parts: Collection[str] = (),
) -> Any:
    """A model of `family`, or of a variant, with random weights, in evaluation mode and single precision.

    Args:
        family: transformers' `model_type`.
        reach: tokens of every window, chunk, scale and switch.
        classes: names of classes by family; default: the first of transformers' classes that write text.
        more: what else the configuration is to say.
        parts: configurations of parts that the defaults of its class leave out.
    """
    torch.manual_seed(7)
    family, overrides = VARIANTS.get(family, (family, GIVEN.get(family, {})))
    overrides = {**overrides, **(more or {})}
    mappings = _mappings() if classes is None else [classes]
    # Where the other parts of a composite model cannot be made narrow, they are made short, or left.
    for cut in (OTHER, {"out_hidden_size", "text_hidden_size"}, ()):
        try:
            model = _built(family, overrides, reach, cut, mappings, parts)
            break
        except Exception:
            if not cut:
                raise
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "A_log" in name:
                parameter.uniform_(-2.0, 1.0)
            elif parameter.dim() > 1 and "norm" not in name:
                parameter.normal_(0.0, 0.2)
    # What checkpoints force or forbid at a text's beginning and end is no part of the model.
    model.generation_config = hf.GenerationConfig(pad_token_id=0)
    return model.float().eval()


def _built(
    family: str,
    overrides: Mapping[str, Any],
    reach: int,
    cut: Collection[str],
    mappings: Sequence[Mapping[str, Any]],
    parts: Collection[str],
) -> Any:
    empty: dict[str, Any] = {name: {} for name in parts}
    whole = CONFIG_MAPPING[family](**empty)
    config = small(whole, overrides, reach=reach, cut=cut)
    name = next(mapping[family] for mapping in mappings if family in mapping)
    kind: Any = getattr(hf, name if isinstance(name, str) else name[0])
    if not isinstance(config, kind.config_class):
        texts = [part for part in vars(config).values() if type(part) is kind.config_class]
        config = texts[0] if texts else config
    return kind._from_config(config)


def _mappings() -> list[Mapping[str, Any]]:
    return [
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    ]
