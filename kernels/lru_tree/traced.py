"""A real-gated linear recurrence along a tree for a traced graph: no loop depends on the tree.

As `draftwood.kernels.mamba1_tree.traced`, for nodes whose older ancestors have their states.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwood.kernels import support

DEEPEST = 31
"""Nodes of a path, at most, in a graph for any number of nodes: its steps cannot follow from the number."""


def attend(*, values: Tensor, outputs: Tensor, decay: Tensor, state: Tensor, visible: Tensor) -> Tensor:
    """Computes `reference.attend` in a number of steps that is the bit length of the number of nodes.

    Args:
        values: gated inputs of the new nodes, `[rows, nodes, channels]`.
        outputs: of the older columns, `[rows, columns - nodes, channels]`.
        decay: the log decay of the new nodes, `[rows, nodes, channels]`, at most 0; -inf forgets all.
        state: committed, `[rows, channels]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    (rows, nodes, _), old = values.shape, outputs.shape[1]
    # The first two are a zero state and the committed one, whose parent that is, as that of older columns.
    numbers = torch.arange(2, old + nodes + 2, device=values.device)
    own = numbers == torch.arange(old + 2, old + nodes + 2, device=values.device).unsqueeze(1)
    parents = torch.where(visible & ~own, numbers, 1).amax(-1)
    states = torch.cat([torch.zeros_like(state).unsqueeze(1), state.unsqueeze(1), outputs, values], 1)
    sums, up = pad(decay, (0, 0, 2 + old, 0)), pad(parents, (2 + old, 0))
    row = torch.arange(rows, device=values.device).unsqueeze(1)
    deepest = DEEPEST if support.traced() else nodes
    for _ in range(deepest.bit_length()):
        states = states + sums.exp() * states[row, up]
        sums, up = sums + sums[row, up], up.gather(1, up)
    return states[:, 2 + old :]
