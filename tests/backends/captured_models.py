"""Captured backends for tests: compiled as traced, and compared with uncaptured passes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import LevelPlan, Levels
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.nodes.buckets import nodes_bucket, rows_bucket
from draftwood.backends.passes import capture as captured_passes
from draftwood.backends.recurrent.rebuild import recurrent_layers
from draftwood.backends.structure.masks import reaches
from draftwood.protocols import StateBackend
from draftwood.trees.level_plan import GrowingLevels

CLOSE = 1e-5
"""Largest difference between the logits of the two, over the logits' largest."""


def as_traced(graph: Any, inputs: Any) -> Any:
    """A compiler that runs the graph as Dynamo traced it."""
    return graph


@contextmanager
def few_shapes() -> Iterator[None]:
    """Passes of at least 4 rows of 8, 32 or more nodes: a trace takes half a second, and these save most."""

    def rows(count: int) -> int:
        return max(rows_bucket(count), 4)

    def nodes(count: int) -> int:
        return next((bucket for bucket in (8, 32) if count <= bucket), nodes_bucket(count))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured_passes, "rows_bucket", rows)
        patch.setattr(captured_passes, "nodes_bucket", nodes)
        yield


def served(model: Any, **options: Any) -> Any:
    """The backend that runs trees through `model` by a mask."""
    if not recurrent_layers(model.config):
        return TransformerBackend(model, **options)
    return (HybridBackend if reaches(model.config, recurrent=True) else SSMBackend)(model, **options)


class Both(StateBackend):
    """A captured backend; every pass is compared with the same pass as it is.

    Attributes:
        worst: largest difference so far.
        planned: passes over all levels of a plan so far.
    """

    def __init__(self, model: Any, capture: Any = as_traced) -> None:
        self.backend, self.eager = served(model, capture=capture), served(model)
        self.worst = 0.0
        self.planned = 0
        backend = self.backend
        self.model, self.device, self.feature_layers = backend.model, backend.device, backend.feature_layers
        self.vocab_size, self.hidden_size = backend.vocab_size, backend.hidden_size
        self.max_length = backend.max_length
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

    def extend_levels(
        self, tokens: Tensor, parents: Tensor, plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        levels = self.backend.extend_levels(tokens, parents, plan, temperature=temperature)
        if levels is None:
            return None
        grown = GrowingLevels(plan, len(tokens), self.device)
        logits = self.eager.extend(tokens, parents)[:, -1:]
        below, above = levels.nodes(root=tokens.shape[1] - 1)
        grown.take((logits / temperature).softmax(-1))
        at = 0
        for width in levels.widths[1:]:
            nodes = torch.from_numpy(below[:, at : at + width]), torch.from_numpy(above[:, at : at + width])
            assert torch.equal(nodes[0], grown.expand(width)[0])
            grown.take((self.eager.extend(*nodes) / temperature).softmax(-1))
            at += width
        expected = Levels.of(grown.packed(), widths=levels.widths, vocab_size=self.vocab_size)
        assert np.allclose(levels.values, expected.values, rtol=1e-4, atol=1e-7)
        assert (levels.tokens == expected.tokens)[expected.values > 0].all()
        self.planned += 1
        return levels

    def keep_features(self, layers: Sequence[int], *, last: int | None = None, through: Any = None) -> None:
        for backend in (self.backend, self.eager):
            backend.keep_features(layers, last=last, through=through)

    def take_features(self) -> list[Tensor]:
        features = self.backend.take_features()
        for one, right in zip(features, self.eager.take_features(), strict=True):
            assert one.shape == right.shape
            assert torch.allclose(one, right, rtol=1e-4, atol=1e-5)
        return features

    def input_embeddings(self, tokens: Tensor) -> Tensor:
        return self.backend.input_embeddings(tokens)

    def output_head(self, states: Tensor) -> Tensor:
        return self.backend.output_head(states)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self.backend.commit(paths)
        self.eager.commit(paths)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.backend.release(rows)
        self.eager.release(rows)
