"""Toy models: distributions by context, small enough to enumerate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import final

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least, probability
from draftwood.protocols import StateBackend


@attrs.frozen(eq=False)
class NextTokenModel(ABC):
    """A model for proofs: a next-token distribution for every text.

    Attributes:
        vocab_size: number of tokens.
        seed: the seed of a random model; checks seed their own draws with it too.
        dtype: of its logits. A proof in float32 or bfloat16 runs the arithmetic of production, from logits
            that are rounded as a model rounds them.
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    seed: int = 0
    dtype: torch.dtype = attrs.field(default=torch.float64, kw_only=True)

    @abstractmethod
    def logits(self, text: Sequence[int]) -> Tensor:
        """`[vocab]` of the model's `dtype`."""

    def probs(self, text: Sequence[int], temperature: float = 1.0) -> Tensor:
        """The law of its logits, whatever their dtype: float64 `[vocab]`, summing to 1.

        At temperature 0 the most likely token has all of it.
        """
        logits = self.logits(text).double()
        if temperature == 0:
            return torch.zeros_like(logits).index_fill_(0, logits.argmax(), 1)
        return (logits / temperature).softmax(-1)


def _same_vocabulary(model: ToyModel, _: object, near: NextTokenModel | None) -> None:
    if near is not None and near.vocab_size != model.vocab_size:
        raise InvalidInput(
            f"near has {near.vocab_size} tokens and the model {model.vocab_size}; give them one vocabulary."
        )


@final
@attrs.frozen(eq=False)
class ToyModel(NextTokenModel):
    """Logits that are random, and fixed by the seed and the last tokens of the text.

    Attributes:
        sharpness: standard deviation of the logits; large values give nearly one-hot distributions.
        order: how many last tokens the distribution depends on.
        sparsity: chance that a token is forbidden (-inf) in a context; one token is always left, so
            that a high value makes many contexts one-hot.
        near: a model that this one resembles, so that a draft can be near its target.
        mix: the share of `near`: probabilities are `mix * near.probs + (1 - mix)` times its own.
    """

    sharpness: float = 1.5
    order: int = attrs.field(default=8, validator=at_least(1))
    sparsity: float = attrs.field(default=0.0, validator=probability)
    near: NextTokenModel | None = attrs.field(default=None, validator=_same_vocabulary)
    mix: float = attrs.field(default=0.5, validator=probability)
    _cache: dict[tuple[int, ...], Tensor] = attrs.field(factory=dict, init=False, repr=False)

    def logits(self, text: Sequence[int]) -> Tensor:
        logits = self._random((len(text), *text[-self.order :]))
        if self.near is not None:
            logits = (self.mix * self.near.probs(text) + (1 - self.mix) * logits.softmax(-1)).log()
        return logits.to(self.dtype)

    def _random(self, context: tuple[int, ...]) -> Tensor:
        if context not in self._cache:
            key = self.seed
            for token in context:
                key = (key * 1_000_003 + token + 1) % (2**61 - 1)
            generator = torch.Generator().manual_seed(key)
            logits = self.sharpness * torch.randn(self.vocab_size, dtype=torch.float64, generator=generator)
            if self.sparsity:
                lots = torch.rand(self.vocab_size, dtype=torch.float64, generator=generator)
                forbidden = lots < self.sparsity
                forbidden[lots.argmax()] = False
                logits = logits.masked_fill(forbidden, -torch.inf)
            self._cache[context] = logits
        return self._cache[context]


@final
@attrs.frozen(eq=False)
class ConstantModel(NextTokenModel):
    """A model with equal probabilities `p` `[vocab_size]` in every context."""

    p: Tensor = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        return self.p.log().to(self.dtype)


@attrs.define(eq=False)
class ToyBackend(StateBackend):
    """A backend over a toy model; its state is the list of tokens."""

    model: NextTokenModel
    max_length: int | None = None
    weight_bytes: int = 0
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    _committed: list[list[int]] = attrs.field(factory=list, init=False)
    _nodes: list[list[tuple[int, int]]] = attrs.field(factory=list, init=False)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.model.vocab_size

    @property
    def committed(self) -> list[list[int]]:
        """The committed tokens of every row."""
        return self._committed

    @property
    def lengths(self) -> list[int]:
        return [len(text) for text in self._committed]

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._committed += [row.tolist() for row in rows]
        self._nodes += [[] for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        gone = set(range(len(self._committed)) if rows is None else rows)
        self._committed = [text for row, text in enumerate(self._committed) if row not in gone]
        self._nodes = [nodes for row, nodes in enumerate(self._nodes) if row not in gone]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        counts = [tokens.shape[1]] * len(tokens) if counts is None else counts
        logits = torch.zeros(*tokens.shape, self.vocab_size, dtype=self.model.dtype)
        for row, count in enumerate(counts):
            for node in range(count):
                self._nodes[row].append((int(tokens[row, node]), int(parents[row, node])))
                text = self._text(row, len(self._nodes[row]) - 1)
                if self.max_length is not None and len(text) > self.max_length:
                    raise InvalidInput(
                        f"{len(text)} tokens exceed the context of {self.max_length}; ask for fewer."
                    )
                logits[row, node] = self.model.logits(text)
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        for row, path in enumerate(paths):
            self._committed[row] += [self._nodes[row][node][0] for node in path]
            self._nodes[row] = []

    def _text(self, row: int, node: int) -> list[int]:
        tokens: list[int] = []
        while node >= 0:
            token, node = self._nodes[row][node]
            tokens.append(token)
        return self._committed[row] + tokens[::-1]
