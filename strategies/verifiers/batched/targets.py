"""The target's distributions of all rows, in one tensor or one a row, asked at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from draftwood.base.lazy_tensor import LazyRows
from draftwood.kernels.tree_plan.arrays import Ints

Targets = Tensor | Sequence[Tensor]
"""Distributions `[rows, nodes, vocab]`, or `[nodes, vocab]` of every row."""


def on_the_host(target_probs: Targets) -> bool:
    """Whether the distributions lie on the CPU, where nothing is to be waited for."""
    return not len(target_probs) or target_probs[0].device.type == "cpu"


def stacked(target_probs: Targets, nodes: int) -> Tensor:
    """`[rows, nodes, vocab]`; rows that come one by one are copied, and padded by zeros."""
    if isinstance(target_probs, Tensor):
        return target_probs[:, :nodes]
    return torch.nn.utils.rnn.pad_sequence([probs[:nodes] for probs in target_probs], batch_first=True)


def likeliest(target_probs: Tensor, node: int) -> int:
    """The target's most likely token after one node; the first of several."""
    if isinstance(target_probs, LazyRows):
        return target_probs.likeliest(node)
    return int(target_probs[node].argmax())


def most_likely(target_probs: Targets, nodes: int) -> Ints:
    """The target's most likely token after every node, `[rows, nodes]`, read back at once."""
    if isinstance(target_probs, Tensor):
        return np.asarray(target_probs[:, :nodes].argmax(-1).cpu().numpy())
    best = [probs[:nodes].argmax(-1) for probs in target_probs]
    return np.asarray(torch.nn.utils.rnn.pad_sequence(best, batch_first=True).cpu().numpy())
