"""The five laws by which the children of a node are drawn.

All of them are one idea: `conditional(k, earlier)` is the distribution of the k-th child given the
tokens of the earlier ones (RSD, theorem 3.1, asks no more of a law to verify it without loss).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.errors import InvalidDistribution
from draftwood.fields import as_ints


class Proposal(ABC):
    """How the children of one node were drawn. `vocab_size` is the length of every distribution."""

    vocab_size: int

    @abstractmethod
    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        """The law of child `k` (counted from 0) given the tokens of children `0 .. k-1`.

        Returns probabilities `[vocab]`, a fresh tensor or a view that must not be written to; all
        zero when no token is left to draw.
        """

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        """The law of child `k` before any sibling is seen, `[vocab]`: what a trace shows."""
        return self.conditional(0, ())


@attrs.frozen(eq=False)
class Deterministic(Proposal):
    """A fixed function of the context (top-k, beam, retrieved text): every child is a point mass."""

    tokens: tuple[int, ...] = attrs.field(converter=as_ints)
    vocab_size: int
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        p = torch.zeros(self.vocab_size, dtype=self.dtype, device=self.device)
        p[self.tokens[k]] = 1
        return p

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.conditional(k, ())


@attrs.frozen(eq=False)
class WithReplacement(Proposal):
    """Independent draws from `p` `[vocab]`; duplicates keep their multiplicity."""

    p: Float[Tensor, " vocab"]

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self.p


@attrs.frozen(eq=False)
class WithoutReplacement(Proposal):
    """`p` `[vocab]` with the earlier siblings removed and the rest renormalised.

    This is the law of sequential draws, Gumbel top-k and stochastic beam search alike.
    """

    p: Float[Tensor, " vocab"]

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        if not earlier:
            return self.p
        rest = self.p.clone()
        rest[list(earlier)] = 0
        # Summing the survivors instead of taking 1 - p(earlier) keeps precision when p is nearly one-hot.
        total = rest.sum()
        return rest / total if total > 0 else rest


@attrs.frozen(eq=False)
class TopThenSample(Proposal):
    """The tokens `top` first, fixed by the context; then one token drawn from `p` `[vocab]` without them.

    Hu et al. 2025 (arXiv 2502.18779) draft in this way, with the most likely tokens as `top`. With one
    of them it is SpecHub's pair (arXiv 2411.05289), whose two tokens come in either order there.
    """

    p: Float[Tensor, " vocab"]
    top: tuple[int, ...] = attrs.field(converter=as_ints)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        if k < len(self.top):
            point = torch.zeros_like(self.p)
            point[self.top[k]] = 1
            return point
        return WithoutReplacement(self.p).conditional(k, (*self.top, *earlier))

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.conditional(k, self.top[:k])


@attrs.frozen(eq=False)
class PerChild(Proposal):
    """Child `k` from its own distribution `ps[k]` `[vocab]`: several drafters, or any dependence."""

    ps: tuple[Float[Tensor, " vocab"], ...] = attrs.field(converter=tuple)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.ps[0].shape[-1])

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self.ps[k]

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.ps[k]


ALL_LAWS: frozenset[type[Proposal]] = frozenset(
    {Deterministic, WithReplacement, WithoutReplacement, TopThenSample, PerChild}
)


def check_distribution(p: Float[Tensor, " vocab"], what: str) -> None:
    """Raise `InvalidDistribution` unless `p` is non-negative, finite and sums to 1."""
    # NaN and infinity surface in the sum, so two passes over the vocabulary suffice.
    low, total = float(p.min()), float(p.sum(dtype=torch.float64))
    if not abs(total - 1) <= 1e-3:
        raise InvalidDistribution(f"{what} sums to {total:.6g}; normalise it to 1.")
    if low < 0:
        raise InvalidDistribution(f"{what} holds {low:.3g}; probabilities must be >= 0.")
