"""Tiny checkpoints with MTP layers, by the tensors that real ones have, and their forward without a cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import torch
import transformers as hf
from safetensors.torch import load_file, save_file
from transformers.modeling_layers import MtpModel

from draftwood.strategies.drafters.mtp import Mtp
from draftwood.testing import DrafterWithTarget
from tests.strategies.latent_layers import written_layer

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


DEEPSEEK_OUTER = tuple(f"model.layers.2.{name}" for name in ("enorm", "hnorm", "shared_head.norm", "eh_proj"))
QWEN_OUTER = ("mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.norm", "mtp.fc")
KINDS = {
    "deepseek": Kind(
        model_type="deepseek_v3",
        options={
            **GROUPED,
            "num_key_value_heads": 4,
            "kv_lora_rank": 8,
            "q_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 6,
            "v_head_dim": 5,
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


class Plain:
    """The layer's forward over pairs without a cache, by transformers' classes under a causal mask."""

    def __init__(self, kind: Kind, folder: Path, model: Any) -> None:
        self.kind, self.model = kind, model
        self.words, self.output = model.get_input_embeddings(), model.get_output_embeddings()
        if kind.sparse:
            self.written = written_layer(kind, load_file(folder / "model-00002-of-00002.safetensors"), model)
            return
        if not kind.classes[0]:
            whole: Any = hf.AutoModelForCausalLM.from_pretrained(folder, experts_implementation="eager")
            # The numbers of real models' layers stand there.
            whole._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\."]
            self.reference: Any = MtpModel.from_pretrained(whole).eval().to(model.dtype)
            self.reference.config._experts_implementation = "eager"
            return
        made, (module, prefix) = model.config.get_text_config(), kind.classes
        source = __import__(f"transformers.models.{module}.modeling_{module}", fromlist=["_"])
        layers = len(kind.layer)
        config = type(made)(
            **{
                **PLAIN,
                **kind.options,
                "num_hidden_layers": layers,
                "layer_types": ["full_attention", "moe"][:layers],
                "mlp_layer_types": [kind.mlp],
                "layers_block_type": ["full_attention", "moe"][:layers],
            }
        )
        config._attn_implementation, config._experts_implementation = "eager", "eager"
        stored = load_file(folder / "model-00002-of-00002.safetensors")
        block = getattr(source, prefix + ("Block" if prefix == "NemotronH" else "DecoderLayer"))
        self.blocks = [block(config, place) for place in range(layers)]
        for place, made_block in enumerate(self.blocks):
            own = stacked(
                {
                    name.removeprefix(kind.layer[place]): tensor
                    for name, tensor in stored.items()
                    if name.startswith(kind.layer[place])
                }
            )
            made_block.load_state_dict({name: own[name] for name in made_block.state_dict()})
            made_block.eval().to(model.dtype)
        self.norms = []
        for name in kind.outer[:3]:
            if not name:
                self.norms.append(model.get_decoder().norm)
                continue
            norm: Any = getattr(source, f"{prefix}RMSNorm")(
                WIDTH, eps=getattr(made, "layer_norm_epsilon", None) or made.rms_norm_eps
            )
            norm.load_state_dict({"weight": stored[f"{name}.weight"]})
            self.norms.append(norm.to(model.dtype))
        self.projection = stored[f"{kind.outer[3]}.weight"].to(model.dtype)
        rotary = getattr(source, f"{prefix}RotaryEmbedding", None) or getattr(
            source, f"{prefix}TextRotaryEmbedding", None
        )
        self.rotary = None if rotary is None else rotary(config)

    @torch.no_grad()
    def logits(self, text: list[int], path: list[int]) -> Any:
        """Returns logits after `text` and `path`, whose first token is the root; every pair is read again."""
        body = self.model.get_decoder() if hasattr(self.model, "get_decoder") else self.model.model
        states = body(torch.tensor([text])).last_hidden_state
        if self.kind.before_norm:
            read: list[Any] = []
            hook = body.norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
            body(torch.tensor([text]))
            hook.remove()
            states = read[0]
        tokens = [*text[1:], *path]
        while True:
            count = states.shape[1]
            out = self._layer(self.words(torch.tensor([tokens[:count]])), states)
            if count == len(tokens):
                last = out[0, -1]
                return self.output(self.norms[2](last) if self.kind.before_norm else last)
            states = torch.cat([states, out[:, -1:]], 1)

    def _layer(self, embeddings: Any, states: Any) -> Any:
        if self.kind.sparse:
            return self.written(embeddings[0], states[0]).unsqueeze(0)
        positions = torch.arange(states.shape[1]).unsqueeze(0)
        if not self.kind.classes[0]:
            return self.reference.forward_layer(0, states, positions + 1, None, inputs_embeds=embeddings)
        parts = [self.norms[0](embeddings), self.norms[1](states)]
        if self.kind.state_first:
            parts.reverse()
        out = torch.cat(parts, -1) @ self.projection.T
        count = out.shape[1]
        mask = torch.full((count, count), -torch.inf, dtype=out.dtype).triu(1)[None, None]
        turned = {} if self.rotary is None else {"position_embeddings": self.rotary(out, positions)}
        for block in self.blocks:
            out = block(out, attention_mask=mask, position_ids=positions, **turned)
        return out if self.kind.before_norm else self.norms[2](out)


def stacked(tensors: dict[str, Any]) -> dict[str, Any]:
    """With the experts in one tensor each, as transformers' classes have them."""
    for experts_at in ("mlp.experts", "mixer.experts"):
        parts = {
            part: [tensors[f"{experts_at}.{number}.{part}.weight"] for number in range(EXPERTS)]
            for part in ("gate_proj", "up_proj", "down_proj")
            if f"{experts_at}.0.{part}.weight" in tensors
        }
        if not parts:
            continue
        tensors[f"{experts_at}.down_proj"] = torch.stack(parts["down_proj"])
        if "gate_proj" in parts:
            tensors[f"{experts_at}.gate_up_proj"] = torch.stack(
                [torch.cat(pair) for pair in zip(parts["gate_proj"], parts["up_proj"], strict=True)]
            )
        else:
            tensors[f"{experts_at}.up_proj"] = torch.stack(parts["up_proj"])
    return tensors
