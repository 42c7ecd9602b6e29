"""`PackedBackend`: draft trees in one pass under a mask, for whatever layers a model has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.backends import validation
from draftwood.backends.attention import TreeAttention
from draftwood.backends.features import Pieces
from draftwood.backends.forward import guarded_pass
from draftwood.backends.host_region import HostRegion
from draftwood.backends.kv import RowCache
from draftwood.backends.masks import Masks, Reach
from draftwood.backends.model import ModelBackend
from draftwood.backends.recurrent.states import States
from draftwood.backends.region import Region
from draftwood.backends.tensor_region import TensorRegion, in_heavy_paths
from draftwood.backends.tree_kernel import PackedMasks
from draftwood.errors import InvalidInput

REORDER_ABOVE = 128
"""Nodes of a pass beyond which the tree kernel gets them in heavy-path order; of less it saves few blocks."""


class PackedBackend(ModelBackend):
    """Abstract: runs a draft tree in one pass, in which every node sees the text and its own ancestors.

    Attention: uncommitted nodes lie behind the committed slots; a commit moves the accepted ones down.
    Recurrent layers: one committed state and a few vectors a node; a commit replays the accepted ones. Either
    way the rest is forgotten without a second pass.
    """

    def __init__(
        self, model: Any, module: Any, *, kinds: dict[str, Reach], states: States, chunk: int
    ) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model, which is not changed.
            module: what runs: `model`, or a copy of its structure over the same weights.
            kinds: the kinds of its attention layers.
            states: of its recurrent layers.
            chunk: tokens a prefill pass takes at once.
        """
        super().__init__(model, chunk=chunk)
        self._module, self._states = module, states
        self._attention = TreeAttention(module) if kinds else None
        self._masks = Masks(kinds, dtype=model.dtype, device=self.device)
        self._cache = RowCache()
        self._lengths: list[int] = []
        # Of every row, whether it has committed nothing since it joined.
        self._fresh: list[bool] = []
        # Where features are kept: those of every row since `take_features`, `[length, width]` a piece, and
        # one `[rows, nodes, width]` for every pass over uncommitted nodes.
        self._features: list[Pieces] = []
        self._uncommitted: list[Tensor] = []
        self._region = self._new_region(0)
        self._refresh()

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return list(self._lengths)

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none).

        Raises:
            InvalidInput: a token outside the vocabulary, a row beyond `max_length`, or uncommitted nodes.
            OutOfMemory: the rows do not fit; those that were there are as they were.
        """
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        if any(self._region.counts):
            raise InvalidInput(
                "Rows cannot join while others hold uncommitted nodes; commit or drop those first."
            )
        if not texts:
            return
        have, more = len(self._lengths), len(texts)
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        with guarded_pass(have + more):
            padded = pad_sequence(texts, batch_first=True).to(self.device)
            # The first pass of all shows the shapes of the buffers, and small ones suffice for that.
            slots = longest if self._cache.settled else min(longest, self.chunk)
            self._cache.reserve(rows=have + more, slots=slots)
            features: list[Pieces] = [()] * more
            self._states.begin()
            for start in range(0, longest, self.chunk):
                self._prefill_chunk(padded, start, lengths, features)
                self._cache.reserve(rows=have + more, slots=longest)
            joined = self._states.joined(have, more)
            region = self._new_region(have + more)
            self._features += features
            self._region = region
            self._states.settle(joined)
        self._lengths += lengths
        self._fresh += [True] * more
        self._refresh()

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._lengths))
        with guarded_pass(len(keep)):
            if keep:
                self._cache.keep(keep, slots=self._base + self._region.columns)
            else:
                self._cache = RowCache()  # gives the memory back
            self._region.keep(keep)
            self._states.keep(keep)
            self._uncommitted = [states[keep] for states in self._uncommitted]
        self._features = [self._features[row] for row in keep]
        self._lengths = [self._lengths[row] for row in keep]
        self._fresh = [self._fresh[row] for row in keep]
        # Uncommitted nodes stay in the slots that they have.
        self._refresh(base=self._base if self._region.columns else None)

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
        *,
        keep: bool = True,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Append nodes to the uncommitted region of every row and return their logits.

        Args:
            tokens: `[rows, nodes]` int64.
            parents: `[rows, nodes]` int64, region indices (see `region`); -1 is the committed state.
            counts: valid nodes of every row, the rest being padding; None means all.
            keep: False forgets the nodes with the pass, what recurrent layers keep of them layer by layer.

        Returns:
            Logits `[rows, nodes, vocab]` in the model's dtype; rows beyond `counts` are undefined.

        Raises:
            InvalidTree: a token outside the vocabulary or a parent not before its child.
            InvalidInput: a node beyond `max_length`.
            OutOfMemory: the pass does not fit. After any error the state is as it was.
        """
        region = self._region
        tokens, parents, valid = validation.as_nodes(
            tokens, parents, counts, have=region.counts, vocab=self.vocab_size
        )
        rows, n = tokens.shape
        start = self._base + region.columns
        with guarded_pass(rows):
            if not rows or not n:
                return torch.empty(rows, n, self.vocab_size, dtype=self.model.dtype, device=self.device)
            staged = region.stage(parents.to(self.device, non_blocking=True), valid)
            if n > REORDER_ABOVE and self._uses_tree_kernel and region.reorders:
                staged = in_heavy_paths(staged)
            self._cache.reserve(rows=rows, slots=start + n)
            positions = staged.depths + self._offsets
            longest = start + n
            if self.max_length is not None and longest > self.max_length:
                positions = self._within_limit(positions, valid)
            columns = None
            if self._masks.limited(longest):
                columns = torch.cat([region.depths + self._offsets, positions], 1)
            mask = self._mask(
                staged.visible,
                queries=positions,
                columns=columns,
                committed=self._committed,
                lengths=self._offsets.squeeze(1),
                longest=longest,
            )
            self._plan(0, rows, start=start, stop=start + n)
            self._states.extend(staged.visible, fresh=self._fresh, keep=keep)
            tokens = staged.in_columns(tokens.to(self.device, non_blocking=True))
            logits = staged.in_call(self._forward(tokens, mask, positions))
            if keep:
                self._states.accept()
                region.accept(staged)
                if self._reader is not None:
                    self._uncommitted.append(self._pass_features)
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, in order, and drop the others.

        Raises:
            InvalidTree: a path that does not start at a node with parent -1 or skips a parent; nothing
                has changed then.
        """
        validation.check_paths(paths, rows=len(self._lengths))
        moves = []
        columns_of = self._region.columns_of(paths)
        for row, columns in enumerate(columns_of):
            slots = enumerate((self._base + column for column in columns), start=self._lengths[row])
            moves += [(row, source, target) for target, source in slots if source != target]
        with guarded_pass(len(self._lengths)):
            replayed = self._states.replayed(columns_of, self._region.columns)
            features = self._with_accepted(columns_of)
            if moves:
                self._cache.move(*zip(*moves, strict=True))
            self._states.settle(replayed)
            self._region.clear()
            self._features, self._uncommitted = features, []
        self._lengths = [have + len(path) for have, path in zip(self._lengths, paths, strict=True)]
        self._fresh = [fresh and not path for fresh, path in zip(self._fresh, paths, strict=True)]
        self._refresh()

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """As `StateBackend.take_features`, in the model's dtype and on `device`."""
        features = self._joined(self._features)
        self._features = [()] * len(self._features)
        return features

    def _with_accepted(self, columns_of: Sequence[Sequence[int]]) -> list[Pieces]:
        """The features of every row, to be taken, after a commit of these columns."""
        if self._reader is None or not any(columns_of):
            return self._features
        passes = self._uncommitted
        features = passes[0] if len(passes) == 1 else torch.cat(passes, 1)
        rows = [row for row, columns in enumerate(columns_of) for _ in columns]
        accepted = features[rows, [column for columns in columns_of for column in columns]]
        new = accepted.split([len(columns) for columns in columns_of])
        return [
            self._reader.trimmed([*pieces, more]) if len(more) else pieces
            for pieces, more in zip(self._features, new, strict=True)
        ]

    def _new_region(self, rows: int) -> Region:
        host = self.device.type == "cpu" and not self._uses_tree_kernel
        return HostRegion(rows) if host else TensorRegion(rows, self.device)

    @property
    def _uses_tree_kernel(self) -> bool:
        """Whether passes go through the tree kernel."""
        return self._attention is not None and self._attention.takes_bits(self.device)

    def _prefill_chunk(
        self, padded: Tensor, start: int, lengths: Sequence[int], features: list[Pieces]
    ) -> None:
        """One pass over `padded[:, start : start + chunk]`, the rows behind those that are there.

        Adds the features of the text of these `lengths` in it, where they are kept, to those of every row.
        """
        have, tokens = len(self._lengths), padded[:, start : start + self.chunk]
        rows, n = tokens.shape
        queries = torch.arange(start, start + n, device=self.device).expand(rows, -1)
        # Padding stands behind a row's text, so no token of the text sees it.
        mask = self._mask(
            queries.unsqueeze(2) >= queries.unsqueeze(1),
            queries=queries,
            columns=queries,
            committed=torch.ones(rows, 1, start, dtype=torch.bool, device=self.device),
            lengths=torch.full((rows,), start, device=self.device),
            longest=start + n,
        )
        self._plan(have, have + rows, start=start, stop=start + n)
        self._states.prefill(start, n, lengths, self.device)
        self._forward(tokens, mask, queries, **self._prefill_options)
        if self._reader is not None:
            for row, length in enumerate(lengths):
                last = self._reader.request.last or length
                first = max(length - last - start, 0)
                if first < min(length - start, n):
                    # Not a view, which would hold other rows and padding too.
                    new = self._pass_features[row, first : length - start].clone()
                    features[row] = self._reader.trimmed([*features[row], new])

    def _mask(
        self,
        visible: Tensor,
        *,
        queries: Tensor,
        columns: Tensor | None,
        committed: Tensor,
        lengths: Tensor,
        longest: int,
    ) -> Any:
        """What the nodes of a pass see: bits where the tree kernel serves the model, else numbers.

        Args:
            visible: bool `[rows, nodes, columns]`, of the uncommitted columns.
            queries: positions `[rows, nodes]`.
            columns: positions `[rows, columns]`; needed where `limited(longest)`.
            committed: bool `[rows, 1, slots]`, the slots before the columns that hold a row's text.
            lengths: how many those are, `[rows]`.
            longest: no position reaches this.
        """
        rows, n, _ = visible.shape
        start = committed.shape[2]
        if self._uses_tree_kernel:
            return PackedMasks.of(
                self._masks.kinds,
                visible,
                queries=queries,
                columns=columns,
                lengths=lengths,
                start=start,
                longest=longest,
            )
        keys = None
        if columns is not None:
            keys = torch.cat([torch.arange(start, device=self.device).expand(rows, -1), columns], 1)
        visible = torch.cat([committed.expand(-1, n, -1), visible], 2)
        return self._masks.build(visible, queries=queries, keys=keys, longest=longest)

    def _forward(self, tokens: Tensor, mask: Any, positions: Tensor, **options: Any) -> Tensor:
        if self._takes_positions:
            options["position_ids"] = positions
        attention: AbstractContextManager[None] = self._attention or nullcontext()
        if isinstance(mask, PackedMasks):
            assert self._attention is not None
            mask, attention = mask.markers, self._attention.under(mask)
        with attention:
            logits = self._logits(tokens, self._cache, attention_mask=mask, **options)
        self._cache.settle()
        return logits

    def _plan(self, first: int, last: int, *, start: int, stop: int) -> None:
        plan = self._cache.plan
        plan.first, plan.last, plan.start, plan.stop = first, last, start, stop

    def _refresh(self, base: int | None = None) -> None:
        """What passes need to know of the committed text; uncommitted nodes begin at slot `base`."""
        self._base = max(self._lengths, default=0) if base is None else base
        self._slots = torch.arange(self._base, device=self.device).unsqueeze(0)
        self._offsets = torch.tensor(self._lengths, dtype=torch.int64, device=self.device).unsqueeze(1)
        self._committed = (self._slots < self._offsets).unsqueeze(1)

    def _within_limit(self, positions: Tensor, valid: Sequence[int]) -> Tensor:
        assert self.max_length is not None
        highest = positions.amax(1).tolist()
        for row, position in enumerate(highest):
            if valid[row] and position >= self.max_length:
                raise InvalidInput(
                    f"A node of row {row} stands at position {position}, but the model's context holds "
                    f"{self.max_length} tokens; stop the row or grow a shallower tree."
                )
        return positions.clamp(max=self.max_length - 1)
