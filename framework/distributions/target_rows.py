"""The target's distributions after the nodes of a tree, worked out for those that a verifier looks at."""

from __future__ import annotations

import math

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.lazy_tensor import LazyRows
from draftwood.base.scratch import Scratch
from draftwood.distributions.sampling import SamplingParams


@attrs.frozen(eq=False)
class TargetRows(LazyRows):
    """Stands for the distributions `[nodes, vocab]` of one row.

    On a CPU a verifier reads a node's distribution where it comes to the node, and it comes to few.

    Attributes:
        logits: of the target, `[nodes, vocab]`.
        sampling: the target's.
        scratch: memory for the rows, which lasts as long as they are looked at.
    """

    logits: Float[Tensor, "nodes vocab"]
    sampling: SamplingParams
    scratch: Scratch = attrs.field(factory=Scratch)
    _rows: dict[int, Tensor] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def row(self, node: int) -> Tensor:
        if node in self._rows:
            return self._rows[node]
        sampling, logits, row = self.sampling, self.logits[node], None
        if sampling.is_argmax:
            row = _certain(logits)
        elif sampling.temperature:
            row = sampling.targets(logits, self.scratch)
        # What NaN comes of is refused, with the number of the node.
        if row is None or math.isnan(row.numpy().item(0)):
            row = self.complete()[node]
        self._rows[node] = row
        return row

    def likeliest(self, node: int) -> int:
        if self.sampling.is_argmax:
            row = self.logits[node]
            # numpy finds the largest sooner; it has no bfloat16.
            scores = (row if row.dtype.itemsize > 2 else row.float()).numpy()
            best = int(scores.argmax())
            if math.isfinite(scores[best]):
                return best
        return super().likeliest(node)

    def complete(self) -> Tensor:
        if -1 not in self._rows:
            self._rows[-1] = self.sampling.distribution(self.logits)
        return self._rows[-1]


def _certain(logits: Float[Tensor, " vocab"]) -> Tensor | None:
    """All of the probability at the first of the largest; None where that is not finite."""
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        return None
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    certain = torch.zeros(logits.shape, dtype=dtype)
    certain[best] = 1
    return certain
