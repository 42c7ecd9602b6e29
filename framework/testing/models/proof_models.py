"""The toy models on which strategies are proved by default: few, and chosen for what they find.

`python -m tests.mutations.power` chose the seeds: of many pairs of models, those on which the known mistakes
err the most. Half of the mistakes took part; the other half shows what the choice is worth (docs/proofs.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import final

import attrs
import torch
from torch import Tensor

from draftwood.testing.models.toy import NextTokenModel, ToyModel

VOCAB = 3


@final
@attrs.frozen(eq=False)
class NarrowModel(NextTokenModel):
    """The logits of `model` with only its most likely tokens left open, as many as the text's length says.

    Attributes:
        model: of the same vocabulary.
        supports: tokens left after `start`, `start + 1`, ... tokens of text; the last number holds on.
        start: length of the text at the root.
    """

    model: NextTokenModel = attrs.field(kw_only=True)
    supports: tuple[int, ...] = attrs.field(kw_only=True)
    start: int = attrs.field(default=1, kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = self.model.logits(text)
        depth = min(max(len(text) - self.start, 0), len(self.supports) - 1)
        dropped = logits.argsort(descending=True)[self.supports[depth] :]
        return logits.index_fill(0, dropped, -torch.inf).to(self.dtype)


@final
@attrs.frozen(eq=False)
class OneHotModel(NextTokenModel):
    """The most likely token of `model` is certain in every context: what temperature 0 makes of it."""

    model: NextTokenModel = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = self.model.logits(text)
        return torch.full_like(logits, -torch.inf).index_fill(0, logits.argmax(), 0).to(self.dtype)


@final
@attrs.frozen(eq=False)
class TiedModel(NextTokenModel):
    """The logits of `model` in steps of one half, so that tokens have equal probabilities."""

    model: NextTokenModel = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        return ((2 * self.model.logits(text)).round() / 2).to(self.dtype)


@final
@attrs.frozen(eq=False)
class SilentModel(NextTokenModel):
    """The logits of `model`, and nothing to propose after the token `after`: all are minus infinity.

    Attributes:
        start: length of the text at the root, which is answered whatever its last token.
    """

    model: NextTokenModel = attrs.field(kw_only=True)
    after: int = attrs.field(default=0, kw_only=True)
    start: int = attrs.field(default=1, kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = self.model.logits(text)
        silent = len(text) > self.start and text[-1] == self.after
        return (torch.full_like(logits, -torch.inf) if silent else logits).to(self.dtype)


@attrs.frozen
class ProofModels:
    """A target and the models that draft for it; policies of several drafters ask them one after another."""

    target: NextTokenModel
    drafts: tuple[NextTokenModel, ...]

    @property
    def draft(self) -> NextTokenModel:
        return self.drafts[0]

    @property
    def at_zero(self) -> ProofModels:
        """Returns the models with the target at temperature 0."""
        return ProofModels(OneHotModel(self.target.vocab_size, model=self.target), self.drafts)

    @property
    def with_ties(self) -> ProofModels:
        """Returns the models with drafts to which tokens are equally likely."""
        tied = tuple(TiedModel(draft.vocab_size, model=draft) for draft in self.drafts)
        return ProofModels(self.target, tied)

    def silent_after(self, token: int, *, start: int = 1) -> ProofModels:
        """Returns the models with silent drafts after `token`, below a text of length `start`."""
        drafts = (
            SilentModel(draft.vocab_size, draft.seed, model=draft, after=token, start=start)
            for draft in self.drafts
        )
        return ProofModels(self.target, tuple(drafts))

    def of(self, dtype: torch.dtype) -> ProofModels:
        """Returns the models with logits of `dtype`."""
        return ProofModels(_of(self.target, dtype), tuple(_of(draft, dtype) for draft in self.drafts))


def _of(model: NextTokenModel, dtype: torch.dtype) -> NextTokenModel:
    return attrs.evolve(model, dtype=dtype)


def proof_models(
    seed: int,
    *,
    vocab_size: int = VOCAB,
    target: float = 1.5,
    draft: float = 1.0,
    mix: float | None = None,
    target_sparsity: float = 0.0,
    draft_sparsity: float = 0.0,
    drafters: int = 2,
) -> ProofModels:
    """Models by the sharpness of target and draft; with `mix` the drafts resemble the target that much."""
    right = ToyModel(vocab_size, seed=10 * seed, sharpness=target, sparsity=target_sparsity)
    drafts = tuple(
        ToyModel(
            vocab_size,
            seed=10 * seed + 1 + which,
            sharpness=draft,
            sparsity=draft_sparsity,
            near=right if mix is not None else None,
            mix=mix or 0.0,
        )
        for which in range(drafters)
    )
    return ProofModels(right, drafts)


PROOF_MODELS: tuple[ProofModels, ...] = (
    proof_models(8),
    proof_models(8, target=3.0, draft=0.5),
    proof_models(4, mix=0.6),
    proof_models(2, mix=0.999),
    proof_models(1, target=6.0, target_sparsity=0.4, draft_sparsity=0.4),
)
"""Moderate, sharp over flat, drafts near their targets, zeros and one-hot in both."""

WIDE_MODELS: tuple[ProofModels, ...] = (proof_models(11, vocab_size=8, target=2.0, draft=1.5),)
"""Over eight tokens."""


def narrow_models(
    seed: int,
    supports: Sequence[int],
    *,
    vocab_size: int = VOCAB,
    target_support: int | None = None,
    start: int = 1,
    drafters: int = 5,
) -> ProofModels:
    """Models whose drafts leave `supports[d]` tokens open at depth d, so that deep and wide trees stay few.

    The target leaves `target_support` tokens open, or all.
    """

    def model(which: int, sharpness: float, open_tokens: Sequence[int]) -> NarrowModel:
        inner = ToyModel(vocab_size, seed=10 * seed + which, sharpness=sharpness)
        return NarrowModel(vocab_size, inner.seed, model=inner, supports=tuple(open_tokens), start=start)

    target = model(0, 1.5, (target_support or vocab_size,))
    return ProofModels(target, tuple(model(1 + which, 1.0, supports) for which in range(drafters)))


def bigram_models(seed: int) -> ProofModels:
    """Returns models over two tokens whose drafts only read the last one, so that many nodes share a law."""
    drafts = tuple(ToyModel(2, seed=10 * seed + 1 + which, sharpness=1.0, order=1) for which in range(2))
    return ProofModels(ToyModel(2, seed=10 * seed), drafts)


@final
@attrs.frozen(eq=False)
class FewTokensModel(NextTokenModel):
    """A model over many tokens that allows three of them at the root, and one after it.

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


def large_models(start: int = 1) -> ProofModels:
    """Models over 131,072 tokens of which a few are open, beyond what 16 bits count."""
    target = FewTokensModel(2**17, chances={7: 0.3, 40_000: 0.5, 131_071: 0.2}, start=start)
    draft = FewTokensModel(2**17, chances={7: 0.4, 40_000: 0.3, 90_000: 0.3}, start=start)
    return ProofModels(target, (draft, draft))


def open_models(vocab_size: int, drafted: int) -> ProofModels:
    """Returns models over many tokens: at the root the target leaves all open, and a draft `drafted`."""

    def model(seed: int, tokens: int) -> NarrowModel:
        inner = ToyModel(vocab_size, seed=seed, sharpness=1.0)
        return NarrowModel(vocab_size, inner.seed, model=inner, supports=(tokens, 1))

    return ProofModels(model(120, vocab_size), (model(121, drafted), model(122, drafted)))
