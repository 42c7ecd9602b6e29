"""Rotary positions of a head: what its description says, frequencies, and the rotation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from typing import Any

import torch
from torch import Tensor

from draftwood import InvalidInput

THETA = 10000.0
"""The base of the rotation where a description names none."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Rotations that are the same for every length of a text, so that cached keys stay right."""

_FACTOR, _ORIGINAL, _PARTIAL = "factor", "original_max_position_embeddings", "partial_rotary_factor"
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": (_FACTOR,),
    "llama3": (_FACTOR, "low_freq_factor", "high_freq_factor", _ORIGINAL),
    "yarn": (_FACTOR, _ORIGINAL),
}
_MORE: Mapping[str, tuple[str, ...]] = {
    "yarn": ("attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate")
}
# Three axes of positions, of images; a text's are equal, so that it turns as it would without them.
_AXES = ("mrope_section", "mrope_interleaved")
_LAYER_TYPES = ("full_attention", "sliding_attention")


def rope_parameters(
    description: Mapping[str, Any],
    *,
    where: str,
    longest: int | None = None,
    types: Sequence[str] = ("full_attention",),
) -> dict[str, Any]:
    """Returns the rotation that a description names, as transformers' `rope_parameters`.

    Args:
        description: has `rope_parameters`, or `rope_theta` and `rope_scaling`, or both where they agree.
        where: it is stored, for messages.
        longest: text that the head was made for, which yarn takes where its own key is missing.
        types: of the head's layers, where the rotation is told by layer type.

    Raises:
        InvalidInput: a table, key or value that is not supported, by name; two ways that differ; layers that
            rotate differently.
    """
    found: list[dict[str, Any]] = []
    for key in ("rope_parameters", "rope_scaling"):
        table = description.get(key)
        if table is not None and not isinstance(table, dict):
            raise InvalidInput(f"{key} is {table!r:.60} in {where}; a rotation is described by keys.")
        if table:
            chosen = _of_types(table, types, f"{key} of {where}")
            found.append(_rotation(chosen, description, longest=longest, where=f"{key} of {where}"))
    if not found:
        return _rotation({}, description, longest=longest, where=where)
    if len(found) == 2 and found[0] != found[1]:
        raise InvalidInput(
            f"{where} has rope_parameters and rope_scaling, which differ; copy the head's description again."
        )
    return found[0]


def _of_types(table: Mapping[str, Any], types: Sequence[str], where: str) -> Mapping[str, Any]:
    """Returns the table of the layers' type, where there is one per type; it must be one for all layers."""
    if not any(isinstance(value, dict) for value in table.values()):
        return table
    for name in table:
        if name not in _LAYER_TYPES:
            raise InvalidInput(
                f"{where} describes a rotation of {name!r:.60}; rotations of {' and '.join(_LAYER_TYPES)} "
                "are read."
            )
    used = sorted(set(types))
    if missing := [name for name in used if not isinstance(table.get(name), dict)]:
        raise InvalidInput(
            f"{where} describes no rotation of {missing[0]}, which the head has; copy its description again."
        )
    if any(table[name] != table[used[0]] for name in used):
        raise InvalidInput(
            f"{where} describes layers that rotate differently; heads whose layers rotate alike are read."
        )
    chosen: Mapping[str, Any] = table[used[0]]
    return chosen


def _rotation(
    table: Mapping[str, Any], description: Mapping[str, Any], *, longest: int | None, where: str
) -> dict[str, Any]:
    kind = _one_value([table.get("rope_type"), table.get("type")], "rope_type", where) or "default"
    if kind == "mrope":
        kind = "default"
    if kind not in ROPE_TYPES:
        raise InvalidInput(
            f"The head's rotation is {kind!r:.40} in {where}, which changes as a text grows or is not known; "
            f"heads with {', '.join(ROPE_TYPES)} are read."
        )
    needed, more = _NEEDED[kind], _MORE.get(kind, ())
    known = {"rope_type", "type", "rope_theta", _PARTIAL, *_AXES, *needed, *more}
    for key, value in table.items():
        # A default rotation with a factor of 1, and a length that was never changed, say nothing.
        idle = kind == "default" and (key == _ORIGINAL or (key == _FACTOR and value in (None, 1)))
        if key not in known and not idle and value is not None:
            raise InvalidInput(
                f"{where} has the key {key!r:.60}, which is not known of the rotation {kind!r} and may "
                "change it; use another head."
            )
    told: dict[str, Any] = {"rope_type": kind}
    theta = _one_number([table.get("rope_theta"), description.get("rope_theta")], "rope_theta", where)
    told["rope_theta"] = THETA if theta is None else theta
    part = _one_number([table.get(_PARTIAL), description.get(_PARTIAL)], _PARTIAL, where)
    if part is not None and part != 1:
        if part > 1:
            raise InvalidInput(f"{_PARTIAL} is {part} in {where}; give a fraction of 1 at most.")
        told[_PARTIAL] = part
    if kind == "yarn" and table.get(_ORIGINAL) is None and longest is not None:
        told[_ORIGINAL] = longest
    for key in needed:
        if key not in told:
            told[key] = _number(table.get(key), key, where)
    return told | {key: table[key] for key in more if table.get(key) is not None}


def _one_number(values: Sequence[Any], key: str, where: str) -> float | None:
    """Returns the one number that is told in two places; None where it is told in neither."""
    numbers = [_number(value, key, where) for value in values if value is not None]
    number: float | None = _one_value(numbers, key, where)
    return number


def _one_value(values: Sequence[Any], key: str, where: str) -> Any:
    """Returns the one value that is told in two places; None where it is told in neither."""
    there = [value for value in values if value is not None]
    if len(there) == 2 and there[0] != there[1]:
        raise InvalidInput(
            f"{key} is {there[0]!r:.40} and {there[1]!r:.40} in {where}; copy the head's description again."
        )
    return there[0] if there else None


def _number(value: Any, key: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e15:
        raise InvalidInput(f"{key} is {value!r:.40} in {where}; the rotation needs a number above 0 there.")
    return float(value) if key != _ORIGINAL else value


def frequencies(
    rope: Mapping[str, Any], *, head_dim: int, longest: int | None, dtype: torch.dtype = torch.float32
) -> tuple[Tensor, float]:
    """Returns the angles of one position and the scale of queries and keys.

    Args:
        rope: as `rope_parameters` gives it.
        head_dim: of each head.
        longest: text that the head was made for; None where it does not say.
        dtype: of the angles.

    Returns:
        The angles `[pairs]` on the CPU; of a partial rotation fewer than `head_dim / 2`.

    Raises:
        InvalidInput: a part of a head that is no even number.
    """
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    turned = int(head_dim * rope.get(_PARTIAL, 1.0))
    if turned % 2 or not turned:
        raise InvalidInput(
            f"{_PARTIAL} is {rope.get(_PARTIAL)} of a head_dim of {head_dim}, so {turned} numbers "
            "would be rotated; "
            "give a part that is an even number of them."
        )
    with torch.device("cpu"):  # also where the weights are on none yet
        if rope.get("rope_type", "default") == "default":
            powers = torch.arange(0, turned, 2, dtype=torch.int64).float() / turned
            return (1.0 / (rope["rope_theta"] ** powers)).to(dtype), 1.0
        like = LlamaConfig(
            hidden_size=head_dim,
            head_dim=head_dim,
            num_attention_heads=1,
            rope_parameters=dict(rope),
            # As long as the scaling makes it: transformers warns where a head was trained on less.
            max_position_embeddings=int(rope.get(_ORIGINAL, 0) * rope[_FACTOR]) or longest or 2048,
        )
        angles, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](like, torch.device("cpu"))
    return angles.to(dtype), float(scale)


def softmax_factor(rope: Mapping[str, Any]) -> float:
    """Returns the factor of the products of queries and keys in layers with latent attention.

    Source: YaRN as DeepSeek-V2 uses it (arXiv 2405.04434, section 3.1.4), which scales the products for the
    numbers that are not rotated too.
    """
    every = rope.get("mscale_all_dim")
    if rope.get("rope_type") != "yarn" or not every or rope[_FACTOR] <= 1:
        return 1.0
    return (0.1 * float(every) * log(rope[_FACTOR]) + 1.0) ** 2


def rotated(states: Tensor, positions: Tensor, inverse: Tensor, scale: float) -> Tensor:
    """Returns queries or keys `[rows, n, heads, head_dim]`, turned to `positions` `[rows, n]`."""
    angles = (positions.unsqueeze(-1).to(torch.float32) * inverse).unsqueeze(2)
    cos, sin = ((turn * scale).to(states.dtype) for turn in (angles.cos(), angles.sin()))
    return turned_by(states, cos, sin)


def turned_by(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Returns queries or keys `[..., head_dim]`, turned by cosines and sines `[..., pairs]`.

    Of a partial rotation the first `2 * pairs` numbers of every head turn, and the others stay.
    """
    pairs = cos.shape[-1]
    first, second, rest = states[..., :pairs], states[..., pairs : 2 * pairs], states[..., 2 * pairs :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], -1)
