"""A head whose weights are stored under each other's names, or in another program's layout.

No shape tells: keys and values are alike, and so are a gate and what it multiplies. So the head is tried with
such weights exchanged back.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor
from torch.nn import Module, Parameter

Of = TypeVar("Of", bound=Module)


def with_weights(module: Of, changed: Mapping[str, Tensor]) -> Of:
    """Returns `module` with other parameters, by their full names, and all others shared."""
    other = copy(module)
    other._parameters, other._modules = dict(module._parameters), dict(module._modules)
    inner: dict[str, dict[str, Tensor]] = {}
    for name, weight in changed.items():
        child, _, rest = name.partition(".")
        if rest:
            inner.setdefault(child, {})[rest] = weight
        else:
            other._parameters[child] = Parameter(weight, requires_grad=False)
    for child, weights in inner.items():
        below = module._modules[child]
        assert below is not None
        other._modules[child] = with_weights(below, weights)
    return other


@attrs.frozen(eq=False)
class Restored:
    """A head with weights exchanged back.

    Attributes:
        name: what is exchanged, in words.
        cause: what is wrong with the head's file where its guesses are better so, and what to do.
        weights: the head's parameters that change, by name.
    """

    name: str
    cause: str
    weights: Mapping[str, Tensor]


def restored(head: Module, *, head_dim: int | None = None, rotated: int | None = None) -> Iterator[Restored]:
    """Yields what might mend `head`, of what it has.

    Args:
        head: the head.
        head_dim: width of its attention heads; None: the order of their rows is not tried.
        rotated: how many of these numbers are rotated.
    """
    stored = {name: weight.detach() for name, weight in head.named_parameters()}
    for one, other in (("k_proj", "v_proj"), ("gate_proj", "up_proj")):
        changed = _exchanged(stored, one, other)
        if changed:
            yield Restored(
                f"{one} and {other} exchanged",
                f"its file holds {one} as {other} and the reverse; exchange their names",
                changed,
            )
    changed = _layers_reversed(stored)
    if changed:
        cause = "its layers are numbered from the last; renumber them"
        yield Restored("layers in the opposite order", cause, changed)
    if head_dim and rotated:
        halves = torch.cat([torch.arange(0, rotated, 2), torch.arange(1, rotated, 2)])
        for name, order in (("neighbours", halves), ("halves", halves.argsort())):
            changed = _rows_ordered(stored, order, head_dim)
            if changed:
                yield Restored(
                    f"rotation of {name}",
                    f"the rows of its q_proj and k_proj are in the order of a program that rotates {name}; "
                    "convert them as that program's converter does",
                    changed,
                )


def _exchanged(stored: Mapping[str, Tensor], one: str, other: str) -> dict[str, Tensor]:
    """Returns the tensors `one` and `other` of all layers, under the other's name, if shapes allow."""
    pairs = [(name, name.replace(one, other)) for name in stored if one in name.split(".")]
    changed: dict[str, Tensor] = {}
    for first, second in pairs:
        if second not in stored or stored[first].shape != stored[second].shape:
            return {}
        changed |= {first: stored[second], second: stored[first]}
    return changed


def _layers_reversed(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {name: match for name in stored if (match := re.fullmatch(r"layers\.(\d+)\.(.+)", name))}
    last = max((int(match[1]) for match in found.values()), default=0)
    if not last:
        return {}
    changed = {name: stored.get(f"layers.{last - int(match[1])}.{match[2]}") for name, match in found.items()}
    # Layers of several shapes have an order that their shapes tell.
    if any(weight is None or weight.shape != stored[name].shape for name, weight in changed.items()):
        return {}
    return {name: weight for name, weight in changed.items() if weight is not None}


def _rows_ordered(stored: Mapping[str, Tensor], order: Tensor, head_dim: int) -> dict[str, Tensor]:
    """Returns queries and keys with the first rows of each attention head in `order`, and their norms."""
    places = torch.cat([order, torch.arange(len(order), head_dim)])
    changed: dict[str, Any] = {}
    for name, weight in stored.items():
        if re.search(r"(^|\.)[qk]_(proj|norm)\.(weight|bias)$", name):
            if len(weight) % head_dim:
                return {}
            heads = weight.unflatten(0, (-1, head_dim))
            changed[name] = heads[:, places.to(weight.device)].flatten(0, 1)
    return changed
