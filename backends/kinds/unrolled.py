"""`UnrolledBackend`: for models whose attention takes no mask, one root-to-leaf path per batch row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from draftwood.backends.kinds.given_keys import check_rows, given_keys, is_own_kind, refuse_states
from draftwood.backends.model.features import Pieces
from draftwood.backends.model.model_backend import ModelBackend
from draftwood.backends.model.model_cache import (
    cache_of_row,
    columns_of,
    empty_cache,
    inputs_of_row,
    written_layers,
)
from draftwood.backends.model.prompt_check import check_behind
from draftwood.backends.model.prompt_reading import read_prompt
from draftwood.backends.nodes import validation
from draftwood.backends.nodes.row_inputs import RowInputs
from draftwood.backends.structure.forward import cache_argument, decoder_prefix, guarded_pass, takes
from draftwood.backends.structure.layers import count_layers
from draftwood.backends.weights.streamed import read_ahead
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols.model_prompt import ModelPrompt


@attrs.frozen(eq=False)
class LastPass:
    """The cache that the last pass of a row left, so that a commit need not run its path again.

    Attributes:
        cache: one row for each path.
        paths: the nodes of every path, by region index.
        width: tokens that the pass fed to every path, padding included.
    """

    cache: Cache
    paths: list[list[int]]
    width: int


@attrs.frozen(eq=False)
class UnrolledRow:
    """One batch row. Frozen, so that a pass that raises leaves it as it was.

    Attributes:
        cache: state after the committed tokens; None before the first.
        length: committed tokens.
        tokens: tokens of the uncommitted nodes.
        parents: their parents, by region index; -1 is the committed state.
        last_pass: what the last pass left.
        features: of the tokens committed since `take_features`, `[length, width]` a piece, where they are
            kept.
        uncommitted: the same of the uncommitted nodes, `[nodes, width]` a pass.
        given: what its passes are given besides tokens; None where it only holds tokens.
        seen: bool `[columns]`, the columns of its prompt that a mask shows; None where it shows all.
        source: of an encoder-decoder, what all of its passes are given of the source, of one row.
    """

    cache: Cache | None = None
    length: int = 0
    tokens: list[int] = attrs.field(factory=list)
    parents: list[int] = attrs.field(factory=list)
    last_pass: LastPass | None = None
    features: Pieces = ()
    uncommitted: list[Tensor] = attrs.field(factory=list)
    given: RowInputs | None = None
    seen: Tensor | None = None
    source: Mapping[str, Any] = attrs.field(factory=dict)

    def after(self, cache: Cache | None, length: int, features: Pieces) -> UnrolledRow:
        """The row with so many committed tokens, and no uncommitted nodes."""
        return UnrolledRow(
            cache, length, features=features, given=self.given, seen=self.seen, source=self.source
        )

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]


class UnrolledBackend(ModelBackend):
    """Runs every root-to-leaf path as a separate batch row, with the model's own cache and masks.

    Exact for any causal model that can go on from a cache by several tokens. It recomputes what paths
    share, so it costs more than one pass with a tree mask. Padding follows a path, where nothing
    sees it.
    """

    gives_first_logits = True

    def __init__(self, model: Any, *, chunk: int = 1024) -> None:
        """Serve `model`, of transformers; see `ModelBackend`. An encoder-decoder only reads `ModelPrompt`s.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
        """
        super().__init__(model, chunk=chunk)
        read_ahead(model, layers=count_layers(model))
        self._rows: list[UnrolledRow] = []
        self._pass_features: Tensor
        self._prefill_options = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}
        self._prefix = decoder_prefix(model)
        self._takes_positions = takes(model, f"{self._prefix}position_ids")
        self._cache_name = cache_argument(model)

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return [row.length for row in self._rows]

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none).

        Raises:
            InvalidInput: a token outside the vocabulary, or a row beyond `max_length`.
            OutOfMemory: the rows do not fit; those that were there are as they were.
        """
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        self._check_source(texts)
        with guarded_pass(len(self._rows) + len(texts)):
            self._rows += [self._advance(UnrolledRow(), text) for text in texts]

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows and return the logits after each row's last token; a row has at least one."""
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        validation.check_filled(texts)
        self._check_source(texts)
        with guarded_pass(len(self._rows) + len(texts)):
            new = [self._read(UnrolledRow(), text, prompt=len(text)) for text in texts]
            logits = [last for _, last in new]
            stacked = torch.stack(logits) if logits else torch.empty(0, self.vocab_size, device=self.device)
        self._rows += [row for row, _ in new]
        return stacked

    def take_over(self, cache: Any, lengths: Sequence[int]) -> None:
        """Take over a cache, as `StateBackend.take_over` says: any that the model makes itself.

        Raises:
            InvalidInput: a cache that cannot be read, or a row beyond `max_length`.
            OutOfMemory: the rows do not fit; those that were there are as they were.
            UnsupportedModel: a drafter that reads features, which no cache holds.
        """
        if self._reader is not None:
            raise UnsupportedModel(
                f"{type(self.model).__name__} has a drafter that reads its features, so past_key_values is "
                "not read; leave it out."
            )
        validation.check_lengths(lengths, longest=self.max_length)
        with guarded_pass(len(self._rows) + len(lengths)):
            if is_own_kind(cache, self._new_cache(prompt=1)):
                self._rows += self._whole_rows(cache, lengths)
                return
            refuse_states(cache)
            pieces = given_keys(cache, lengths)
            caches = [self._new_cache(prompt=length + 1) for length in lengths]
            for row, (own, length) in enumerate(zip(caches, lengths, strict=True)):
                for layer, piece in enumerate(pieces):
                    if piece is not None:
                        keys, values = (states[row, None, :, :length] for states in piece)
                        own.update(keys, values, layer)
        self._rows += [UnrolledRow(own, length) for own, length in zip(caches, lengths, strict=True)]

    def _whole_rows(self, cache: Cache, lengths: Sequence[int]) -> list[UnrolledRow]:
        """Rows with their part of a cache of the model's own kind, whatever its layers keep."""
        check_rows(cache, lengths)
        columns = columns_of(cache, otherwise=max(lengths, default=0))
        seen = torch.arange(columns) >= columns - torch.tensor(lengths)[:, None]
        return [
            UnrolledRow(
                self._copied(cache, copies=1, index=row),
                length,
                seen=None if bool(seen[row].all()) else seen[row],
            )
            for row, length in enumerate(lengths)
        ]

    def read_prompt(self, prompt: ModelPrompt) -> Float[Tensor, "rows vocab"]:
        """Append rows that the model's own forward reads, as `StateBackend.read_prompt` says.

        A row keeps its part of the model's own cache, whatever its layers keep, with all masked columns.

        Raises:
            InvalidInput: inputs that the model refuses, or a row beyond `max_length`.
            OutOfMemory: the rows do not fit; those that were there are as they were.
            UnsupportedModel: later passes after such a prompt do not give what `generate()` would.
        """
        with guarded_pass(len(self._rows) + len(prompt)):
            cache = self._new_cache(prompt=prompt.columns)
            read = read_prompt(self.model, prompt, cache, reader=self._reader)
            validation.check_lengths(read.lengths, longest=self.max_length)
            new = [
                UnrolledRow(
                    self._copied(read.cache, copies=1, index=row),
                    length,
                    features=read.features[row],
                    given=read.inputs.keep([row]),
                    seen=None if bool(read.seen[row].all()) else read.seen[row],
                    source=inputs_of_row(read.source, row),
                )
                for row, length in enumerate(read.lengths)
            ]
        self._rows += new
        check_behind(self, prompt, read.logits)
        return read.logits

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up."""
        self._rows = [self._rows[row] for row in validation.remaining_rows(rows, have=len(self._rows))]

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Extend as `PackedBackend.extend` does, by a pass over every path."""
        have = [len(row.tokens) for row in self._rows]
        tokens, parents, valid = validation.as_nodes(
            tokens.cpu(), parents.cpu(), counts, have=have, vocab=self.vocab_size
        )
        n = tokens.shape[1]
        with guarded_pass(len(self._rows)):
            logits = torch.zeros(len(valid), n, self.vocab_size, dtype=self.model.dtype, device=self.device)
            rows = []
            for index, (row, count) in enumerate(zip(self._rows, valid, strict=True)):
                if count:
                    new_tokens, new_parents = tokens[index, :count].tolist(), parents[index, :count].tolist()
                    row, logits[index, :count] = self._extended(index, row, new_tokens, new_parents)
                rows.append(row)
        self._rows = rows
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit as `PackedBackend.commit` does, with the same errors."""
        validation.check_paths(paths, rows=len(self._rows))
        for index, (row, path) in enumerate(zip(self._rows, paths, strict=True)):
            validation.check_path(path, row.parents, row=index)
        with guarded_pass(len(self._rows)):
            self._rows = [
                self._committed(row, list(path)) for row, path in zip(self._rows, paths, strict=True)
            ]

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """Returns the features of `StateBackend.take_features`, in the model's dtype and on `device`."""
        features = self._joined([row.features for row in self._rows])
        self._rows = [attrs.evolve(row, features=()) for row in self._rows]
        return features

    def _extended(
        self, index: int, row: UnrolledRow, tokens: list[int], parents: list[int]
    ) -> tuple[UnrolledRow, Tensor]:
        """Row `index` with these nodes added, and their logits `[nodes, vocab]`."""
        start = len(row.tokens)
        row = attrs.evolve(row, tokens=row.tokens + tokens, parents=row.parents + parents, last_pass=None)
        inner = set(parents)
        paths = [row.path(node) for node in range(start, start + len(tokens)) if node not in inner]
        width = max(map(len, paths))
        if self.max_length is not None and row.length + width > self.max_length:
            raise InvalidInput(
                f"A node of row {index} has position {row.length + width - 1}, but the model's context "
                f"holds {self.max_length} tokens; stop the row or grow a shallower tree."
            )
        padded = torch.zeros(len(paths), width, dtype=torch.int64)
        path_and_depth: dict[int, tuple[int, int]] = {}
        for i, path in enumerate(paths):
            padded[i, : len(path)] = torch.tensor([row.tokens[node] for node in path])
            path_and_depth.update({node: (i, depth) for depth, node in enumerate(path)})
        cache = self._copied(row.cache, copies=len(paths))
        cache.activate_past_recording()
        logits = self._run(cache, padded, row, start=row.length)
        new = range(start, start + len(tokens))
        index_of_path, depths = zip(*(path_and_depth[node] for node in new), strict=True)
        nodes = list(index_of_path), list(depths)
        features = [*row.uncommitted, self._pass_features[nodes]] if self._reader is not None else []
        last_pass = LastPass(cache, paths, width)
        return attrs.evolve(row, last_pass=last_pass, uncommitted=features), logits[nodes]

    def _committed(self, row: UnrolledRow, path: list[int]) -> UnrolledRow:
        """`row` after committing `path`, from the last pass if that ran the path and can be cut back."""
        if not path:
            return row.after(row.cache, row.length, row.features)
        last_pass = row.last_pass
        if last_pass is not None and _can_be_cut(last_pass.cache):
            matches = (i for i, run in enumerate(last_pass.paths) if run[: len(path)] == path)
            if (index := next(matches, None)) is not None:
                cache = self._copied(last_pass.cache, copies=1, index=index)
                cache.crop(len(path) - last_pass.width)
                features = row.features
                if self._reader is not None:
                    features = self._reader.trimmed([*features, torch.cat(row.uncommitted)[path]])
                return row.after(cache, row.length + len(path), features)
        return self._advance(row, torch.tensor([row.tokens[node] for node in path]))

    def _advance(self, row: UnrolledRow, tokens: Tensor) -> UnrolledRow:
        """`row` after `tokens` `[length]` more, without uncommitted nodes."""
        if not len(tokens):
            return row.after(row.cache, row.length, row.features)
        return self._read(row, tokens, prompt=len(tokens) + 1)[0]

    def _read(self, row: UnrolledRow, tokens: Tensor, *, prompt: int) -> tuple[UnrolledRow, Tensor]:
        """Returns `row` after `tokens`, and the logits `[vocab]`; a fresh row keeps `prompt` as a length."""
        fresh = row.cache is None and not row.length
        cache = self._new_cache(prompt=prompt) if fresh else self._copied(row.cache, copies=1)
        length, features = row.length, row.features
        for chunk in tokens.split(self.chunk):
            logits = self._run(cache, chunk.unsqueeze(0), row, start=length, **self._prefill_options)
            length += len(chunk)
            if self._reader is not None:
                features = self._reader.trimmed([*features, self._pass_features[0]])
        if not any(getattr(layer, "is_initialized", True) for layer in written_layers(cache)):
            raise UnsupportedModel(
                f"{type(self.model).__name__} keeps no cache, so it reads the whole text again for every "
                "token; use a model with one."
            )
        return row.after(cache, length, features), logits[0, -1].clone()

    def _new_cache(self, *, prompt: int) -> Cache:
        return empty_cache(self.model, prompt=prompt)

    def _copied(self, cache: Cache | None, *, copies: int, index: int = 0) -> Cache:
        """Returns row `index` of `cache`, `copies` times, in new tensors; a new cache for None."""
        if cache is None:
            return self._new_cache(prompt=1)
        return cache_of_row(cache, index, copies=copies, device=self.device)

    def _run(self, cache: Cache, tokens: Tensor, row: UnrolledRow, *, start: int, **options: Any) -> Tensor:
        """Feed `tokens` `[batch, n]` of `row` after the `start` in `cache`; logits `[batch, n, vocab]`.

        Where features are kept, `_pass_features` then holds the features of the pass, `[batch, n, width]`.
        """
        prefix = self._prefix
        if self._takes_positions:
            positions = np.arange(start, start + tokens.shape[1])[None]
            positions = positions if row.given is None else row.given.positions(positions)
            shape = (*positions.shape[:-2], *tokens.shape)
            options[f"{prefix}position_ids"] = torch.from_numpy(positions).to(self.device).expand(shape)
        if row.given is not None:
            constants = row.given.options(tokens.shape[1])
            options |= {name: one.expand(len(tokens), *one.shape[1:]) for name, one in constants.items()}
        if row.seen is not None:
            hidden = int((~row.seen).sum())
            mask = torch.ones(hidden + start + tokens.shape[1], dtype=torch.int64, device=self.device)
            mask[: len(row.seen)] = row.seen
            options[f"{prefix}attention_mask"] = mask.expand(len(tokens), -1).contiguous()
        if self.model.training != self._training:
            self._refuse_mode()
        options |= inputs_of_row(row.source, 0, copies=len(tokens))
        options |= {f"{prefix}input_ids": tokens.to(self.device), self._cache_name: cache}
        options |= {"use_cache": True, "return_dict": True}
        if self._reader is not None:
            self._pass_features, output = self._reader.read(options)
        else:
            output = self.model(**options)
        logits: Tensor = output.logits
        return logits


def _can_be_cut(cache: Cache) -> bool:
    """Whether every layer of `cache` can be cut back to fewer tokens.

    A layer that keeps more than the class it comes from, and does not say how that is cut, only claims so.
    """

    def defined_at(layer: Any, name: str) -> int:
        kinds = type(layer).__mro__
        return next(level for level, kind in enumerate(kinds) if name in vars(kind))

    return cache.is_croppable and all(
        defined_at(layer, "crop") <= defined_at(layer, "__init__") for layer in written_layers(cache)
    )
