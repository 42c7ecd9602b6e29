"""Mamba-1 along a tree, in plain PyTorch; README.md has the derivation.

Columns are the uncommitted nodes of a row, ancestors before descendants; the new nodes are the last ones.
Channels of a group, which are adjacent, share queries and keys.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

Level = tuple[Tensor, Tensor]
"""Columns of one depth and their parents' indices in the level above, both int64 `[rows, width]`.

An entry that a row does not fill holds the number of columns.
"""


class Paths:
    """From every new node up to its root, for all layers of a pass; what nobody asks for is not made.

    Attributes:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """

    def __init__(self, visible: Tensor) -> None:
        self.visible = visible

    @cached_property
    def order(self) -> Tensor:
        """Returns the columns that a node sees, itself first, then -1; int32 `[rows, nodes, columns]`."""
        numbers = torch.arange(self.visible.shape[-1], dtype=torch.int32, device=self.visible.device)
        return torch.where(self.visible, numbers, -1).sort(-1, descending=True).values

    @cached_property
    def lengths(self) -> Tensor:
        """int32 `[rows, nodes]`: how many columns a node sees."""
        return self.visible.sum(-1, dtype=torch.int32)

    @cached_property
    def levels(self) -> list[Level]:
        """The new nodes and their ancestors by depth; reads the depth back from a device."""
        return levels(visible=self.visible)


def levels(*, visible: Tensor) -> list[Level]:
    """The new nodes and their ancestors by depth.

    Args:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    rows, nodes, columns = visible.shape
    numbers = torch.arange(columns, device=visible.device)
    # Every node's path from its root, then -1. The paths of padding are separate chains.
    depth = int(visible.sum(-1).max()) if visible.numel() else 0
    order = torch.where(visible, numbers, columns).sort(-1).values[..., :depth]
    row = torch.arange(rows, device=visible.device).unsqueeze(1)
    slots = visible.new_zeros(rows, columns + 1, dtype=torch.int64)
    above = order.new_zeros(rows, nodes)
    depth_levels = []
    for distance in range(depth):
        column = order[..., distance]
        parent_of = slots.new_zeros(rows, columns + 1).scatter_(1, column, slots.gather(1, above))
        there = slots.new_zeros(rows, columns + 1).scatter_(1, column, 1)[:, :columns].bool()
        width = int(there.sum(-1).max())
        level = torch.where(there, numbers, columns).sort(-1).values[:, :width]
        depth_levels.append((level, torch.where(level < columns, parent_of[row, level], 0)))
        slots = slots.scatter(1, level, torch.arange(width, device=level.device).expand(rows, -1))
        above = column
    return depth_levels


def attend(
    *,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    steps: Tensor,
    rates: Tensor,
    state: Tensor,
    paths: Paths,
) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes, holding the states of two levels at a time.

    Args:
        queries: C of the new nodes, `[rows, nodes, groups, n]`.
        keys: B, `[rows, columns, groups, n]`.
        values: the inputs times their step, `[rows, columns, channels]`.
        steps: the steps, `[rows, columns, channels]`.
        rates: A, `[channels, n]`, below 0; a step decays the state by `exp(step A)`.
        state: committed, `[rows, channels, n]`.
        paths: of the new nodes.
    """
    rows, columns, channels = values.shape
    nodes, groups = queries.shape[1:3]
    dtype = values.dtype
    queries, keys, values = (tensor.to(state.dtype) for tensor in (queries, keys, values))
    row = torch.arange(rows, device=values.device).unsqueeze(1)
    out = values.new_zeros(rows, columns + 1, channels)
    states = state.unsqueeze(1)
    for level, parents in paths.levels:
        column = level.clamp(max=columns - 1)
        decayed = states[row, parents] * (steps[row, column].unsqueeze(-1) * rates).exp()
        grouped = values[row, column].unflatten(-1, (groups, -1)).unsqueeze(-1)
        states = decayed + (grouped * keys[row, column].unsqueeze(-2)).flatten(2, 3)
        level_queries = queries[row, (column - columns + nodes).clamp(min=0)]
        outputs = states.unflatten(2, (groups, -1)) @ level_queries.unsqueeze(-1)
        out[row, level] = outputs.squeeze(-1).flatten(2)
    return out[:, columns - nodes : columns].to(dtype)


def replay(
    *, keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor, kept: Tensor
) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    if not kept.shape[1]:
        return state
    kept = kept.unsqueeze(-1)
    sums = torch.where(kept, steps, 0.0).flip(1).cumsum(1).flip(1)
    below = torch.cat([sums[:, 1:], torch.zeros_like(sums[:, :1])], 1)
    new_state = state * (sums[:, 0].unsqueeze(-1) * rates).exp()
    weighted = torch.where(kept, values, 0.0)
    # One column of the state at a time: `exp` stays inside the sum over the path.
    for n in range(rates.shape[1]):
        weight = (below * rates[:, n]).exp() * weighted
        grouped = weight.unflatten(-1, (keys.shape[2], -1)) * keys[..., n, None]
        new_state[..., n] += grouped.sum(1).flatten(1)
    return new_state
