"""`GgufBackend`: the state of a model in a GGUF file during decoding."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.backends.gguf.context import MOST_SEQUENCES, Context, Tokens
from draftwood.backends.gguf.model import GgufModel
from draftwood.backends.gguf.sequences import Placement, RowSequences
from draftwood.backends.nodes import validation
from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend


class GgufBackend(StateBackend):
    """Runs trees of all rows in one call of llama.cpp, a sequence for each leaf.

    Attributes:
        model: the model as it decodes by itself.
        max_length: tokens of its context, by the file.
        weight_bytes: bytes of all tensors.
        eos_token_ids: tokens that the file names as ends of a text or of a turn.
        pad_token_id: the file's, or None.
    """

    gives_first_logits = True

    def __init__(self, model: GgufModel, *, max_length: int | None) -> None:
        """Support `model`, whose attention layers keep keys and values."""
        weights = model.weights
        self.model: GgufModel = model
        self.vocab_size, self.max_length = weights.vocab_size, max_length
        self.weight_bytes = weights.size
        self.eos_token_ids, self.pad_token_id = weights.end_tokens, weights.pad_token
        self._context = Context(weights, model.settings)
        self._free = set(range(MOST_SEQUENCES))
        self._rows: list[RowSequences] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model.file.name!r}, lengths={self.lengths})"

    def renew(self) -> None:
        """Refuse a file that was changed since it was loaded, as `StateBackend.renew` says.

        Raises:
            InvalidInput: the file is another one by its size or time.
        """
        if self.model.is_outdated():
            raise InvalidInput(f"{self.model.file} was changed since it was loaded; load it again.")

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return [row.length for row in self._rows]

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none).

        Raises:
            InvalidInput: a token outside the vocabulary, a row beyond `max_length`, or too many rows.
            OutOfMemory: the rows do not fit; those that were there are as they were.
        """
        self._join(validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length), logits=False)

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows as `prefill` does; returns the logits after each row's last token."""
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        validation.check_filled(texts)
        return self._join(texts, logits=True)

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Append `rows[i]` to row i and commit it, as `StateBackend.read` says."""
        texts = [torch.tensor(row, dtype=torch.int64) for row in rows]
        validation.as_rows(texts, vocab=self.vocab_size, longest=None)
        lengths = [row.length + len(text) for row, text in zip(self._rows, texts, strict=True)]
        validation.check_lengths(lengths, longest=self.max_length)
        last = self._append(self._rows, texts, logits=True)
        self._rows = [RowSequences(row.held, length) for row, length in zip(self._rows, lengths, strict=True)]
        logits = torch.zeros(len(texts), self.vocab_size)
        logits[[row for row, text in enumerate(texts) if len(text)]] = last
        return logits

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up."""
        remaining = validation.remaining_rows(rows, have=len(self._rows))
        for number in set(range(len(self._rows))).difference(remaining):
            self._drop(self._rows[number].held)
        self._rows = [self._rows[number] for number in remaining]

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Append nodes to the uncommitted region of every row, as `StateBackend.extend` says.

        Raises:
            InvalidTree: wrong shapes, a token outside the vocabulary, a parent that is not before its child.
            InvalidInput: a node beyond `max_length`, or more leaves than llama.cpp has sequences.
            OutOfMemory: the pass does not fit; the region is as it was.
        """
        have = [len(row.parents) for row in self._rows]
        tokens, parents, valid = validation.as_nodes(
            tokens.cpu(), parents.cpu(), counts, have=have, vocab=self.vocab_size
        )
        free = iter(sorted(self._free))
        try:
            placed = [
                row.place(parents[number, :count].tolist(), free)
                for number, (row, count) in enumerate(zip(self._rows, valid, strict=True))
            ]
        except StopIteration:
            raise InvalidInput(
                f"The trees of {len(valid)} rows have more leaves than the {MOST_SEQUENCES} sequences of "
                "llama.cpp; use fewer rows or a smaller tree budget."
            ) from None
        self._check_positions(placed)
        logits = torch.empty(len(valid), tokens.shape[1], self.vocab_size)
        call = Tokens(
            [token for row, count in zip(tokens.tolist(), valid, strict=True) for token in row[:count]],
            [position for row in placed for position in row.positions],
            [sequences for row in placed for sequences in row.sequences],
            [True] * sum(valid),
        )
        self._reserve(call)
        try:
            for copy in (copy for row in placed for copy in row.copies):
                self._context.copy(copy.source, copy.to, length=copy.length)
            found = torch.from_numpy(self._context.decode(call))
        except BaseException:
            for row in placed:
                for copy in row.copies:
                    self._context.cut(copy.to, length=0)
                for sequence, length in row.cuts:
                    self._context.cut(sequence, length=length)
            raise
        for number, part in enumerate(found.split(valid)):
            logits[number, : len(part)] = part
        self._rows = [row.grown for row in placed]
        self._free.difference_update(copy.to for row in placed for copy in row.copies)
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, as `StateBackend.commit` says.

        The sequence that runs through a path stays, and all others of the row are freed.

        Raises:
            InvalidTree: a path that does not start under the committed text and follow parent to child.
        """
        validation.check_paths(paths, rows=len(self._rows))
        for number, (row, path) in enumerate(zip(self._rows, paths, strict=True)):
            validation.check_path(path, row.parents, row=number)
        for number, (row, path) in enumerate(zip(self._rows, paths, strict=True)):
            if not row.parents:
                continue
            kept = row.keep(path)
            self._drop(set(row.held).difference(kept.held))
            self._context.cut(kept.held[0], length=kept.length)
            self._rows[number] = kept

    def _join(self, texts: Sequence[Tensor], *, logits: bool) -> Tensor:
        """Append rows of these tokens; the logits after the last of each, or none."""
        if len(texts) > len(self._free):
            raise InvalidInput(
                f"{len(texts)} more rows need as many sequences, and llama.cpp has {len(self._free)} of "
                f"{MOST_SEQUENCES} left; use fewer rows."
            )
        free = iter(sorted(self._free))
        new = [RowSequences((next(free),)) for _ in texts]
        last = self._append(new, texts, logits=logits)
        self._rows += [RowSequences(row.held, len(text)) for row, text in zip(new, texts, strict=True)]
        self._free.difference_update(row.held[0] for row in new)
        return last

    def _append(self, rows: Sequence[RowSequences], texts: Sequence[Tensor], *, logits: bool) -> Tensor:
        """Read texts on after committed text; logits `[filled texts, vocab]` after the last token of each."""
        call = Tokens(
            torch.cat([torch.empty(0, dtype=torch.int64), *texts]).tolist(),
            [row.length + place for row, text in zip(rows, texts, strict=True) for place in range(len(text))],
            [row.held[:1] for row, text in zip(rows, texts, strict=True) for _ in range(len(text))],
            [logits and place == len(text) - 1 for text in texts for place in range(len(text))],
        )
        if not len(call):
            return torch.zeros(0, self.vocab_size)
        self._reserve(call)
        try:
            return torch.tensor(self._context.decode(call))
        except BaseException:
            for row in rows:
                self._context.cut(row.held[0], length=row.length)
            raise

    def _check_positions(self, placed: Sequence[Placement]) -> None:
        for number, row in enumerate(placed):
            last = max(row.positions, default=0)
            if self.max_length is not None and last >= self.max_length:
                raise InvalidInput(
                    f"A node of row {number} has position {last}, but the model's context holds "
                    f"{self.max_length} tokens; stop the row or grow a shallower tree."
                )

    def _reserve(self, call: Tokens) -> None:
        """Make room for the tokens and sequences of `call`."""
        held = sum(row.length + len(row.parents) for row in self._rows)
        last = max(chain.from_iterable(call.sequences), default=0)
        self._context.reserve(cells=held + len(call), sequences=last + 1)

    def _drop(self, sequences: Sequence[int] | set[int]) -> None:
        for sequence in sequences:
            self._context.cut(sequence, length=0)
        self._free.update(sequences)
