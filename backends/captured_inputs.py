"""What a captured pass reads: arrays of fixed shape, written anew on the host for every pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.buckets import Shape
from draftwood.backends.region import own_bits
from draftwood.backends.tree_pass import TreePass

Inputs = dict[str, Tensor]
"""The standing inputs of a pass, by name."""

Held = dict[str, NDArray[Any]]
"""The same on the host."""


def pass_inputs(shape: Shape, kinds: Sequence[str], *, recurrent: bool = False) -> Held:
    """Those of a pass over new nodes, blank.

    Args:
        shape: of the pass.
        kinds: names of the kinds of attention layers.
        recurrent: whether there are recurrent layers.
    """
    rows, nodes, words = shape.rows, shape.nodes, shape.columns // 32
    held: Held = {
        "tokens": np.zeros((rows, nodes), np.int64),
        "positions": np.zeros((rows, nodes), np.int64),
        "slots": np.zeros(nodes, np.int64),
        "lengths": np.zeros(rows, np.int32),
        "counts": np.full(rows, nodes, np.int32),
        "at": np.zeros(1, np.int32),
    }
    for kind in kinds:
        held[f"bits of {kind}"] = np.zeros((rows, nodes, words), np.int32)
        held[f"first of {kind}"] = np.zeros((rows, nodes), np.int32)
    if recurrent:
        held["seen"] = np.zeros((rows, nodes, shape.old + nodes), np.bool_)
        held["prompts"] = np.zeros((rows, nodes), np.bool_)
        held["columns"] = np.zeros(nodes, np.int64)
    return held


def fill_pass(held: Held, shape: Shape, tree: TreePass) -> None:
    """Write those of the nodes of `tree`; tokens that are on a device are left to the caller."""
    seen, nodes = tree.visibility, shape.nodes
    rows, real = tree.tokens.shape
    held["slots"][:] = np.arange(tree.start, tree.start + nodes)
    held["at"][:] = seen.start
    held["counts"][:] = nodes
    write(held["positions"], tree.positions)
    write(held["lengths"], seen.lengths)
    old = tree.start - seen.start
    for kind, bits, first in zip(seen.kinds, seen.bits, seen.first, strict=True):
        place = held[f"bits of {kind}"]
        # Padding sees itself, since softmax needs something.
        place[:] = own_bits(old + nodes, words=place.shape[2])[old:].view(np.int32)
        place[:rows, :real, : bits.shape[2]] = bits.view(np.int32)
        write(held[f"first of {kind}"], first)
    write(held["tokens"], tree.host_tokens() if tree.on_host else None)
    if tree.prompts is not None:
        start, old = tree.staged.start, shape.old
        held["columns"][:] = np.arange(start, start + nodes)
        write(held["prompts"], tree.prompts)
        place, visible = held["seen"], tree.staged.visible
        place[:, :, :old] = False
        place[:rows, :real, :start] = visible[..., :start]
        # Padding sees itself, and no text begins with it.
        place[:, :, old:] = np.eye(nodes, dtype=np.bool_)
        place[:rows, :real, old : old + real] = visible[..., start:]


def write(place: NDArray[Any], values: NDArray[Any] | None) -> None:
    """Let `place` begin with `values`, along every axis, and hold 0 elsewhere."""
    place.fill(0)
    if values is not None:
        place[tuple(map(slice, values.shape))] = values
