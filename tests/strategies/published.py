"""Published descriptions of heads with small sizes, tensors for them, and their forward from raw tensors.

The keys and values of `published_heads.json` are those of `config.json` files that makers publish; sizes and
token ids are small ones. Nothing here imports what reads heads.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import silu

CONFIGS: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parent / "published_heads.json").read_text(encoding="utf-8")
)
Tensors = dict[str, Tensor]


class Drawn:
    """Random tensors, one after the other."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(1)

    def __call__(self, *shape: int) -> Tensor:
        drawn = torch.randn(*shape, generator=self.generator, dtype=torch.float64)
        return drawn * 0.25 if len(shape) > 1 else drawn * 0.1 + 1


def layer_of(described: dict[str, Any]) -> dict[str, Any]:
    """The table of the layers, with what the makers' classes assume."""
    table = described.get("transformer_layer_config") or described
    heads = table["num_attention_heads"]
    return {
        "head_dim": table["hidden_size"] // heads,
        "rms_norm_eps": 1e-6,
        **{key: value for key, value in table.items() if value is not None},
    }


def decoder_layer(draw: Drawn, layer: dict[str, Any], prefix: str, wide: int, normed: bool) -> Tensors:
    width, dim, inner = layer["hidden_size"], layer["head_dim"], layer["intermediate_size"]
    queries, keys = layer["num_attention_heads"] * dim, layer["num_key_value_heads"] * dim
    made = {
        **(
            _latent(draw, layer, wide)
            if layer.get("v_head_dim")
            else {
                "self_attn.q_proj.weight": draw(queries, wide),
                "self_attn.k_proj.weight": draw(keys, wide),
                "self_attn.v_proj.weight": draw(keys, wide),
                "self_attn.o_proj.weight": draw(width, queries),
            }
        ),
        "mlp.gate_proj.weight": draw(inner, width),
        "mlp.up_proj.weight": draw(inner, width),
        "mlp.down_proj.weight": draw(width, inner),
        "input_layernorm.weight": draw(width),
        "post_attention_layernorm.weight": draw(width),
    }
    if normed:
        made |= {"self_attn.q_norm.weight": draw(dim), "self_attn.k_norm.weight": draw(dim)}
    return {prefix + name: tensor for name, tensor in made.items()}


def attention_biases(draw: Drawn, made: Tensors) -> Tensors:
    """Returns the biases of every projection of attention in `made`."""
    return {
        f"{name.removesuffix('weight')}bias": draw(len(weight)) - 1
        for name, weight in made.items()
        if ".self_attn." in name and name.endswith("_proj.weight")
    }


def _latent(draw: Drawn, layer: dict[str, Any], wide: int) -> Tensors:
    """Attention as DeepSeek-V2 has it."""
    heads, rank, turned_dim = layer["num_attention_heads"], layer["kv_lora_rank"], layer["qk_rope_head_dim"]
    plain, value = layer["qk_nope_head_dim"], layer["v_head_dim"]
    queries = heads * (plain + turned_dim)
    made = {
        "kv_a_proj_with_mqa.weight": draw(rank + turned_dim, wide),
        "kv_a_layernorm.weight": draw(rank),
        "kv_b_proj.weight": draw(heads * (plain + value), rank),
        "o_proj.weight": draw(layer["hidden_size"], heads * value),
    }
    if narrow := layer.get("q_lora_rank"):
        made |= {
            "q_a_proj.weight": draw(narrow, wide),
            "q_a_layernorm.weight": draw(narrow),
            "q_b_proj.weight": draw(queries, narrow),
        }
    else:
        made["q_proj.weight"] = draw(queries, wide)
    return {f"self_attn.{name}": tensor for name, tensor in made.items()}


def maps(proposed: int, vocabulary: int) -> Tensors:
    """Offsets and membership, as most makers store them."""
    ids = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(2))[:proposed].sort().values
    has = torch.zeros(vocabulary, dtype=torch.bool)
    has[ids] = True
    return {"d2t": ids - torch.arange(proposed), "t2d": has}


def pair_tensors(
    described: dict[str, Any], *, prefix: str = "midlayer.", normed: bool = False, own_table: bool = True
) -> Tensors:
    """Of an EAGLE-3 or P-EAGLE head."""
    draw, layer = Drawn(), layer_of(described)
    width, vocabulary = layer["hidden_size"], layer["vocab_size"]
    proposed = described.get("draft_vocab_size") or vocabulary
    taps = described.get("target_layer_ids") or [0, 0, 0]
    made = {"fc.weight": draw(width, len(taps) * width), "norm.weight": draw(width)}
    for number in range(layer.get("num_hidden_layers", 1)):
        if number and prefix == "midlayer.":
            break  # the makers' classes build one
        here = prefix if not number else f"layers.{number}."
        made |= decoder_layer(draw, layer, here, 2 * width if not number else width, normed)
    made |= {f"{prefix}hidden_norm.weight": draw(width), "lm_head.weight": draw(proposed, width)}
    if own_table:
        made["embed_tokens.weight"] = draw(vocabulary, width) * 4
    if described["architectures"] == ["LlamaEagle3DraftModel"]:
        if layer.get("attention_bias"):
            made |= attention_biases(draw, made)
        if described["parallel_drafting"]:
            made["mask_hidden"] = draw(1, 1, len(taps) * width) * 4
    if described.get("norm_before_fc"):
        made["input_norm.weight"] = draw(len(taps) * width)
    if described.get("fc_norm"):
        made |= {f"fc_norm.{place}.weight": draw(width) for place in range(len(taps))}
    if proposed != vocabulary:
        made |= maps(proposed, vocabulary)
    elif described.get("draft_vocab_size"):
        # SpecForge stores both of a full vocabulary too.
        made |= {
            "d2t": torch.zeros(proposed, dtype=torch.int64),
            "t2d": torch.ones(vocabulary, dtype=torch.bool),
        }
    return made


def block_tensors(described: dict[str, Any]) -> Tensors:
    """Of a block drafter."""
    draw, layer = Drawn(), layer_of(described)
    both = {**described, **(described.get("dflash_config") or {})}
    width, vocabulary = layer["hidden_size"], layer["vocab_size"]
    ids = both.get("target_layer_ids") or described.get("aux_hidden_state_layer_ids") or [1, 2, 3]
    made = {
        "fc.weight": draw(width, len(ids) * width),
        "hidden_norm.weight": draw(width),
        "norm.weight": draw(width),
    }
    for number in range(layer["num_hidden_layers"]):
        made |= decoder_layer(draw, layer, f"layers.{number}.", width, True)
    if layer.get("attention_bias"):
        made |= attention_biases(draw, made)
    proposed = described.get("draft_vocab_size") or vocabulary
    if described.get("speculators_model_type"):
        made |= {"embed_tokens.weight": draw(vocabulary, width) * 4, "lm_head.weight": draw(proposed, width)}
    if rank := both.get("markov_rank"):
        # ModelOpt's module has no part for the correction.
        apart = "use_confidence_head" in both
        correction, confidence = (
            ("", "confidence_proj") if apart else ("markov_head.", "confidence_head.proj")
        )
        made |= {
            f"{correction}markov_w1.weight": draw(vocabulary, rank),
            f"{correction}markov_w2.weight": draw(proposed, rank),
        }
        made |= {
            f"{confidence}.weight": draw(1, width + rank),
            f"{confidence}.bias": torch.zeros(1, dtype=torch.float64),
        }
    if both.get("projector_type") == "domino":
        inner, state = both["emb_dim"], both["gru_hidden_dim"]
        made |= {
            "prefix_gru.weight_ih_l0": draw(3 * state, width),
            "prefix_gru.weight_hh_l0": draw(3 * state, state),
            "embed_proj.0.weight": draw(inner, width + state),
            "embed_proj.2.weight": draw(vocabulary, inner),
        }
    if proposed != vocabulary:
        made |= maps(proposed, vocabulary)
    return made


def write(folder: Path, described: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def norm(weight: Tensor, states: Tensor, eps: float) -> Tensor:
    return weight * states / torch.sqrt(states.square().mean(-1, keepdim=True) + eps)


def angles_of(layer: dict[str, Any]) -> tuple[list[float], float]:
    """Angles of one position and the scale, by the papers of Llama 3.1 and YaRN."""
    table = {
        **(layer.get("rope_scaling") or {}),
        **(layer.get("rope_parameters") or {}),
    }
    kind = table.get("rope_type") or table.get("type") or "default"
    theta = float(table.get("rope_theta") or layer.get("rope_theta") or 10000.0)
    part = table.get("partial_rotary_factor") or layer.get("partial_rotary_factor") or 1.0
    dim = int(layer["head_dim"] * part)
    plain = [theta ** (-k / dim) for k in range(0, dim, 2)]
    if kind in ("default", "mrope"):
        return plain, 1.0
    factor, original = table["factor"], table["original_max_position_embeddings"]
    if kind == "llama3":
        low, high, angles = table["low_freq_factor"], table["high_freq_factor"], []
        for angle in plain:
            turns = original * angle / (2 * math.pi)
            smooth = min(max((turns - low) / (high - low), 0.0), 1.0)
            angles.append((1 - smooth) * angle / factor + smooth * angle)
        return angles, 1.0
    assert kind == "yarn"

    def place(turns: float) -> float:
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    first, last = place(table.get("beta_fast", 32)), place(table.get("beta_slow", 1))
    if table.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    angles = []
    for k, angle in enumerate(plain):
        ramp = min(max((k - first) / (last - first if last != first else 0.001), 0.0), 1.0)
        angles.append(angle / factor * ramp + angle * (1 - ramp))

    def scale(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1

    above, below = table.get("mscale"), table.get("mscale_all_dim")
    return angles, scale(above) / scale(below) if above and below else scale(1.0)


def turned(layer: dict[str, Any], states: Tensor, positions: Tensor) -> Tensor:
    """`[n, heads, dim]` at positions `[n]`."""
    angles, scale = angles_of(layer)
    turn = positions.unsqueeze(1).double() * torch.tensor(angles, dtype=torch.float64)
    cos, sin = (turn.cos() * scale).unsqueeze(1), (turn.sin() * scale).unsqueeze(1)
    count, result = len(angles), states.clone()
    first, second = states[..., :count], states[..., count : 2 * count]
    result[..., :count] = first * cos - second * sin
    result[..., count : 2 * count] = second * cos + first * sin
    return result


def attention(
    layer: dict[str, Any],
    stored: Tensors,
    prefix: str,
    *,
    queries: Tensor,
    keys: Tensor,
    at: tuple[Tensor, Tensor],
    seen: Tensor,
) -> Tensor:
    """What `queries` `[n, wide]` make of `keys` `[m, wide]` at these positions, where `seen` `[n, m]`."""
    if f"{prefix}self_attn.kv_b_proj.weight" in stored:
        return latent_attention(layer, stored, prefix, queries=queries, keys=keys, at=at, seen=seen)
    dim, eps = layer["head_dim"], layer["rms_norm_eps"]

    def projected(name: str, states: Tensor) -> Tensor:
        made = states @ stored[f"{prefix}self_attn.{name}_proj.weight"].T
        bias = stored.get(f"{prefix}self_attn.{name}_proj.bias")
        return (made if bias is None else made + bias).unflatten(-1, (-1, dim))

    q, k, v = projected("q", queries), projected("k", keys), projected("v", keys)
    if f"{prefix}self_attn.q_norm.weight" in stored:
        q = norm(stored[f"{prefix}self_attn.q_norm.weight"], q, eps)
        k = norm(stored[f"{prefix}self_attn.k_norm.weight"], k, eps)
    q, k = turned(layer, q, at[0]), turned(layer, k, at[1])
    out = []
    for head in range(q.shape[1]):
        shared = head // (q.shape[1] // k.shape[1])
        scores = (q[:, head] @ k[:, shared].T / dim**0.5).masked_fill(~seen, -torch.inf)
        out.append(scores.softmax(-1) @ v[:, shared])
    made = torch.cat(out, -1) @ stored[f"{prefix}self_attn.o_proj.weight"].T
    bias = stored.get(f"{prefix}self_attn.o_proj.bias")
    return made if bias is None else made + bias


def latent_attention(
    layer: dict[str, Any],
    stored: Tensors,
    prefix: str,
    *,
    queries: Tensor,
    keys: Tensor,
    at: tuple[Tensor, Tensor],
    seen: Tensor,
) -> Tensor:
    """`attention` of DeepSeek-V2 (arXiv 2405.04434, equations 9 to 19), pair by pair of rotated numbers."""
    heads, plain, eps = layer["num_attention_heads"], layer["qk_nope_head_dim"], layer["rms_norm_eps"]
    rank, dim = layer["kv_lora_rank"], layer["qk_rope_head_dim"]
    angles, factor = angles_of({**layer, "head_dim": dim})
    scaling = layer.get("rope_scaling") or layer.get("rope_parameters") or {}
    softmax = 1.0
    if every := scaling.get("mscale_all_dim"):
        softmax = (0.1 * every * math.log(scaling["factor"]) + 1) ** 2

    def weight(name: str) -> Tensor:
        return stored[f"{prefix}self_attn.{name}.weight"]

    def rotated(states: Tensor, positions: Tensor) -> Tensor:
        """`[n, heads, dim]`: the numbers 2k and 2k + 1 turn together."""
        result = states.clone()
        for k, angle in enumerate(angles):
            turn = positions.double() * angle
            cos, sin = (turn.cos() * factor).unsqueeze(1), (turn.sin() * factor).unsqueeze(1)
            apart = dim // 2 if layer.get("rope_interleave") is False else None
            one, two = (k, k + apart) if apart else (2 * k, 2 * k + 1)
            result[..., one] = states[..., one] * cos - states[..., two] * sin
            result[..., two] = states[..., two] * cos + states[..., one] * sin
        return result

    if layer.get("q_lora_rank"):
        made = norm(weight("q_a_layernorm"), queries @ weight("q_a_proj").T, eps) @ weight("q_b_proj").T
    else:
        made = queries @ weight("q_proj").T
    made = made.unflatten(-1, (heads, -1))
    q = torch.cat([made[..., :plain], rotated(made[..., plain:], at[0])], -1)
    narrow = keys @ weight("kv_a_proj_with_mqa").T
    shared = rotated(narrow[:, rank:].unsqueeze(1), at[1])
    wide = (norm(weight("kv_a_layernorm"), narrow[:, :rank], eps) @ weight("kv_b_proj").T).unflatten(
        -1, (heads, -1)
    )
    out = []
    for head in range(heads):
        k = torch.cat([wide[:, head, :plain], shared[:, 0]], -1)
        scores = (q[:, head] @ k.T * softmax / (plain + dim) ** 0.5).masked_fill(~seen, -torch.inf)
        out.append(scores.softmax(-1) @ wide[:, head, plain:])
    return torch.cat(out, -1) @ weight("o_proj").T


def mlp(stored: Tensors, prefix: str, states: Tensor) -> Tensor:
    gate, up, down = (stored[f"{prefix}mlp.{name}_proj.weight"] for name in ("gate", "up", "down"))
    return (silu(states @ gate.T) * (states @ up.T)) @ down.T


def pair_logits(
    described: dict[str, Any], stored: Tensors, *, prefix: str, embeddings: Tensor, features: Tensor
) -> list[Tensor]:
    """Logits of the head's own tokens after each of `embeddings` `[n, width]`, one more than `features`.

    The first pairs hold the target's `features` `[m, taps * width]`; later ones what the head recycles.
    """
    layer = layer_of(described)
    eps = layer["rms_norm_eps"]
    inner = {**described, **(described.get("eagle_config") or {})}
    if inner.get("norm_before_fc"):
        features = norm(stored["input_norm.weight"], features, eps)
    if inner.get("fc_norm"):
        width = layer["hidden_size"]
        parts = features.split(width, -1)
        weights = [stored[f"fc_norm.{place}.weight"] for place in range(len(parts))]
        features = torch.cat([norm(w, part, eps) for w, part in zip(weights, parts, strict=True)], -1)
    states = list(features @ stored["fc.weight"].T)
    numbers = {int(name.split(".")[1]) for name in stored if name.startswith("layers.")} - {0}
    found, inputs = [], []
    # Of the layers after the first, by number, what they have read.
    later: dict[str, list[Tensor]] = {f"layers.{number}.": [] for number in sorted(numbers)}
    for place, embedding in enumerate(embeddings):
        state = states[place]
        normed = norm(stored[f"{prefix}hidden_norm.weight"], state, eps)
        inputs.append(torch.cat([norm(stored[f"{prefix}input_layernorm.weight"], embedding, eps), normed]))
        keys, positions = torch.stack(inputs), torch.arange(place + 1)
        mixed = attention(
            layer,
            stored,
            prefix,
            queries=keys[-1:],
            keys=keys,
            at=(positions[-1:], positions),
            seen=torch.ones(1, place + 1, dtype=torch.bool),
        )[0]
        out = (normed if inner.get("norm_before_residual") else state) + mixed
        out = out + mlp(stored, prefix, norm(stored[f"{prefix}post_attention_layernorm.weight"], out, eps))
        for name, read in later.items():
            read.append(norm(stored[f"{name}input_layernorm.weight"], out, eps))
            out = (
                out
                + attention(
                    layer,
                    stored,
                    name,
                    queries=read[-1].unsqueeze(0),
                    keys=torch.stack(read),
                    at=(positions[-1:], positions),
                    seen=torch.ones(1, place + 1, dtype=torch.bool),
                )[0]
            )
            out = out + mlp(stored, name, norm(stored[f"{name}post_attention_layernorm.weight"], out, eps))
        final = norm(stored["norm.weight"], out, eps)
        found.append(final @ stored["lm_head.weight"].T)
        if place + 1 >= len(states):
            states.append(final if inner.get("norm_output") else out)
    return found


def block_states(
    described: dict[str, Any], stored: Tensors, *, slots: Tensor, features: Tensor, causal: list[bool]
) -> Tensor:
    """What the layers make of `slots` `[block, width]` after a text of `features` `[n, taps * width]`."""
    layer = layer_of(described)
    eps, count, size = layer["rms_norm_eps"], len(features), len(slots)
    context = norm(stored["hidden_norm.weight"], features @ stored["fc.weight"].T, eps)
    places = torch.arange(count + size)
    for number in range(layer["num_hidden_layers"]):
        prefix = f"layers.{number}."
        read = norm(stored[f"{prefix}input_layernorm.weight"], slots, eps)
        behind = places.unsqueeze(0) > places[count:].unsqueeze(1)
        slots = slots + attention(
            layer,
            stored,
            prefix,
            queries=read,
            keys=torch.cat([context, read]),
            at=(places[count:], places),
            seen=~behind if causal[number] else torch.ones_like(behind),
        )
        slots = slots + mlp(
            stored, prefix, norm(stored[f"{prefix}post_attention_layernorm.weight"], slots, eps)
        )
    return norm(stored["norm.weight"], slots, eps)
