"""Ways to break the files of a head, each by one change of its description or of its tensors.

A fault returns whether it changed something: a head without a gate has none to exchange.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from draftwood import zoo

Described = dict[str, Any]
Tensors = dict[str, Tensor]
Fault = Callable[[Described, Tensors], bool]
_PROPOSED = 3000  # tokens of a head with a map, of the zoo's 4096


def noise(like: Tensor) -> Tensor:
    """Returns random weights of the size of `like`."""
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(1))
    return (drawn * like.float().std()).to(like.dtype)


def changed(pattern: str, change: Callable[[Tensor], Tensor]) -> Fault:
    """Returns the fault that changes every tensor whose name matches `pattern`."""

    def fault(_: Described, stored: Tensors) -> bool:
        hit = [name for name in stored if re.search(pattern, name)]
        stored.update({name: change(stored[name]).to(stored[name].dtype) for name in hit})
        return bool(hit)

    return fault


def swapped(some: str, other: str) -> Fault:
    """Returns the fault that exchanges tensors of one shape whose names differ in these parts."""

    def fault(_: Described, stored: Tensors) -> bool:
        pairs = [(name, name.replace(some, other)) for name in stored if some in name]
        pairs = [(a, b) for a, b in pairs if b in stored and stored[a].shape == stored[b].shape]
        for a, b in pairs:
            stored[a], stored[b] = stored[b], stored[a]
        return bool(pairs)

    return fault


def parts_turned(pattern: str, count: int) -> Fault:
    """Returns the fault that turns round `count` parts of the columns of matrices."""
    return changed(pattern, lambda weight: torch.cat(weight.chunk(count, 1)[::-1], 1))


def key(name: str, value: Any) -> Fault:
    """Returns the fault that sets a key of the description, wherever it is."""

    def fault(described: Described, _: Tensors) -> bool:
        inner = [one for one in described.values() if isinstance(one, dict)]
        found = [fault(one, {}) for one in inner]
        if name in described:
            described[name] = value
        return any(found) or name in described

    return fault


def added_key(name: str, value: Any, *, of: str) -> Fault:
    """Returns the fault that writes a key of heads that have a tensor whose name begins with `of`."""

    def fault(described: Described, stored: Tensors) -> bool:
        described[name] = value
        return any(one.startswith(of) for one in stored)

    return fault


def taps(change: Callable[[list[int]], list[int]]) -> Fault:
    """Returns the fault that names other layers of the target."""

    def fault(described: Described, stored: Tensors) -> bool:
        for name, value in described.items():
            if isinstance(value, dict) and fault(value, stored):
                return True
            if name.endswith("layer_ids") and isinstance(value, list):
                described[name] = change(value)
                return True
        return False

    return fault


def layers_reversed(_: Described, stored: Tensors) -> bool:
    """Number the layers from the last one to the first."""
    numbers = sorted({int(found[1]) for name in stored if (found := re.match(r"layers\.(\d+)\.", name))})
    if len(numbers) < 2:
        return False
    before = dict(stored)
    for name in before:
        if found := re.match(r"layers\.(\d+)\.(.*)", name):
            stored[f"layers.{numbers[-1] - int(found[1])}.{found[2]}"] = before[name]
    return True


def _head_width(described: Described) -> int:
    """Returns the width of an attention head; 0 where the description does not tell it."""
    width, heads = _anywhere(described, "head_dim"), _anywhere(described, "num_attention_heads")
    return int(width or (_anywhere(described, "hidden_size") // heads if heads else 0))


def interleaved(described: Described, stored: Tensors) -> bool:
    """Keep the rows of queries and keys as rotations of neighbours want them."""
    width = _head_width(described)
    hit = [name for name in stored if re.search(r"self_attn\.[qk]_(proj|norm)\.weight", name)]
    if not width:
        return False
    for name in hit:
        heads = stored[name].unflatten(0, (-1, 2, width // 2))
        stored[name] = heads.transpose(1, 2).flatten(0, 2)
    return bool(hit)


def heads_reversed(described: Described, stored: Tensors) -> bool:
    """Turn round the heads of the queries, whose outputs keep their places."""
    width = _head_width(described)
    hit = [name for name in stored if name.endswith("q_proj.weight")]
    if not width:
        return False
    for name in hit:
        stored[name] = stored[name].unflatten(0, (-1, width)).flip(0).flatten(0, 1)
    return bool(hit)


def fewer(described: Described, stored: Tensors, kept: Tensor) -> Tensor | None:
    """Leave some tokens, those `kept` among them, with a map; returns them, None of heads without a map."""
    if "draft_vocab_size" not in described or "lm_head.weight" not in stored:
        return None
    others = torch.randperm(len(stored["lm_head.weight"]), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([kept, others[~torch.isin(others, kept)]])[:_PROPOSED].sort().values
    described["draft_vocab_size"] = _PROPOSED
    stored["lm_head.weight"] = stored["lm_head.weight"][ids]
    stored["d2t"] = ids - torch.arange(_PROPOSED)
    stored.pop("t2d", None)
    return ids


def map_faults(kept: Tensor) -> dict[str, Fault]:
    """Returns the ways to break a map; `kept` are tokens that the head must be able to propose."""

    def by(change: Callable[[Tensors, Tensor], Any]) -> Fault:
        def fault(described: Described, stored: Tensors) -> bool:
            ids = fewer(described, stored, kept)
            if ids is None:
                return False
            change(stored, ids)
            return True

        return fault

    numbers = torch.arange(_PROPOSED)
    order = torch.randperm(_PROPOSED, generator=torch.Generator().manual_seed(0))

    def shifted(stored: Tensors, ids: Tensor) -> None:
        stored["d2t"] = ids.roll(-1) - numbers

    return {
        "d2t shuffled": by(lambda stored, ids: stored.update(d2t=ids[order] - numbers)),
        "d2t holds tokens": by(lambda stored, ids: stored.update(d2t=ids)),
        "d2t one row off": by(shifted),
        "d2t offsets one too high": by(lambda stored, _: stored.update(d2t=stored["d2t"] + 1)),
        "d2t of zeros": by(lambda stored, _: stored.update(d2t=torch.zeros_like(stored["d2t"]))),
        "d2t missing": by(lambda stored, _: stored.pop("d2t")),
    }


@cache
def _other_model() -> Any:
    return zoo.load("bamba-6m").float()


def _other_words(_: Described, stored: Tensors) -> bool:
    stored["embed_tokens.weight"] = _other_model().get_input_embeddings().weight.detach().clone()
    return "fc.weight" in stored


def _other_output(_: Described, stored: Tensors) -> bool:
    if not stored.get("lm_head.weight", torch.empty(0)).numel():
        return False
    stored["lm_head.weight"] = _other_model().get_output_embeddings().weight.detach().clone()
    return True


def _halved(weight: Tensor) -> Tensor:
    """Returns a matrix of which half the rows are another head's, as where a copy was cut short."""
    return torch.cat([weight[: len(weight) // 2], noise(weight)[len(weight) // 2 :]])


def _overflowed(weight: Tensor) -> Tensor:
    """Returns weights as float16 holds them after they were scaled too far."""
    return (weight.float() * 1e5 / weight.float().abs().max()).half().float()


def _rounded(weight: Tensor) -> Tensor:
    return weight.to(torch.float8_e4m3fn).float()


MATRICES = r"(proj|fc|linear)\.weight$"
FAULTS: dict[str, Fault] = {
    "layers reversed": layers_reversed,
    "taps one layer lower": taps(lambda ids: [one - 1 for one in ids]),
    "taps one layer higher": taps(lambda ids: [one + 1 for one in ids]),
    "the first layers as taps": taps(lambda ids: list(range(len(ids)))),
    "fc parts reversed": parts_turned(r"^fc\.weight", 3),
    "fc halves exchanged": parts_turned(r"eh_proj\.weight", 2),
    "halves of embedding and state exchanged": parts_turned(
        r"(midlayer|^layers\.0)\.self_attn\.[qkv]_proj\.weight", 2
    ),
    "first norm missing": changed(r"(input_layernorm|enorm)\.weight", torch.ones_like),
    "norm of states missing": changed(r"(hidden_norm|hnorm)\.weight", torch.ones_like),
    "norm before the MLP missing": changed(
        r"(post_attention_layernorm|layers\.1\.norm)\.weight", torch.ones_like
    ),
    "last norm missing": changed(r"(^norm|final_layernorm)\.weight", torch.ones_like),
    "norms kept as weight minus one": changed(r"norm\.weight", lambda weight: weight - 1),
    "norm_before_residual": added_key("norm_before_residual", True, of="midlayer."),
    "norm_before_residual off": key("norm_before_residual", False),
    "norm_output": added_key("norm_output", True, of="midlayer."),
    "rope_theta 100": key("rope_theta", 100.0),
    "rotation of neighbours": interleaved,
    "heads of queries reversed": heads_reversed,
    "other model's embeddings": _other_words,
    "other model's output head": _other_output,
    "random fc": changed(r"(^fc|eh_proj)\.weight", noise),
    "random attention": changed(r"(self_attn|mixer)\.[qkvo]_proj", noise),
    "random MLP": changed(r"(gate|up|down)_proj", noise),
    "random keys": changed(r"k_proj\.weight", noise),
    "half of each matrix another head's": changed(MATRICES, _halved),
    "half of the MLP another head's": changed(r"down_proj\.weight", _halved),
    "keys and values exchanged": swapped("k_proj", "v_proj"),
    "queries and outputs exchanged": swapped("q_proj", "o_proj"),
    "gate and up exchanged": swapped("gate_proj", "up_proj"),
    "overflow in float16": changed(r"down_proj|linear\.weight", _overflowed),
    "rounded to float8": changed(MATRICES, _rounded),
    "attention four times as strong": changed(r"o_proj\.weight", lambda weight: weight * 4),
    "MLP four times as strong": changed(r"down_proj\.weight", lambda weight: weight * 4),
    "MLP of the other sign": changed(r"down_proj\.weight", torch.neg),
    "attention of zeros": changed(r"o_proj\.weight", torch.zeros_like),
    "MLP of zeros": changed(r"down_proj\.weight", torch.zeros_like),
    "mask_token_id 17": key("mask_token_id", 17),
    "correction of another head": changed(r"markov_w2", noise),
    "correction in the opposite order": changed(r"markov_w1", lambda weight: weight.flip(0)),
    "causal switched": key("causal", False),
    "the root's slot guesses nothing": added_key("sample_from_anchor", False, of="markov_head."),
    "a weight that is not a number": changed(r"norm\.weight", lambda weight: weight.log() * torch.nan),
}


def of_one(pattern: str, change: Callable[[Tensor], Tensor], *, number: int = 0) -> Fault:
    """Returns the fault that changes one head's part of tensors that hold all heads', `[heads, ...]`."""

    def one(weight: Tensor) -> Tensor:
        rows = list(weight)
        rows[number] = change(rows[number])
        return torch.stack(rows)

    return changed(pattern, one)


MEDUSA: dict[str, Fault] = {
    "heads reversed": changed("", lambda weight: weight.flip(0)),
    "other residual block": of_one("^weight", noise, number=1),
    "blocks exchanged": changed("weight|bias", lambda weight: weight.flip(0)),
    "biases dropped": changed("bias", torch.zeros_like),
    "blocks of zeros": changed("weight|bias", torch.zeros_like),
    "blocks four times as strong": changed("weight|bias", lambda weight: weight * 4),
    "blocks of the other sign": changed("weight|bias", torch.neg),
    "blocks transposed": changed("weight", lambda weight: weight.transpose(1, 2)),
    "random output head": of_one("output", noise),
    "second output head random": of_one("output", noise, number=1),
    "output heads exchanged": changed("output", lambda weight: weight.flip(0)),
    "other model's output heads": changed(
        "output", lambda weight: _other_model().get_output_embeddings().weight.detach().expand_as(weight)
    ),
    "output rows one off": changed("output", lambda weight: weight.roll(1, 1)),
    "overflow in float16": changed("weight", _overflowed),
    "rounded to float8": changed("weight|output", _rounded),
    "half of each block another head's": changed(
        "^weight", lambda weight: torch.stack([*map(_halved, weight)])
    ),
    "a weight that is not a number": changed("bias", lambda weight: weight * torch.nan),
}


def _anywhere(described: Described, name: str) -> int:
    """Returns the value of a key at any depth; 0 where there is none."""
    if isinstance(described.get(name), int):
        return int(described[name])
    return next((_anywhere(one, name) for one in described.values() if isinstance(one, dict)), 0)
