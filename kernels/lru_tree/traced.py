"""A real-gated linear recurrence along a tree for a traced graph: no loop depends on the tree.

As `draftwood.kernels.mamba1_tree.traced`, for nodes whose older ancestors have their states.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def attend(*, values: Tensor, outputs: Tensor, decay: Tensor, state: Tensor, visible: Tensor) -> Tensor:
    """Computes `reference.attend` in a number of steps that is the bit length of the number of nodes.

    Args:
        values: gated inputs of the new nodes, `[rows, nodes, channels]`.
        outputs: of the older columns, `[rows, columns - nodes, channels]`.
        decay: the log decay of the new nodes, `[rows, nodes, channels]`, at most 0; -inf forgets all.
        state: committed, `[rows, channels]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    (rows, nodes, _), known = values.shape, 1 + outputs.shape[1]
    numbers = torch.arange(1, known + nodes, device=values.device)
    own = numbers == torch.arange(known, known + nodes, device=values.device).unsqueeze(1)
    parents = torch.where(visible & ~own, numbers, 0).amax(-1)
    # Known states have no parent: theirs is the zero state after the nodes.
    states = torch.cat([state.unsqueeze(1), outputs, values, torch.zeros_like(state).unsqueeze(1)], 1)
    sums, up = pad(decay, (0, 0, known, 1)), pad(parents, (known, 1), value=known + nodes)
    row = torch.arange(rows, device=values.device).unsqueeze(1)
    for _ in range(nodes.bit_length()):
        states = states + sums.exp() * states[row, up]
        sums, up = sums + sums[row, up], up.gather(1, up)
    return states[:, known : known + nodes]
