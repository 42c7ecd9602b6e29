"""`ArrayGrowth`: the trees of all rows while one generator grows them, as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidTree
from draftwood.laws.randomness import NodeStreams, Randomness
from draftwood.trees.level_plan import Levels
from draftwood.trees.request import Requests
from draftwood.trees.row_trees import GrowingRows, Layer, RowTrees
from draftwood.trees.siblings import layer_children
from draftwood.trees.tree_batch import TreeBatch


class ArrayGrowth:
    """Requests to the draft, answers and trees, as `Growth` has them for rows that grow one by one.

    Attributes:
        plan: None: no drafter grows these trees by itself.
    """

    plan = None

    def __init__(
        self, growing: GrowingRows, rngs: Sequence[Randomness], streams: NodeStreams | None = None
    ) -> None:
        """Start the growth, and take its first layer.

        Args:
            growing: what `ArrayPolicy.grow_together` returned.
            rngs: the draft stream of every row.
            streams: `NodeStreams.of(rngs)`, which several rounds may share; None: made here.
        """
        self._growing, self._rngs = growing, rngs
        self._streams = streams or NodeStreams.of(rngs)
        self._levels: list[Tensor] = []
        self._layer: Layer | None = None
        self._trees: RowTrees | None = None
        self._requests: Requests | None = None
        self._send(None)

    @property
    def requests(self) -> Requests | None:
        """Returns the present requests to the draft; None when all trees are grown."""
        return self._requests

    def answer(self, probs: Tensor) -> None:
        """Take the requested draft distributions `[rows, nodes, vocab]`."""
        assert self._layer is not None
        level = len(self._levels)
        self._levels.append(probs)
        self._send(layer_children(probs, self._layer, self._rngs, self._streams, level=level))

    def follow(self, levels: Levels) -> None:
        """Never called: there is no plan that a drafter could have followed."""
        raise InvalidTree("A policy that grows all rows at once announces no plan; ask it layer by layer.")

    def trees(self) -> TreeBatch:
        """The trees, when all are grown."""
        trees = self._trees
        assert trees is not None
        tokens, parents, depths, asked = trees.arrays()
        return TreeBatch(
            tokens, parents, depths, trees.sizes, trees.law, tuple(self._levels), asked, trees.notes
        )

    def _send(self, answer: Any) -> None:
        self._layer = self._requests = None
        try:
            layer = self._growing.send(answer)
        except StopIteration as finished:
            if not isinstance(finished.value, RowTrees):
                raise InvalidTree(
                    f"A policy's `grow_together` returned {type(finished.value).__name__}; return what "
                    "RowTrees.finish gives."
                ) from None
            self._trees = finished.value
            return
        if not isinstance(layer, Layer):
            raise InvalidTree(
                f"A policy's `grow_together` yielded {type(layer).__name__}; yield what RowTrees.open gives."
            )
        if not any(layer.counts):
            raise InvalidTree("A policy's `grow_together` asks for no node at all; leave the layer out.")
        if layer.law not in TreeBatch.LAWS:
            raise InvalidTree(
                f"A policy's `grow_together` opens nodes by {layer.law.__name__}, whose children need more "
                "than arrays hold; write `grow`."
            )
        self._layer = layer
        self._requests = Requests(
            torch.from_numpy(layer.tokens), torch.from_numpy(layer.parents), layer.counts
        )
