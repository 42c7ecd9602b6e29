"""Trees and targets of all rows brought to the host at once, for verifiers that have no form on a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from draftwood import TokenTree, TreeBatch
from draftwood.laws.proposals import Proposal


def on_the_host(
    trees: Sequence[TokenTree], target_probs: Sequence[Tensor]
) -> tuple[Sequence[TokenTree], Sequence[Tensor]]:
    """Returns trees and distributions on the CPU, after one wait; unchanged where they are there already."""
    if not len(trees) or target_probs[0].device.type == "cpu":
        return trees, target_probs
    held = list(target_probs)
    if isinstance(trees, TreeBatch):
        rows, copies = _copied([*held, *trees.levels], len(held))
        return attrs.evolve(trees, levels=tuple(copies)), rows
    laws = [(row, node, law) for row, tree in enumerate(trees) for node, law in tree.proposals.items()]
    rows, copies = _copied(held + [one for *_, law in laws for one in _tensors(law)], len(held))
    proposals: list[dict[int, Proposal]] = [{} for _ in trees]
    for row, node, law in laws:
        proposals[row][node] = _with(law, copies)
    return [attrs.evolve(tree, proposals=of) for tree, of in zip(trees, proposals, strict=True)], rows


def _copied(tensors: Sequence[Tensor], first: int) -> tuple[list[Tensor], list[Tensor]]:
    """Copies of the `first` tensors, and of the others."""
    flat: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        flat.setdefault(tensor.dtype, []).append(tensor.reshape(-1))
    # One result to wait for, unless there are several dtypes.
    read = {
        dtype: iter(torch.cat(parts).cpu().split([len(part) for part in parts]))
        for dtype, parts in flat.items()
    }
    copies = [next(read[tensor.dtype]).view(tensor.shape) for tensor in tensors]
    return copies[:first], copies[first:]


def _tensors(law: Proposal) -> list[Tensor]:
    """The distributions that a law holds, field after field."""
    return [one for _, value in _fields(law) for one in (value if isinstance(value, tuple) else (value,))]


def _with(law: Proposal, copies: list[Tensor]) -> Proposal:
    """The law with the first of the `copies`, which are taken out, for its distributions."""
    changed: dict[str, Any] = {}
    for name, value in _fields(law):
        count = len(value) if isinstance(value, tuple) else 1
        taken = tuple(copies.pop(0) for _ in range(count))
        changed[name] = taken if isinstance(value, tuple) else taken[0]
    if hasattr(law, "device"):
        changed["device"] = "cpu"
    evolved: Proposal = attrs.evolve(cast(Any, law), **changed)
    return evolved


def _fields(law: Proposal) -> list[tuple[str, Any]]:
    """The fields of a law that hold one distribution or several."""
    values = [
        (field.name, getattr(law, field.name)) for field in attrs.fields(cast(Any, type(law))) if field.init
    ]
    return [
        (name, value)
        for name, value in values
        if isinstance(value, Tensor) or (isinstance(value, tuple) and value and isinstance(value[0], Tensor))
    ]
