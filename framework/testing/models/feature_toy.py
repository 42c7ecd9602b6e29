"""A toy target that gives features, so that drafters that read them can be enumerated."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.testing.models.toy import ToyBackend, ToyModel


@attrs.define(eq=False)
class FeatureToyBackend(ToyBackend):
    """A `ToyBackend` whose features and embeddings are fixed functions of the text and of the token.

    Attributes:
        hidden_size: width of a layer's states.
        feature_layers: as in `StateBackend`.
    """

    hidden_size: int = 4
    feature_layers: int = 1
    _layers: list[int] = attrs.field(factory=list, init=False)
    _last: int | None = attrs.field(default=None, init=False)
    _through: Callable[[Tensor], Tensor] | None = attrs.field(default=None, init=False)
    _taken: list[int] = attrs.field(factory=list, init=False)

    def states_after(self, text: Sequence[int], layer: int) -> Tensor:
        """Returns the states of `layer` at the last token of `text`, float64 `[hidden_size]`."""
        return ToyModel(self.hidden_size, seed=1000 + layer).logits(text)

    def keep_features(
        self,
        layers: Sequence[int],
        *,
        last: int | None = None,
        through: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self._layers, self._last, self._through = list(layers), last, through
        self._taken = [len(text) for text in self.committed]

    def prefill(self, rows: Sequence[Tensor]) -> None:
        super().prefill(rows)
        self._taken += [0 for _ in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        gone = set(range(len(self._taken)) if rows is None else rows)
        self._taken = [taken for row, taken in enumerate(self._taken) if row not in gone]
        super().release(rows)

    def take_features(self) -> list[Tensor]:
        new = []
        for text, taken in zip(self.committed, self._taken, strict=True):
            first = taken if self._last is None else max(taken, len(text) - self._last)
            states = [
                torch.cat([self.states_after(text[: end + 1], layer) for layer in self._layers])
                for end in range(first, len(text))
            ]
            blank = torch.zeros(0, self.hidden_size * len(self._layers), dtype=torch.float64)
            features = torch.stack(states) if states else blank
            new.append(features if self._through is None else self._through(features))
        self._taken = [len(text) for text in self.committed]
        return new

    def input_embeddings(self, tokens: Tensor) -> Tensor:
        table = torch.stack([self.states_after([token], -1) for token in range(self.vocab_size)])
        return table[tokens]
