"""Processes that run one target together, as under tensor parallelism: the first one decides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import torch
import torch.distributed as dist

from draftwood.trees.tree import TokenTree

Value = TypeVar("Value")


@attrs.frozen(eq=False)
class Ranks:
    """The processes of a group, all of which make the same calls in the same order.

    Passes of the target give all of them the same logits. Whatever else decides what comes next (a seed that
    nobody gave, a clock, the rounding of a draft that every process runs for itself) is the first one's: a
    process that went its own way would wait for the others in a collective that they never come to.

    Attributes:
        group: of `torch.distributed`.
        device: of the tensors that the group can send.
    """

    group: Any
    device: torch.device

    @property
    def first(self) -> bool:
        """Returns whether this process decides."""
        return dist.get_rank(self.group) == 0

    def agreed(self, value: Value) -> Value:
        """The first process's `value`, of plain numbers and containers; its own there."""
        held: list[Any] = [value if self.first else None]
        dist.broadcast_object_list(
            held, src=dist.get_global_rank(self.group, 0), group=self.group, device=self.device
        )
        agreed: Value = value if self.first else held[0]
        return agreed

    def agreed_trees(self, trees: Sequence[TokenTree]) -> Sequence[TokenTree]:
        """The first process's trees. Where this one's are others, they come without their proposals."""
        own = [(tree.tokens[: tree.size].tolist(), tree.parents[: tree.size].tolist()) for tree in trees]
        agreed = self.agreed(own)
        if agreed == own:
            return trees
        return [TokenTree(torch.tensor(tokens), torch.tensor(parents)) for tokens, parents in agreed]
