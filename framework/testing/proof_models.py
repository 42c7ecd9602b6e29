"""The toy models on which strategies are proved by default: few, and chosen for what they find.

`python -m tests.mutations.power` chose the seeds: of many pairs of models, those on which the known mistakes
err the most. Half of the mistakes took part; the other half shows what the choice is worth (docs/proofs.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.testing.toy import ToyModel

VOCAB = 3


@attrs.frozen(eq=False)
class Narrow(ToyModel):
    """A toy model that leaves only some tokens open, by how long the text is.

    Attributes:
        supports: tokens left after `start`, `start + 1`, ... tokens of text; the last number holds on.
        start: length of the text at the root.
    """

    supports: tuple[int, ...] = attrs.field(kw_only=True)
    start: int = attrs.field(default=1, kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = super().logits(text)
        place = min(max(len(text) - self.start, 0), len(self.supports) - 1)
        dropped = logits.argsort(descending=True)[self.supports[place] :]
        return logits.index_fill(0, dropped, -torch.inf)


@attrs.frozen(eq=False)
class OneHot(ToyModel):
    """The most likely token of `model` is certain in every context: what temperature 0 makes of it."""

    model: ToyModel = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = self.model.logits(text)
        return torch.full_like(logits, -torch.inf).index_fill(0, logits.argmax(), 0).to(self.dtype)


@attrs.frozen
class Toys:
    """A target and the models that draft for it; policies of several drafters ask them one after another."""

    target: ToyModel
    drafts: tuple[ToyModel, ...]

    @property
    def draft(self) -> ToyModel:
        return self.drafts[0]

    @property
    def at_zero(self) -> Toys:
        """The same with the target at temperature 0."""
        return Toys(OneHot(self.target.vocab_size, model=self.target), self.drafts)

    def of(self, dtype: torch.dtype) -> Toys:
        """The same models with logits of `dtype`."""
        return Toys(_of(self.target, dtype), tuple(_of(draft, dtype) for draft in self.drafts))


def _of(model: ToyModel, dtype: torch.dtype) -> ToyModel:
    return attrs.evolve(model, dtype=dtype)


def toys(
    seed: int,
    *,
    vocab_size: int = VOCAB,
    target: float = 1.5,
    draft: float = 1.0,
    mix: float | None = None,
    target_sparsity: float = 0.0,
    draft_sparsity: float = 0.0,
    drafters: int = 2,
) -> Toys:
    """Toys by the sharpness of target and draft; with `mix` the drafts resemble the target that much."""
    wanted = ToyModel(vocab_size, seed=10 * seed, sharpness=target, sparsity=target_sparsity)
    drafts = tuple(
        ToyModel(
            vocab_size,
            seed=10 * seed + 1 + which,
            sharpness=draft,
            sparsity=draft_sparsity,
            near=wanted if mix is not None else None,
            mix=mix or 0.0,
        )
        for which in range(drafters)
    )
    return Toys(wanted, drafts)


TOYS: tuple[Toys, ...] = (
    toys(8),
    toys(8, target=3.0, draft=0.5),
    toys(4, mix=0.6),
    toys(2, mix=0.999),
    toys(1, target=6.0, target_sparsity=0.4, draft_sparsity=0.4),
)
"""Moderate, sharp over flat, drafts near their targets, zeros and one-hot in both."""

WIDE: tuple[Toys, ...] = (toys(11, vocab_size=8, target=2.0, draft=1.5),)
"""Over eight tokens."""


def narrow(
    seed: int,
    supports: Sequence[int],
    *,
    vocab_size: int = VOCAB,
    target_support: int | None = None,
    start: int = 1,
    drafters: int = 5,
) -> Toys:
    """Toys whose drafts leave `supports[d]` tokens open at depth d, so that deep and wide trees stay few.

    The target leaves `target_support` tokens open, or all.
    """

    def model(which: int, sharpness: float, open_tokens: Sequence[int]) -> Narrow:
        own = 10 * seed + which
        return Narrow(vocab_size, seed=own, sharpness=sharpness, supports=tuple(open_tokens), start=start)

    target = model(0, 1.5, (target_support or vocab_size,))
    return Toys(target, tuple(model(1 + which, 1.0, supports) for which in range(drafters)))


def bigram(seed: int) -> Toys:
    """Toys over two tokens whose drafts look at the last one alone, so that many nodes have one law."""
    drafts = tuple(ToyModel(2, seed=10 * seed + 1 + which, sharpness=1.0, order=1) for which in range(2))
    return Toys(ToyModel(2, seed=10 * seed), drafts)


@attrs.frozen(eq=False)
class Few(ToyModel):
    """A model over many tokens that leaves three of them open at the root, and one behind it.

    Attributes:
        chances: of the tokens at the root.
        start: length of the text at the root.
    """

    chances: Mapping[int, float] = attrs.field(kw_only=True)
    start: int = attrs.field(default=1, kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        p = torch.zeros(self.vocab_size, dtype=torch.float64)
        for token, chance in self.chances.items() if len(text) <= self.start else [(70_000, 1.0)]:
            p[token] = chance
        return p.log().to(self.dtype)


def large(start: int = 1) -> Toys:
    """Toys over 131,072 tokens of which a few are open, beyond what 16 bits count."""
    target = Few(2**17, chances={7: 0.3, 40_000: 0.5, 131_071: 0.2}, start=start)
    draft = Few(2**17, chances={7: 0.4, 40_000: 0.3, 90_000: 0.3}, start=start)
    return Toys(target, (draft, draft))
