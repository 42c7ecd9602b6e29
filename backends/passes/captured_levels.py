"""All levels of a draft tree in one captured pass, where a plan says how one leads to the next."""

from __future__ import annotations

import math
from functools import lru_cache

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import Held, Inputs, padded
from draftwood.backends.nodes.region import Ints
from draftwood.trees.level_plan import GrowingLevels, LevelPlan

LAYERS = 32
"""Layers of all levels together, at most: all of them are compiled."""

COLUMNS = 512
"""Uncommitted columns at most: every pass of the backend reads as many from then on."""

CPU_NODES = 32
"""Nodes of a level of all rows at most on a CPU, where those that nobody wants cost as much as others."""

SHRINKS = 0.75
"""Nodes that need expanding, compared with the level above: few trees need more."""


@lru_cache
def widths_that_pay(
    plan: LevelPlan, *, rows: int, nodes: int, layers: int, vocab_size: int, device: torch.device
) -> tuple[int, ...] | None:
    """Nodes of every level, the root first, of one pass over all; None where a pass a level takes less time.

    Args:
        plan: that is followed.
        rows: of the batch.
        nodes: of the first pass.
        layers: of the model.
        vocab_size: of its logits.
        device: where it runs.
    """
    widths = plan.widths(plan.budget, vocab_size=vocab_size)
    if device.type == "cpu":
        if rows * -(-plan.budget // 2) > CPU_NODES:
            return None
        widths = tuple(
            min(width, _expected(plan, level), CPU_NODES // rows) for level, width in enumerate(widths)
        )
    fits = layers * len(widths) <= LAYERS and nodes + sum(widths) <= COLUMNS
    return widths if fits else None


def _expected(plan: LevelPlan, level: int) -> int:
    """Nodes of a level that are expanded on a CPU, where each costs: seldom fewer than a tree needs.

    A node needs expanding if the tree may hold a child of it, and the deeper a level is, the fewer of its
    nodes do. More are only needed where no level has many, as with a beam.
    """
    if level == 0:
        return 1
    return max(math.ceil((plan.budget - 1) * SHRINKS**level), -(-plan.budget // plan.depth))


@attrs.frozen
class LevelsShape:
    """The sizes of a captured pass over all levels.

    Attributes:
        first: of its first pass, whose last node is the root.
        plan: that it follows.
        widths: nodes of every level, the root first.
        temperature: of the draft's distributions.
    """

    first: Shape
    plan: LevelPlan
    widths: tuple[int, ...]
    temperature: float

    @property
    def columns(self) -> int:
        """Uncommitted columns that it takes."""
        return self.first.nodes + sum(self.widths[1:])

    @property
    def starts(self) -> list[int]:
        """The first column of every level, the root's first."""
        below = np.cumsum(self.widths) - 1
        return [self.first.nodes - 1, *(self.first.nodes + below[:-1]).tolist()]

    def arrays(self, *, start: int, lengths: Ints, positions: Ints, first: dict[str, Ints | None]) -> Held:
        """Returns the arrays that it reads, besides the arrays of its first pass.

        Args:
            start: the slot of the first node.
            lengths: committed slots of every row, `[rows]`.
            positions: of the levels, `[rows, levels]`.
            first: by kind, the first slot of the text that a level sees, of the same shape; None: all.
        """
        size = self.first.rows, len(self.widths)
        held: Held = {
            "level slots": start + np.arange(self.first.nodes, self.columns),
            "level positions": padded(positions, size),
            "lengths": padded(lengths, size[:1]),
        }
        for kind, slots in first.items():
            held[f"level first of {kind}"] = (
                np.zeros(size, np.int64) if slots is None else padded(slots, size)
            )
        return held

    def run(self, one: ModelPass, tensors: Inputs) -> Tensor:
        """The whole pass over levels by `one` pass for each, for tracing: `GrowingLevels.packed`."""
        first, masks, plan = self.first, one.numbers, one.cache.plan
        visible = {name: tensors[name] for name in masks.names}
        mask, _ = masks.of(visible, first)
        logits = one.forward(tensors["tokens"], tensors["positions"], mask)[0][:, -1:]
        slots = torch.arange(first.slots, device=logits.device)
        column = slots - tensors["at"]
        text = slots < tensors["lengths"][:, None, None]
        # What the nodes of a level see of the tree, `[rows, nodes, slots]`.
        seen = visible[masks.names[0]][:, 0, -1:] & (column >= 0) & (column < first.columns)
        grown = GrowingLevels(self.plan, first.rows, logits.device)
        grown.take(self._distributions(logits))
        for level, (start, width) in enumerate(zip(self.starts[1:], self.widths[1:], strict=True), 1):
            tokens, parents = grown.expand(width)
            own = column == start + torch.arange(width, device=logits.device).unsqueeze(1)
            seen = seen.gather(1, parents.unsqueeze(2).expand(-1, -1, first.slots)) | own
            for kind, name in zip(one.kinds, masks.names, strict=True):
                begins = tensors[f"level first of {kind}"][:, level, None, None]
                visible[name] = (seen | (text & (slots >= begins))).unsqueeze(1)
            positions = tensors["level positions"][:, level, None].expand(-1, width)
            plan.index = tensors["level slots"].narrow(0, start - first.nodes, width)
            mask, _ = masks.of(visible, first)
            logits = one.forward(tokens, positions, mask)[0]
            grown.take(self._distributions(logits))
        # As it was, so that a trace sees no change of it.
        plan.index = tensors["slots"]
        return grown.packed()

    def _distributions(self, logits: Tensor) -> Tensor:
        scores = logits.float()
        return torch.softmax(scores / self.temperature if self.temperature != 1 else scores, -1)
