"""Tiny checkpoints with MTP layers, by the tensors that real ones have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from draftwood.strategies.drafters.mtp import Mtp
from draftwood.testing import DrafterWithTarget
from tests.strategies.mtp_parts import (
    APPENDED,
    CORRECTED,
    EXPERTS,
    GROUPED,
    INDEXED,
    INDEXER,
    INNER,
    LATENT,
    LINEAR,
    MLA,
    MROPE,
    NORMS,
    PLAIN,
    QWEN,
    ROUTED,
    SHARED,
    SHARED_EXPERT,
    WIDE,
    WIDTH,
    WIDTHS,
    WORDS,
    Kind,
    attention,
    below,
    experts,
    gated,
)

DEEPSEEK_OUTER = tuple(f"model.layers.2.{name}" for name in ("enorm", "hnorm", "shared_head.norm", "eh_proj"))
QWEN_OUTER = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.fc")
KINDS = {
    "deepseek": Kind(
        model_type="deepseek_v3",
        options={
            **LATENT,
            "first_k_dense_replace": 1,
        },
        told={"num_nextn_predict_layers": 1},
        shapes=below(
            "model.layers.2.",
            APPENDED,
            {"embed_tokens.weight": (WORDS, WIDTH), "shared_head.head.weight": (WORDS, WIDTH)},
            NORMS,
            MLA,
            CORRECTED,
        ),
    ),
    "deepseek-sparse": Kind(
        model_type="deepseek_v32",
        options={**LATENT, **INDEXED, "first_k_dense_replace": 1},
        told={"num_nextn_predict_layers": 1},
        shapes=below("model.layers.2.", APPENDED, NORMS, MLA, INDEXER, CORRECTED),
        sparse="halves",
        layer=("model.layers.2.",),
        outer=DEEPSEEK_OUTER,
    ),
    "glm-sparse": Kind(
        model_type="glm_moe_dsa",
        options={**LATENT, **INDEXED, "first_k_dense_replace": 1},
        told={"num_nextn_predict_layers": 1, "index_share_for_mtp_iteration": True},
        shapes=below("model.layers.2.", APPENDED, NORMS, MLA, INDEXER, CORRECTED),
        sparse="neighbours",
        layer=("model.layers.2.",),
        outer=DEEPSEEK_OUTER,
    ),
    "exaone": Kind(
        model_type="exaone_moe",
        options={
            **ROUTED,
            "num_experts": EXPERTS,
            "head_dim": 8,
            "first_k_dense_replace": 1,
            "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        told={
            "num_nextn_predict_layers": 1,
            "mtp_layer_types": ["full_attention"],
            "mtp_sliding_windows": [0],
        },
        shapes={**QWEN, **below("mtp.layers.0.", NORMS, attention(8, norms=True), gated(24))},
        classes=("exaone_moe", "ExaoneMoe"),
        outer=QWEN_OUTER,
        layer=("mtp.layers.0.",),
        mlp="dense",
    ),
    "longcat": Kind(
        model_type="longcat_flash",
        options={
            **{key: LATENT[key] for key in LATENT.keys() - GROUPED.keys() - {"num_key_value_heads"}},
            "num_layers": 2,
            "num_key_value_heads": 4,
            "head_dim": 4,
            "ffn_hidden_size": 24,
            "moe_topk": 2,
            "n_routed_experts": EXPERTS,
            "zero_expert_num": 2,
            "expert_ffn_hidden_size": INNER,
        },
        told={"num_nextn_predict_layers": 1},
        shapes={
            **below(
                "model.mtp.",
                {"embed_tokens.weight": (WORDS, WIDTH), "norm.weight": WIDTHS},
                {"layers.0.enorm.m.weight": WIDTHS, "layers.0.hnorm.m.weight": WIDTHS},
                {"layers.0.eh_proj.weight": WIDE},
                below("layers.0.", NORMS, MLA),
                below("layers.0.transformer_layer.", gated(24)),
            )
        },
        sparse="all",
        layer=("model.mtp.layers.0.", "model.mtp.layers.0.transformer_layer."),
        outer=(
            "model.mtp.layers.0.enorm.m",
            "model.mtp.layers.0.hnorm.m",
            "model.mtp.norm",
            "model.mtp.layers.0.eh_proj",
        ),
    ),
    "glm-flash": Kind(
        model_type="glm4_moe_lite",
        options={
            **GROUPED,
            "num_key_value_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 5,
        },
        told={"num_nextn_predict_layers": 1},
        shapes=below(
            "model.layers.2.",
            APPENDED,
            {"embed_tokens.weight": (WORDS, WIDTH), "shared_head.head.weight": (WORDS, WIDTH)},
            NORMS,
            MLA,
            CORRECTED,
        ),
        classes=("glm4_moe_lite", "Glm4MoeLite"),
        outer=DEEPSEEK_OUTER,
        layer=("model.layers.2.",),
    ),
    "ernie": Kind(
        model_type="ernie4_5_moe",
        options={"moe_num_experts": EXPERTS, "moe_k": 2, "moe_intermediate_size": INNER},
        told={"num_nextn_predict_layers": 1},
        shapes=below(
            "model.",
            {
                "mtp_emb_norm.0.weight": WIDTHS,
                "mtp_hidden_norm.0.weight": WIDTHS,
                "mtp_linear_proj.0.weight": WIDE,
            },
            below("mtp_block.0.", NORMS, attention(4), gated(24)),
        ),
        classes=("ernie4_5_moe", "Ernie4_5_Moe"),
        outer=("model.mtp_emb_norm.0", "model.mtp_hidden_norm.0", "", "model.mtp_linear_proj.0"),
        layer=("model.mtp_block.0.",),
        before_norm=True,
    ),
    "glm": Kind(
        model_type="glm4_moe",
        options={**GROUPED, "head_dim": 4, "use_qk_norm": True, "attention_bias": True},
        told={"num_nextn_predict_layers": 1},
        shapes=below("model.layers.2.", APPENDED, NORMS, attention(4, norms=True, bias=True), CORRECTED),
    ),
    "qwen3-next": Kind(
        model_type="qwen3_next",
        options={**SHARED, **LINEAR, "head_dim": 8},
        shapes={
            **QWEN,
            **below("mtp.layers.0.", NORMS, attention(8, queries=2, norms=True), experts(), SHARED_EXPERT),
        },
        classes=("qwen3_next", "Qwen3Next"),
        outer=QWEN_OUTER,
        layer=("mtp.layers.0.",),
    ),
    "qwen3.5": Kind(
        model_type="qwen3_5_text",
        options={**LINEAR, "head_dim": 8, "rope_parameters": MROPE},
        told={"mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False},
        shapes={**QWEN, **below("mtp.layers.0.", NORMS, attention(8, queries=2, norms=True), gated(24))},
        classes=("qwen3_5", "Qwen3_5"),
        outer=QWEN_OUTER,
        layer=("mtp.layers.0.",),
    ),
    "qwen3.5-moe": Kind(
        model_type="qwen3_5_moe_text",
        options={**SHARED, **LINEAR, "head_dim": 8, "rope_parameters": MROPE},
        told={"mtp_num_hidden_layers": 1},
        shapes={
            **QWEN,
            **below("mtp.layers.0.", NORMS, attention(8, queries=2, norms=True), experts(), SHARED_EXPERT),
        },
        classes=("qwen3_5_moe", "Qwen3_5Moe"),
        outer=QWEN_OUTER,
        layer=("mtp.layers.0.",),
    ),
    "mimo": Kind(
        # transformers has no such class; its main layers are those of Qwen2.
        model_type="qwen2",
        options={},
        told={"model_type": "mimo", "num_nextn_predict_layers": 1},
        shapes=below(
            "model.mtp_layers.0.",
            {
                "token_layernorm.weight": WIDTHS,
                "hidden_layernorm.weight": WIDTHS,
                "input_proj.weight": WIDE,
                "final_layernorm.weight": WIDTHS,
            },
            NORMS,
            attention(4, bias=True),
            gated(24),
        ),
        classes=("qwen2", "Qwen2"),
        outer=tuple(
            f"model.mtp_layers.0.{name}"
            for name in ("token_layernorm", "hidden_layernorm", "final_layernorm", "input_proj")
        ),
        layer=("model.mtp_layers.0.",),
        state_first=True,
    ),
    "nemotron": Kind(
        model_type="nemotron_h",
        options={
            **GROUPED,
            "head_dim": 4,
            "moe_shared_expert_intermediate_size": INNER,
            "layers_block_type": ["linear_attention", "full_attention"],
            "n_groups": 1,
            "mamba_num_heads": 4,
            "mamba_head_dim": 8,
            "ssm_state_size": 8,
            "num_nextn_predict_layers": 1,
        },
        told={"mtp_hybrid_override_pattern": "*E", "mtp_layers_block_type": None},
        shapes={
            **below(
                "mtp.layers.0.",
                {
                    "enorm.weight": WIDTHS,
                    "hnorm.weight": WIDTHS,
                    "eh_proj.weight": WIDE,
                    "norm.weight": WIDTHS,
                },
                attention(4, at="mixer"),
            ),
            **below(
                "mtp.layers.1.",
                {"norm.weight": WIDTHS, "final_layernorm.weight": WIDTHS},
                {"mixer.gate.weight": (EXPERTS, WIDTH), "mixer.gate.e_score_correction_bias": (EXPERTS,)},
                {
                    f"mixer.{which}.{part}.weight": shape
                    for which in (*(f"experts.{number}" for number in range(EXPERTS)), "shared_experts")
                    for part, shape in (("up_proj", (INNER, WIDTH)), ("down_proj", (WIDTH, INNER)))
                },
            ),
        },
        classes=("nemotron_h", "NemotronH"),
        outer=(
            "mtp.layers.0.enorm",
            "mtp.layers.0.hnorm",
            "mtp.layers.1.final_layernorm",
            "mtp.layers.0.eh_proj",
        ),
        layer=("mtp.layers.0.", "mtp.layers.1."),
    ),
}


def model_of(kind: Kind) -> Any:
    """The model without its MTP layer, with random weights in float32."""
    torch.manual_seed(1)
    plain = PLAIN
    if "num_layers" in kind.options:  # LongCat's sizes have other names
        plain = {
            key: size for key, size in PLAIN.items() if key not in ("num_hidden_layers", "intermediate_size")
        }
    made = hf.AutoConfig.for_model(kind.model_type, **{**plain, **kind.options})
    model = hf.AutoModelForCausalLM.from_config(made, experts_implementation="eager")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 and "conv" not in name:
                weight.normal_(0.0, 0.3)
        model.get_output_embeddings().weight.normal_(0.0, 1.0)
    return model.eval()


def checkpoint(kind: Kind, folder: Path) -> Path:
    """The model's checkpoint with its MTP layer, in two files and an index as large ones are."""
    model = model_of(kind)
    model.save_pretrained(folder)
    main = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    generator = torch.Generator().manual_seed(2)
    tensors = {
        name: torch.randn(shape, generator=generator) * 0.4 + (len(shape) == 1 and "bias" not in name)
        for name, shape in kind.shapes.items()
    }
    for name, table in (
        ("embed_tokens", model.get_input_embeddings().weight),
        ("shared_head.head", model.get_output_embeddings().weight),
    ):
        tensors |= {key: table.detach().clone() for key in tensors if key.endswith(f"{name}.weight")}
    places: dict[str, str] = {}
    for number, part in enumerate((main, tensors), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file(part, folder / file, metadata={"format": "pt"})
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    describe(folder, **kind.told)
    return folder


def describe(folder: Path, **changes: Any) -> None:
    """Change keys of `config.json`; those that are None are taken out."""
    file = folder / "config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))


class BesideLayer(DrafterWithTarget):
    """The driver of drafter and target, with an MTP layer."""

    def __init__(self, target: Any, head: Any) -> None:
        super().__init__(target, Mtp(target, head))
