"""A real-gated linear recurrence along a tree, in plain PyTorch; README.md has the derivation.

Columns are the uncommitted nodes of a row, ancestors before descendants; the new nodes are the last ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.kernels.mamba1_tree.reference import Paths


def attend(*, values: Tensor, outputs: Tensor, decay: Tensor, state: Tensor, paths: Paths) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes, which are their states too.

    Args:
        values: gated inputs of the new nodes, `[rows, nodes, channels]`.
        outputs: of the older columns, `[rows, columns - nodes, channels]`.
        decay: the log decay of the new nodes, `[rows, nodes, channels]`, at most 0; -inf forgets all.
        state: committed, `[rows, channels]`.
        paths: of the new nodes.
    """
    visible = paths.visible
    old = outputs.shape[1]
    above = torch.cat([state.unsqueeze(1), outputs], 1)
    numbers = torch.arange(1, visible.shape[-1] + 1, device=visible.device)
    strict = visible.clone()
    strict[..., old:].diagonal(dim1=1, dim2=2).fill_(False)
    parents = torch.where(strict, numbers, 0).amax(-1)
    row = torch.arange(len(values), device=values.device).unsqueeze(1)
    left = decay.exp()
    outputs_so_far = values
    # After so many steps every node of that depth is right.
    for _ in range(int(visible[..., old:].sum(-1).max())):
        outputs_so_far = values + left * torch.cat([above, outputs_so_far], 1)[row, parents]
    return outputs_so_far


def replay(*, outputs: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    numbers = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    last = torch.cat([kept.new_zeros(len(kept), 1).long(), torch.where(kept, numbers, 0)], 1).amax(-1)
    row = torch.arange(len(kept), device=kept.device)
    return torch.cat([state.unsqueeze(1), outputs], 1)[row, last]
