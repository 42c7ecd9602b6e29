"""Captured backends for tests: compiled as traced, and beside the same passes as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftwood.backends.transformer import TransformerBackend
from draftwood.protocols import StateBackend

CLOSE = 1e-5
"""Largest difference between the logits of the two, over the logits' largest."""


def as_traced(graph: Any, inputs: Any) -> Any:
    """A compiler that runs the graph as Dynamo traced it."""
    return graph


class Both(StateBackend):
    """A captured backend; every pass is compared with the same pass as it is."""

    def __init__(self, model: Any, capture: Any = as_traced) -> None:
        self.backend = TransformerBackend(model, capture=capture)
        self.eager = TransformerBackend(model)
        self.worst = 0.0
        backend = self.backend
        self.model, self.device, self.feature_layers = backend.model, backend.device, backend.feature_layers
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.weight_bytes, self.gives_first_logits = backend.weight_bytes, backend.gives_first_logits

    @property
    def graphs(self) -> int:
        assert self.backend.captured is not None
        return self.backend.captured.graphs

    @property
    def lengths(self) -> list[int]:
        return self.backend.lengths

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.backend.prefill(rows)
        self.eager.prefill(rows)

    def first_logits(self, rows: Sequence[Tensor]) -> Tensor:
        self.eager.prefill(rows)
        return self.backend.first_logits(rows)

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = self.backend.extend(tokens, parents, counts)
        expected = self.eager.extend(tokens, parents, counts)
        for row, count in enumerate(counts or [tokens.shape[1]] * len(tokens)):
            if count:
                right = expected[row, :count]
                off = float((logits[row, :count] - right).abs().max() / right.abs().max())
                self.worst = max(self.worst, off)
                assert off <= CLOSE, f"Captured logits of row {row} are off by {off:.2g}."
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self.backend.commit(paths)
        self.eager.commit(paths)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.backend.release(rows)
        self.eager.release(rows)
