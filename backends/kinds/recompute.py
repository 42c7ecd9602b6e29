"""Recurrent states by another method, for comparison: keep nothing of a node, and run its path again."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.model.features import Through
from draftwood.backends.nodes import validation
from draftwood.protocols import StateBackend


@attrs.frozen
class _Nodes:
    """The uncommitted nodes of a row: tokens, and parents by region index."""

    tokens: list[int] = attrs.field(factory=list)
    parents: list[int] = attrs.field(factory=list)

    def followed_by(self, tokens: list[int], parents: list[int]) -> _Nodes:
        return _Nodes(self.tokens + tokens, self.parents + parents)

    def chain(self, path: Sequence[int]) -> _Nodes:
        """The nodes of `path` by themselves."""
        return _Nodes([self.tokens[node] for node in path], list(range(-1, len(path) - 1)))


class RecomputingBackend(StateBackend):
    """Any packed backend, with nothing kept of an uncommitted node but its token.

    While a pass runs, a recurrent layer's vectors are forgotten when the layer is done. A commit runs the
    accepted path as a second pass, and an `extend` after another one runs the earlier nodes again. So a
    target pays one short pass a round, and a model that drafts level by level pays most.
    """

    def __init__(self, backend: PackedBackend) -> None:
        """Support what `backend` supports.

        Args:
            backend: without rows; it is not to be used otherwise.
        """
        self.backend, self.model, self.device = backend, backend.model, backend.device
        self.vocab_size, self.max_length = backend.vocab_size, backend.max_length
        self.weight_bytes, self.hidden_size = backend.weight_bytes, backend.hidden_size
        self.eos_token_ids, self.pad_token_id = backend.eos_token_ids, backend.pad_token_id
        self.skippable_layers, self.feature_layers = backend.skippable_layers, backend.feature_layers
        self.gives_first_logits, self.ranks = backend.gives_first_logits, backend.ranks
        self._rows: list[_Nodes] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.backend!r})"

    @property
    def reads_padding(self) -> bool:  # type: ignore[override]
        """Whether padding before a text changes what the model writes."""
        return self.backend.reads_padding

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return self.backend.lengths

    def renew(self) -> None:
        """Take up changes of the model, as `PackedBackend.renew` does."""
        self.backend.renew()
        self.__init__(self.backend)  # type: ignore[misc]

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows, also while others hold uncommitted nodes."""
        self.backend.prefill(rows)
        self._joined(len(rows))

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows and return the logits after each row's last token."""
        logits = self.backend.first_logits(rows)
        self._joined(len(rows))
        return logits

    def _joined(self, rows: int) -> None:
        self._rows += [_Nodes()] * rows

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._rows))
        self.backend.release(rows)
        self._rows = [self._rows[row] for row in keep]

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Read on, as `PackedBackend.read` does."""
        return self.backend.read(rows)

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Extend as `PackedBackend.extend` does, by a pass over all uncommitted nodes."""
        have = [len(row.tokens) for row in self._rows]
        tokens, parents, valid = validation.as_nodes(
            tokens.cpu(), parents.cpu(), counts, have=have, vocab=self.vocab_size
        )
        rows = [
            old.followed_by(tokens[slot, : valid[slot]].tolist(), parents[slot, : valid[slot]].tolist())
            for slot, old in enumerate(self._rows)
        ]
        logits = self._run(rows, commit=False)
        self._rows = rows
        if not any(have):
            return logits
        # A row's new nodes follow its earlier ones.
        first = torch.tensor(have, device=logits.device).unsqueeze(1)
        nodes = first + torch.arange(tokens.shape[1], device=logits.device)
        slots = torch.arange(len(have), device=logits.device).unsqueeze(1)
        return logits[slots, nodes.clamp(max=max(logits.shape[1] - 1, 0))]

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit as `PackedBackend.commit` does, by a pass over the paths."""
        validation.check_paths(paths, rows=len(self._rows))
        for slot, row in enumerate(self._rows):
            validation.check_path(paths[slot], row.parents, row=slot)
        if any(paths):
            self._run([row.chain(paths[slot]) for slot, row in enumerate(self._rows)], commit=True)
        self._rows = [_Nodes()] * len(self._rows)

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """Returns the backend of `ModelBackend.without_layers`, which recomputes too."""
        smaller = self.backend.without_layers(layers)
        assert isinstance(smaller, PackedBackend)
        return RecomputingBackend(smaller)

    def keep_features(
        self, layers: Sequence[int], *, last: int | None = None, through: Through | None = None
    ) -> None:
        """Keep features, as `ModelBackend.keep_features` does."""
        self.backend.keep_features(layers, last=last, through=through)

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """Returns features, as `PackedBackend.take_features` does."""
        return self.backend.take_features()

    def input_embeddings(self, tokens: Int[Tensor, "*n"]) -> Float[Tensor, "*n hidden"]:
        """Returns input embeddings, as `ModelBackend.input_embeddings` does."""
        return self.backend.input_embeddings(tokens)

    def output_head(self, states: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n vocab"]:
        """Returns logits of states, as `ModelBackend.output_head` does."""
        return self.backend.output_head(states)

    def _run(self, rows: Sequence[_Nodes], *, commit: bool) -> Tensor:
        """Logits of these nodes; afterwards they are committed, as one path a row, or gone."""
        counts = [len(row.tokens) for row in rows]
        padded_tokens = torch.zeros(len(rows), max(counts, default=0), dtype=torch.int64)
        padded_parents = torch.full_like(padded_tokens, -1)
        for slot, row in enumerate(rows):
            padded_tokens[slot, : counts[slot]] = torch.tensor(row.tokens)
            padded_parents[slot, : counts[slot]] = torch.tensor(row.parents)
        logits = self.backend.extend(padded_tokens, padded_parents, counts, keep=commit)
        if commit:
            try:
                self.backend.commit([range(count) for count in counts])
            except BaseException:
                self.backend.commit([()] * len(counts))
                raise
        return logits
