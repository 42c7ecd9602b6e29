"""The residual that rejected siblings leave of a target, and the laws by which siblings are tried."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor, float32, from_numpy, tensor

from draftwood.kernels.tree_plan.arrays import DUST
from draftwood.strategies.verifiers.vocabulary import LOOPED, Tokens, gathered, less, put, total, weight_of


class TriedLaw(Protocol):
    """The law by which a sibling is tried."""

    def __getitem__(self, token: int) -> float:
        """The probability of `token`."""
        ...

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        """Returns the residual of the weights `left`, which are not written to: max(left - scale p, 0)."""
        ...


@attrs.frozen(eq=False)
class SiblingLaw(TriedLaw):
    """The distribution `weights / total` `[vocab]` with the tokens `removed` left out of it.

    Keeping the pieces apart lets siblings without replacement share one tensor.
    """

    weights: Float[Tensor, " vocab"]
    total: float = 1.0
    removed: tuple[int, ...] = ()

    @classmethod
    def without(cls, weights: Float[Tensor, " vocab"], removed: Sequence[int], *, whole: float) -> SiblingLaw:
        """`weights`, whose sum in float64 is `whole`, with the tokens `removed` removed and renormalised."""
        rest = whole - sum(gathered(weights, np.array(removed)).tolist())
        # In float64 a difference of sums is as precise as numbers in float32 are, if it is not too small.
        if rest > whole * (1e-6 if weights.dtype == float32 else 0.5):
            return cls(weights, rest, tuple(removed))
        # Summing the survivors keeps the precision that the difference loses.
        left = weights.index_fill(0, tensor(list(removed), device=weights.device), 0)
        rest = total(left)
        return cls((left.double() / rest).to(left) if rest > 0 else left)

    def __getitem__(self, token: int) -> float:
        return 0.0 if token in self.removed else weight_of(self.weights, token) / self.total

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        share, removed = scale / self.total, np.array(self.removed, np.int64)
        alike = left.dtype == self.weights.dtype and left.device == self.weights.device
        if alike and left.is_cpu and left.dtype in LOOPED:
            return from_numpy(less(left.numpy(), self.weights.numpy(), share, removed))
        after = left.sub(self.weights, alpha=share)
        if len(removed):
            put(after, removed, gathered(left, removed))
        return after.clamp_(min=0)


@attrs.define(eq=False)
class Residual:
    """The target at a node as its children fail, with the node's own allowance.

    A node's *allowance* a is the probability that something in its subtree is accepted, itself included.
    With target T, a child x tried by law p gets min(1, a T(x) / p(x)); if it fails, T becomes
    r / S with r = max(a T - p, 0) and S its sum, and a becomes S / (S + 1 - a) (block verification,
    arXiv 2403.10444, algorithm 2; traversal verification, arXiv 2505.12398). At allowance 1 this is
    recursive rejection.

    Attributes:
        weights: `scale` times a T, `[vocab]`; not to be written to.
        deficit: `scale` times 1 - a, which no rejection changes.
        scale: the sum of both.
    """

    weights: Float[Tensor, " vocab"]
    deficit: float
    scale: float = 1.0

    @classmethod
    def of(cls, target: Float[Tensor, " vocab"], allowance: float = 1.0) -> Residual:
        if allowance < 1e-3:  # its reciprocal may leave the range of the target's numbers
            return cls(target * allowance, 1.0 - allowance)
        return cls(target, (1.0 - allowance) / allowance, 1.0 / allowance)

    @property
    def allowance(self) -> float:
        return 1.0 - self.deficit / self.scale

    def chance(self, candidate: Candidate) -> float:
        """The allowance of the child that is tried."""
        target_mass = weight_of(self.weights, candidate.token) / self.scale
        if target_mass <= 0:
            return 0.0
        draft_mass = candidate.law[candidate.token]
        chance = min(1.0, target_mass / draft_mass) if draft_mass > 0 else 1.0
        return 0.0 if chance < DUST else chance

    def reject(self, candidate: Candidate) -> None:
        """The child that was tried failed."""
        left = candidate.law.rejected(self.weights, self.scale)
        if left is self.weights:
            return
        scale = total(left) + self.deficit
        # In floating point nothing may be left although the child failed; T then stays as it was.
        if scale > 0:
            self.weights, self.scale = left, scale

    def give(self, tokens: Tokens, flows: NDArray[np.float64]) -> None:
        """`tokens` `[n]` have had `flows` `[n]` of what is left, and all children failed."""
        left = self.weights.clone()
        put(left, tokens, np.maximum(gathered(left, tokens) - self.scale * flows, 0))
        scale = float(left.sum()) + self.deficit
        if scale > 0:
            self.weights, self.scale = left, scale


@attrs.frozen(eq=False)
class Candidate:
    """A sibling to be tried: its number among the drawn ones, its token, and the law by which it is tried."""

    index: int
    token: int
    law: TriedLaw
