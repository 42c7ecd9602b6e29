"""The states of recurrent layers in a pass that is traced."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState, Vectors
from draftwood.backends.recurrent.passes import Pass


class Traced(Protocol):
    """The states of all layers in a pass that is traced.

    Attributes:
        now: who sees whom.
    """

    now: Pass

    def run(self, layer: LayerState, new: Vectors) -> Tensor:
        """Returns the outputs of the nodes of the pass, of which the mixer gives `new`."""


class Standing(Traced):
    """States in arenas, which a pass reads and writes in place.

    Attributes:
        columns: of the new nodes, int64 `[nodes]`.
        old: columns that are read besides, and may be anything where no node sees them.
    """

    def __init__(self, visible: Tensor, prompts: Tensor, columns: Tensor, *, old: int) -> None:
        self.now, self.columns, self.old = Pass(visible, prompts), columns, old

    def run(self, layer: LayerState, new: Vectors) -> Tensor:
        """Returns the outputs of the nodes, whose vectors go into the arena."""
        assert layer.arena is not None
        vectors = layer.arena.vectors
        old = tuple([vector[:, : self.old] for vector in vectors]) if self.old else ()
        out, kept = layer.attend(layer.arena.state, old, new, self.now)
        for place, vector in zip(vectors, kept, strict=True):
            # Autocast may have made them narrower.
            place.index_copy_(1, self.columns, vector.to(place.dtype))
        return out
