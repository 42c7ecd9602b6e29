"""Processors, criteria and streamers as users write them."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor


class FavoursByLength(hf.LogitsProcessor):
    """Reads the padded length."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        scores = scores.clone()
        scores[:, input_ids.shape[1] % scores.shape[1]] += 3.0
        return scores


class FavoursByRow(hf.LogitsProcessor):
    """Treats every row of the batch in its own way, in place."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row in range(len(input_ids)):
            scores[row, (7 * row + int(input_ids[row, -1])) % scores.shape[1]] += 4.0
        return scores


class OnACopy(hf.LogitsProcessor):
    """One that writes in place, without a trace in the logits that it was given."""

    def __init__(self, inner: hf.LogitsProcessor) -> None:
        self.inner = inner

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.inner(input_ids, scores.clone())


class HoldsATensorARow(hf.LogitsProcessor):
    """Was made for a batch of a given size."""

    def __init__(self, rows: int) -> None:
        self.bias = 2.0 * torch.randn(rows, 53, generator=torch.Generator().manual_seed(1))

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + self.bias


class Counts(hf.LogitsProcessor):
    """Counts its calls, as one that warms up or cools down does."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        scores = scores.clone()
        scores[:, self.calls % scores.shape[1]] += 5.0
        return scores


class NoOp(hf.LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


class TooLong(hf.StoppingCriteria):
    """Reads the padded length, and ends all rows at once by one bool."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> bool:
        return input_ids.shape[1] >= self.length


class EndsRowsAtTheirToken(hf.StoppingCriteria):
    """Ends each row at a different token."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        own = 10 + torch.arange(len(input_ids))
        return (input_ids[:, -1] % 16) == own


class TracksRows(hf.StoppingCriteria):
    """Remembers which rows have ended, as lm-eval's does, and was made for a batch of a given size."""

    def __init__(self, rows: int) -> None:
        self.done = [False] * rows

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        for row, done in enumerate(self.done):
            if not done:
                self.done[row] = int(input_ids[row, -1]) % 7 == 3
        return torch.tensor(self.done)


class ReadsScores(hf.StoppingCriteria):
    """Ends a row where the model was sure."""

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return scores[-1].softmax(-1).amax(-1) > 0.9


class Collects:
    """A streamer."""

    def __init__(self) -> None:
        self.prompt: list[int] | None = None
        self.tokens: list[int] = []
        self.ends = 0

    def put(self, value: Tensor) -> None:
        if self.prompt is None:
            self.prompt = value.flatten().tolist()
        else:
            self.tokens += value.flatten().tolist()

    def end(self) -> None:
        self.ends += 1


def allowed(batch_id: int, sent: Tensor) -> list[int]:
    """A prefix function that depends on the row."""
    return [token for token in range(53) if (token + batch_id + len(sent)) % 3]
