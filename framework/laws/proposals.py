"""The laws by which the children of a node are drawn: their base class, and the five of the literature.

All of them are one idea: `conditional(k, earlier)` is the distribution of the k-th child given the
tokens of the earlier ones (RSD, theorem 3.1, asks no more of a law to verify it without loss).
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, final

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.errors import InvalidDistribution, InvalidInput
from draftwood.base.validators import as_ints
from draftwood.laws.ordered_draws import drawn_together
from draftwood.laws.randomness import Randomness


@attrs.frozen
class DrawnChildren:
    """Children of one node: tokens in drawn order, their draft probabilities, and their law."""

    tokens: list[int]
    chances: list[float]
    proposal: Proposal


class Proposal(ABC):
    """A law of drawing children, together with the distribution of one node to which it was applied.

    Every subclass is a separate law, also outside this package. `conditional` is all that recursive rejection
    and traversal ask for; `draw` makes the shipped policies draw by it. The shipped laws are final, since
    verifiers know them by their class.

    Attributes:
        vocab_size: the length of every distribution.
        several_drafters: whether `draw` takes one distribution a drafter.
        one_by_one: whether verifiers of any law (`ANY_LAW`) accept it. False for a law whose conditionals are
            expensive; only verifiers that name it accept it.
    """

    vocab_size: int
    several_drafters: ClassVar[bool] = False
    one_by_one: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for base in cls.__mro__[1:]:
            if getattr(base, "__final__", False):
                raise TypeError(
                    f"{cls.__name__} is derived from {base.__name__}, which verifiers know by its class; "
                    "derive it from Proposal."
                )

    @classmethod
    def draw(cls, probs: Float[Tensor, "*drafters vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        """Draw up to `count` children of one node.

        Args:
            probs: the node's draft distribution `[vocab]`, `[drafters, vocab]` where `several_drafters`; a
                row of zeros proposes nothing.
            count: at least 1; fewer come where fewer tokens can be drawn.
            rng: the draft stream.

        Raises:
            InvalidInput: the law has no `draw`: only policies made for it draw by it.
        """
        raise InvalidInput(
            f"{cls.__name__} does not say how its children are drawn; give it a classmethod `draw`, or draw "
            "in a policy made for it."
        )

    @classmethod
    def draw_nodes(
        cls,
        probs: Float[Tensor, "nodes *drafters vocab"],
        *,
        counts: Sequence[int],
        rng: Randomness,
        total: int,
    ) -> list[DrawnChildren]:
        """Draw up to `counts[i]` children of node i and at most `total` in all, for the first nodes.

        The same draws as `draw` node after node; override it where all nodes together cost less.
        """
        drawn: list[DrawnChildren] = []
        for p, count, stream in zip(probs, counts, rng.nodes(len(counts)), strict=True):
            if total < 1:
                break
            drawn.append(cls.draw(p, count=min(count, total), rng=stream))
            total -= len(drawn[-1].tokens)
        return drawn

    @abstractmethod
    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        """The law of child `k` (counted from 0) given the tokens of children `0 .. k-1`.

        Returns probabilities `[vocab]`, a fresh tensor or a view that must not be written to; all
        zero when no token is left to draw.
        """

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        """Returns the law of child `k` before any sibling is seen, `[vocab]`, which a trace shows."""
        return self.conditional(0, ())


@final
@attrs.frozen(eq=False)
class Deterministic(Proposal):
    """A fixed function of the context (top-k, beam, retrieved text): every child is a point mass."""

    tokens: tuple[int, ...] = attrs.field(converter=as_ints)
    vocab_size: int
    dtype: torch.dtype = torch.float32
    device: torch.device | str = "cpu"

    @classmethod
    def draw_nodes(
        cls, probs: Float[Tensor, "nodes vocab"], *, counts: Sequence[int], rng: Randomness, total: int
    ) -> list[DrawnChildren]:
        """The most likely tokens of every node, by one top-k and one transfer for all nodes."""
        top = probs.topk(min(max(counts, default=0), probs.shape[-1]))
        drawn: list[DrawnChildren] = []
        for p, tokens, chances, count in zip(
            probs, top.indices.tolist(), top.values.tolist(), counts, strict=True
        ):
            if total < 1:
                break
            # Chances fall, so the live ones come first.
            live = sum(chance > 0 for chance in chances[: min(count, total)])
            law = cls(tokens[:live], p.shape[-1], p.dtype, p.device)
            drawn.append(DrawnChildren(tokens[:live], chances[:live], law))
            total -= live
        return drawn

    @classmethod
    def draw(cls, probs: Float[Tensor, " vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        return cls.draw_nodes(probs.unsqueeze(0), counts=[count], rng=rng, total=count)[0]

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        p = torch.zeros(self.vocab_size, dtype=self.dtype, device=self.device)
        p[self.tokens[k]] = 1
        return p

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.conditional(k, ())


@final
@attrs.frozen(eq=False)
class WithReplacement(Proposal):
    """Independent draws from `p` `[vocab]`; duplicates keep their multiplicity."""

    p: Float[Tensor, " vocab"]

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    @classmethod
    def draw(cls, probs: Float[Tensor, " vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        tokens = [rng.choose(probs) for _ in range(count)] if bool(probs.any()) else []
        return DrawnChildren(tokens, probs[tokens].tolist(), cls(probs))

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self.p


@final
@attrs.frozen(eq=False)
class WithoutReplacement(Proposal):
    """`p` `[vocab]` with the earlier siblings removed and the rest renormalised.

    This is the law of sequential draws, Gumbel top-k and stochastic beam search alike.
    """

    p: Float[Tensor, " vocab"]

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    @classmethod
    def draw(cls, probs: Float[Tensor, " vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        tokens = rng.without_replacement(probs, count)
        return DrawnChildren(tokens, probs[tokens].tolist(), cls(probs))

    @classmethod
    def draw_nodes(
        cls, probs: Float[Tensor, "nodes vocab"], *, counts: Sequence[int], rng: Randomness, total: int
    ) -> list[DrawnChildren]:
        """Draws for all nodes at once, from sums of blocks; on a GPU by a kernel."""
        together = drawn_together(probs, counts, rng)
        if together is None:
            return super().draw_nodes(probs, counts=counts, rng=rng, total=total)
        drawn: list[DrawnChildren] = []
        for p, (tokens, chances) in zip(probs, together, strict=True):
            if total < 1:
                break
            drawn.append(DrawnChildren(tokens[:total], chances[:total], cls(p)))
            total -= len(drawn[-1].tokens)
        return drawn

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        if not earlier:
            return self.p
        rest = self.p.clone()
        rest[list(earlier)] = 0
        # Summing the survivors instead of taking 1 - p(earlier) keeps precision when p is nearly one-hot.
        total = rest.sum()
        return rest / total if total > 0 else rest


@final
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

    @classmethod
    def draw(cls, probs: Float[Tensor, " vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        best = probs.topk(min(count - 1, probs.shape[-1]))
        law = cls(probs, best.indices[best.values > 0].tolist())
        rest = law.marginal(len(law.top))
        tokens = [*law.top, rng.choose(rest)] if bool(rest.any()) else list(law.top)
        return DrawnChildren(tokens, probs[tokens].tolist(), law)

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        if k < len(self.top):
            point = torch.zeros_like(self.p)
            point[self.top[k]] = 1
            return point
        return WithoutReplacement(self.p).conditional(k, (*self.top, *earlier))

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.conditional(k, self.top[:k])


def _as_tensors(ps: Iterable[Tensor]) -> tuple[Tensor, ...]:
    return tuple(ps)


@final
@attrs.frozen(eq=False)
class PerChild(Proposal):
    """Child `k` from its own distribution `ps[k]` `[vocab]`: several drafters, or any dependence."""

    several_drafters = True
    ps: tuple[Float[Tensor, " vocab"], ...] = attrs.field(converter=_as_tensors)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.ps[0].shape[-1])

    @classmethod
    def draw(cls, probs: Float[Tensor, "drafters vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        ps = [p for p in probs if bool(p.any())][:count]
        tokens = [rng.choose(p) for p in ps]
        return DrawnChildren(tokens, [float(p[token]) for p, token in zip(ps, tokens, strict=True)], cls(ps))

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self.ps[k]

    def marginal(self, k: int) -> Float[Tensor, " vocab"]:
        return self.ps[k]


ANY_LAW: frozenset[type[Proposal]] = frozenset({Proposal})  # type: ignore[type-abstract]
"""The `laws` of a verifier that only calls a law's `conditional`, and so accepts every law.

Laws that are not `one_by_one` are the exception: a verifier that accepts them names them too.
"""


def draw_children(
    law: type[Proposal],
    probs: Float[Tensor, "nodes *drafters vocab"],
    *,
    count: int | Sequence[int],
    rng: Randomness,
    total: int | None = None,
) -> list[DrawnChildren]:
    """Draw up to `count` children for each of several nodes.

    Ask for all nodes of a request at once: draws without replacement are then made for all of them, on a
    GPU by a kernel with one small result read back. Every node draws from its own stream.

    Args:
        law: the class of a law; `PerChild` draws one child from every drafter, `TopThenSample` takes the
            most likely tokens for all children but the last.
        probs: the nodes' draft distributions `[nodes, vocab]`; `[nodes, drafters, vocab]` where
            `law.several_drafters`.
        count: how many a node, one number or one for each; it gets fewer when fewer tokens have
            probability above 0.
        rng: the draft stream.
        total: maximum number altogether; the nodes after the last of them are left out. None: no limit.

    Raises:
        InvalidInput: the law has no `draw`.
    """
    counts = [count] * len(probs) if isinstance(count, int) else count
    return law.draw_nodes(probs, counts=counts, rng=rng, total=sys.maxsize if total is None else total)


def check_distribution(p: Float[Tensor, " vocab"], what: str) -> None:
    """Raise `InvalidDistribution` unless `p` is non-negative, finite and sums to 1."""
    # NaN and infinity surface in the sum, so two passes over the vocabulary suffice.
    low, total = float(p.min()), float(p.sum(dtype=torch.float64))
    if not abs(total - 1) <= 1e-3:
        raise InvalidDistribution(f"{what} sums to {total:.6g}; normalise it to 1.")
    if low < 0:
        raise InvalidDistribution(f"{what} holds {low:.3g}; probabilities must be >= 0.")
