"""Recurrent states by another method, for comparison: keep nothing of a node, and run its path again."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.backends import validation
from draftwood.backends.features import Through
from draftwood.backends.packed import PackedBackend
from draftwood.protocols import StateBackend


class RecomputingBackend(StateBackend):
    """Any packed backend, with nothing kept of an uncommitted node but its token.

    While a pass runs, a recurrent layer's vectors are forgotten when the layer is done. A commit runs the
    accepted path as a second pass, and an `extend` behind another one runs the earlier nodes again. So a
    target pays one short pass a round, and a model that drafts level by level pays most.
    """

    def __init__(self, backend: PackedBackend) -> None:
        """Serve what `backend` serves.

        Args:
            backend: without rows; it is not to be used otherwise.
        """
        self.backend, self.model, self.device = backend, backend.model, backend.device
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.weight_bytes, self.hidden_size = backend.weight_bytes, backend.hidden_size
        self.eos_token_ids, self.pad_token_id = backend.eos_token_ids, backend.pad_token_id
        self.skippable_layers, self.feature_layers = backend.skippable_layers, backend.feature_layers
        self.gives_first_logits, self.ranks = backend.gives_first_logits, backend.ranks
        # Of every row, its uncommitted nodes.
        self._tokens: list[list[int]] = []
        self._parents: list[list[int]] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend!r})"

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return self.backend.lengths

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """As `PackedBackend.prefill`; rows may join while others hold uncommitted nodes."""
        self.backend.prefill(rows)
        self._joined(len(rows))

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """As `PackedBackend.first_logits`."""
        logits = self.backend.first_logits(rows)
        self._joined(len(rows))
        return logits

    def _joined(self, rows: int) -> None:
        self._tokens += [[] for _ in range(rows)]
        self._parents += [[] for _ in range(rows)]

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._tokens))
        self.backend.release(rows)
        self._tokens = [self._tokens[row] for row in keep]
        self._parents = [self._parents[row] for row in keep]

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """As `PackedBackend.extend`, by a pass over all uncommitted nodes."""
        have = [len(row) for row in self._tokens]
        tokens, parents, valid = validation.as_nodes(
            tokens.cpu(), parents.cpu(), counts, have=have, vocab=self.vocab_size
        )
        new = list(zip(tokens.tolist(), parents.tolist(), valid, strict=True))
        all_tokens = [old + row[:n] for old, (row, _, n) in zip(self._tokens, new, strict=True)]
        all_parents = [old + row[:n] for old, (_, row, n) in zip(self._parents, new, strict=True)]
        logits = self._run(all_tokens, all_parents, commit=False)
        self._tokens, self._parents = all_tokens, all_parents
        if not any(have):
            return logits
        # A row's new nodes stand behind its earlier ones.
        first = torch.tensor(have, device=logits.device).unsqueeze(1)
        nodes = first + torch.arange(tokens.shape[1], device=logits.device)
        rows = torch.arange(len(have), device=logits.device).unsqueeze(1)
        return logits[rows, nodes.clamp(max=max(logits.shape[1] - 1, 0))]

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """As `PackedBackend.commit`, by a pass over the paths."""
        validation.check_paths(paths, rows=len(self._tokens))
        for row, (path, parents) in enumerate(zip(paths, self._parents, strict=True)):
            validation.check_path(path, parents, row=row)
        if any(paths):
            tokens = [[row[node] for node in path] for row, path in zip(self._tokens, paths, strict=True)]
            self._run(tokens, [list(range(-1, len(path) - 1)) for path in paths], commit=True)
        self._tokens, self._parents = [[] for _ in paths], [[] for _ in paths]

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """As `ModelBackend.without_layers`; it recomputes too."""
        smaller = self.backend.without_layers(layers)
        assert isinstance(smaller, PackedBackend)
        return RecomputingBackend(smaller)

    def keep_features(
        self, layers: Sequence[int], *, last: int | None = None, through: Through | None = None
    ) -> None:
        """As `ModelBackend.keep_features`."""
        self.backend.keep_features(layers, last=last, through=through)

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """As `PackedBackend.take_features`."""
        return self.backend.take_features()

    def input_embeddings(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """As `ModelBackend.input_embeddings`."""
        return self.backend.input_embeddings(tokens)

    def output_head(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """As `ModelBackend.output_head`."""
        return self.backend.output_head(states)

    def _run(self, tokens: list[list[int]], parents: list[list[int]], *, commit: bool) -> Tensor:
        """Logits of these nodes; afterwards they are committed, as one path a row, or gone."""
        counts, width = [len(row) for row in tokens], max(map(len, tokens), default=0)
        padded_tokens = torch.zeros(len(tokens), width, dtype=torch.int64)
        padded_parents = torch.full((len(tokens), width), -1)
        for row, count in enumerate(counts):
            padded_tokens[row, :count] = torch.tensor(tokens[row])
            padded_parents[row, :count] = torch.tensor(parents[row])
        logits = self.backend.extend(padded_tokens, padded_parents, counts, keep=commit)
        if commit:
            try:
                self.backend.commit([range(count) for count in counts])
            except BaseException:
                self.backend.commit([()] * len(counts))
                raise
        return logits
