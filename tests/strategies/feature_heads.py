"""Random EAGLE-3 heads and targets for tests, and a head's forward from scratch, one path at a time."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
import transformers as hf
from torch.nn.functional import silu

from draftwood.backends.loading.loader import load
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.testing import DrafterWithTarget, FeatureToyBackend, NextTokenModel
from tests.backends.recurrent_models import features_after
from tests.strategies import published

WIDTH = 16


def config(**changes: Any) -> Eagle3Config:
    """Returns the config of a head for `target()`, with maps and all sizes different."""
    known: dict[str, Any] = {
        "hidden_size": WIDTH,
        "target_hidden_size": WIDTH,
        "vocab_size": 23,
        "draft_vocab_size": 19,
        "attention_heads": 4,
        "key_value_heads": 2,
        "head_dim": 6,
        "intermediate_size": 20,
        "norm_eps": 1e-5,
        "max_positions": 128,
        "taps": (1, 2, 3),
    }
    return Eagle3Config(**{**known, **changes})


def random_head(made: Eagle3Config | None = None, *, seed: int = 0, scale: float = 0.5) -> Eagle3Head:
    """In float64, with weights that make logits of order 1 and norms that are no ones."""
    made = made or config()
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(made.vocab_size, generator=generator)[: made.draft_vocab_size].sort().values
    head = Eagle3Head(made, target_ids=None if made.draft_vocab_size == made.vocab_size else ids).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(generator=generator).mul_(scale)
            if weight.dim() == 1:
                weight.add_(1)
    return head.eval()


@functools.cache
def target() -> Any:
    """A Llama of four layers in float64."""
    torch.manual_seed(0)
    made = hf.LlamaConfig(
        vocab_size=23,
        hidden_size=WIDTH,
        intermediate_size=24,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=512,
        eos_token_id=0,
        bos_token_id=0,
    )
    model = hf.LlamaForCausalLM(made).double().eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() > 1:
                weight.normal_(0.0, 0.3)
        model.lm_head.weight.normal_(0.0, 1.5)
    return model


def beside_llama(made: Eagle3Config | None = None) -> DrafterWithTarget:
    backend = load(target())
    return DrafterWithTarget(backend, Eagle3(backend, random_head(made)))


def feature_toy(model: NextTokenModel) -> FeatureToyBackend:
    """A toy target of the size that `config()` reads."""
    return FeatureToyBackend(model, hidden_size=WIDTH, feature_layers=4)


def beside_toy(model: NextTokenModel, head: Eagle3Head) -> DrafterWithTarget:
    toy = feature_toy(model)
    return DrafterWithTarget(toy, Eagle3(toy, head))


def normed(weight: Any, states: Any, eps: float) -> Any:
    return weight * states / torch.sqrt((states * states).mean(-1, keepdim=True) + eps)


@torch.no_grad()
def path_logits(head: Eagle3Head, model: Any, text: list[int], path: list[int]) -> Any:
    """Returns logits `[vocab]` after `text` and `path`, whose first token is the root, without a cache.

    Only the weights are the head's; every line of its forward is written out here again.
    """
    made, layer = head.config, head.midlayer
    assert made.taps is not None
    if made.layers > 1 or made.latent is not None:
        return _layered_logits(head, model, text, path)
    features = features_after(model, text)[:, made.taps].flatten(1)
    if head.input_norm is not None:
        features = normed(head.input_norm.weight, features, made.norm_eps)
    if head.fc_norm is not None:
        parts = features.split(made.target_hidden_size, -1)
        features = torch.cat(
            [
                normed(norm.weight, part, made.norm_eps)
                for norm, part in zip(head.fc_norm, parts, strict=True)
            ],
            -1,
        )
    states = list(features @ head.fc.weight.T)
    tokens = [*text[1:], *path]
    table = model.get_input_embeddings().weight if head.embed_tokens is None else head.embed_tokens.weight
    angles = [made.rope["rope_theta"] ** (-2 * k / made.head_dim) for k in range(made.head_dim // 2)]

    def turned(vector: Any, position: int) -> Any:
        result = vector.clone()
        half = made.head_dim // 2
        for k, angle in enumerate(angles):
            cos, sin = math.cos(position * angle), math.sin(position * angle)
            result[k] = vector[k] * cos - vector[half + k] * sin
            result[half + k] = vector[half + k] * cos + vector[k] * sin
        return result

    keys: list[list[Any]] = []
    values: list[list[Any]] = []
    group = made.attention_heads // made.key_value_heads
    for place, token in enumerate(tokens):
        state = states[place]
        state_normed = normed(layer.hidden_norm.weight, state, made.norm_eps)
        embedded = normed(layer.input_layernorm.weight, table[token], made.norm_eps)
        both = torch.cat([embedded, state_normed])
        attention: Any = layer.self_attn
        q, k, v = (
            (projection.weight @ both).split(made.head_dim)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        if attention.q_norm is not None and attention.k_norm is not None:
            q = [normed(attention.q_norm.weight, one, made.norm_eps) for one in q]
            k = [normed(attention.k_norm.weight, one, made.norm_eps) for one in k]
        keys.append([turned(one, place) for one in k])
        values.append(list(v))
        heads = []
        for which, query in enumerate(q):
            query = turned(query, place)
            scores = torch.stack([key[which // group] @ query for key in keys]) / made.head_dim**0.5
            weights = scores.softmax(0)
            heads.append(sum(w * value[which // group] for w, value in zip(weights, values, strict=True)))
        residual = state_normed if made.norm_before_residual else state
        out = residual + attention.o_proj.weight @ torch.cat(heads)
        inner = normed(layer.post_attention_layernorm.weight, out, made.norm_eps)
        mlp = layer.mlp
        out = out + mlp.down_proj.weight @ (silu(mlp.gate_proj.weight @ inner) * (mlp.up_proj.weight @ inner))
        final = normed(head.norm.weight, out, made.norm_eps)
        if place >= len(states) - 1:
            states.append(final if made.norm_output else out)
    logits = torch.full((made.vocab_size,), -torch.inf, dtype=torch.float64)
    assert head.lm_head is not None
    logits[head.target_ids] = head.lm_head.weight @ final
    return logits


def _layered_logits(head: Eagle3Head, model: Any, text: list[int], path: list[int]) -> Any:
    """`path_logits` of heads with several layers or latent attention, by the forward of published files."""
    made, stored = head.config, {}
    for name, tensor in head.state_dict().items():
        layer, _, rest = name.removeprefix("more.").partition(".")
        stored[f"layers.{int(layer) + 1}.{rest}" if name.startswith("more.") else name] = tensor
    described: dict[str, Any] = {
        "hidden_size": made.hidden_size,
        "num_attention_heads": made.attention_heads,
        "head_dim": made.head_dim,
        "rms_norm_eps": made.norm_eps,
        "rope_theta": made.rope["rope_theta"],
        "norm_before_residual": made.norm_before_residual,
        "norm_output": made.norm_output,
    }
    if (narrow := made.latent) is not None:
        described |= {
            "q_lora_rank": narrow.query_rank,
            "kv_lora_rank": narrow.rank,
            "qk_nope_head_dim": narrow.plain_dim,
            "qk_rope_head_dim": narrow.rope_dim,
            "v_head_dim": narrow.value_dim,
            "rope_interleave": narrow.interleaved,
        }
    table = model.get_input_embeddings().weight if head.embed_tokens is None else head.embed_tokens.weight
    (*_, last) = published.pair_logits(
        described,
        stored,
        prefix="midlayer.",
        embeddings=table[torch.tensor([*text[1:], *path])],
        features=features_after(model, text)[:, made.taps].flatten(1),
    )
    logits = torch.full((made.vocab_size,), -torch.inf, dtype=torch.float64)
    logits[head.target_ids] = last
    return logits
