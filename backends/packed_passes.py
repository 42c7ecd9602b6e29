"""`PackedPasses`: single passes of a model over many rows, as they are or captured."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.attention import TreeAttention
from draftwood.backends.buckets import (
    COLUMNS,
    Shape,
    columns_bucket,
    nodes_bucket,
    old_bucket,
    rows_bucket,
    text_bucket,
)
from draftwood.backends.capture import Capture, Captured
from draftwood.backends.features import Pieces
from draftwood.backends.kv import RowCache
from draftwood.backends.masks import Reach
from draftwood.backends.model import ModelBackend
from draftwood.backends.recurrent.states import States
from draftwood.backends.region import Ints, Region, Staged, chain_bits
from draftwood.backends.staging import send
from draftwood.backends.streamed import read_ahead
from draftwood.backends.tree_kernel import PackedMasks
from draftwood.backends.tree_pass import TreePass
from draftwood.backends.visibility import Visibility
from draftwood.errors import InvalidInput, UnsupportedModel


@attrs.frozen
class PackedRow:
    """One row, apart from its keys, values and recurrent states.

    Attributes:
        length: committed tokens.
        fresh: whether the next token is the last one of its prompt.
        features: those of its tokens since `take_features`, `[length, width]` a piece, where they are kept.
    """

    length: int
    fresh: bool = True
    features: Pieces = attrs.field(default=(), eq=False, repr=False)

    def after(self, path: Sequence[int], features: Pieces) -> PackedRow:
        """Returns the row after a commit of `path`."""
        return PackedRow(self.length + len(path), self.fresh and not path, features)


class PackedPasses(ModelBackend):
    """Abstract: the model over a chunk of prompts or over new nodes, and what all rows are held in.

    A pass leaves behind keys, values and states alone. Which rows there are, their nodes and what of them is
    committed is up to the subclass.
    """

    def __init__(
        self,
        model: Any,
        module: Any,
        *,
        kinds: dict[str, Reach],
        states: States,
        chunk: int,
        capture: Capture = "off",
    ) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model, which is not changed.
            module: what runs: `model`, or a copy of its structure over the same weights.
            kinds: the kinds of its attention layers.
            states: of its recurrent layers.
            chunk: tokens a prefill pass takes at once.
            capture: whether and how passes over trees are captured; see `capture`.

        Raises:
            UnsupportedModel: passes that cannot be captured.
        """
        super().__init__(model, chunk=chunk)
        self._module, self._states = module, states
        read_ahead(module, layers=self.skippable_layers)
        self._attention = TreeAttention(module) if kinds else None
        self._kinds = kinds
        # What an additive mask adds where a node sees a slot, and where it does not.
        self._seen = torch.zeros((), dtype=model.dtype, device=self.device)
        self._unseen = torch.full_like(self._seen, torch.finfo(model.dtype).min)
        self._cache = RowCache(standing=capture != "off")
        self.captured: Captured | None = None
        if capture != "off":
            self.captured = self._new_captured(capture)
            self._options["capture"] = capture
        # Uncommitted columns for which captured passes have room.
        self._room = COLUMNS
        self._rows: list[PackedRow] = []
        # Where features are kept, one `[rows, nodes, width]` for every pass over uncommitted nodes.
        self._uncommitted: list[Tensor] = []
        self._region = Region(0)
        # The slot of column 0.
        self._base = 0

    @property
    def _uses_tree_kernel(self) -> bool:
        """Whether passes go through the tree kernel."""
        return self._attention is not None and self._attention.takes_bits(self.device)

    def _prefill_chunk(
        self,
        padded: Tensor,
        start: int,
        lengths: Sequence[int],
        features: list[Pieces],
        first: dict[int, Tensor] | None,
    ) -> None:
        """One pass over `padded[:, start : start + chunk]`, the rows behind those that are there.

        Adds the features of the text of these `lengths` in it, where they are kept, to those of every row,
        and puts the logits `[vocab]` behind texts that end in it into `first`, by row, where they are wanted.
        """
        have, tokens = len(self._rows), padded[:, start : start + self.chunk]
        rows, n = tokens.shape
        # Padding stands behind a row's text, so no token of the text sees it. Masks of numbers are alike for
        # all rows.
        alike = 1 if not self._uses_tree_kernel else rows
        positions = np.arange(start, start + n)[None].repeat(alike, 0)
        visibility = Visibility.of(
            self._kinds,
            chain_bits(n)[None].repeat(alike, 0),
            depths=np.zeros((alike, 0), np.int64),
            queries=positions,
            lengths=np.full(alike, start),
            start=start,
            longest=start + n,
        )
        tensors = send({"positions": positions} | self._mask_arrays(visibility), self.device)
        mask = self._mask(visibility, tensors)
        self._plan(have, have + rows, start=start, stop=start + n)
        self._states.prefill(start, n, lengths, self.device)
        ends = {row: length - 1 - start for row, length in enumerate(lengths) if 0 < length - start <= n}
        ends = ends if first is not None else {}
        columns = sorted(set(ends.values()))
        options: dict[str, Any] = dict(self._prefill_options)
        if options and columns:
            # A number keeps the last ones.
            options["logits_to_keep"] = 1 if columns == [n - 1] else torch.tensor(columns, device=self.device)
        logits = self._forward(tokens, mask, tensors["positions"].expand(rows, -1), **options)
        if first is not None and columns:
            places = {column: place for place, column in enumerate(columns if options else range(n))}
            # Not views, which would hold other tokens' logits too.
            first |= {row: logits[row, places[column]].clone() for row, column in ends.items()}
        if self._reader is not None:
            for row, length in enumerate(lengths):
                last = self._reader.request.last or length
                kept_from = max(length - last - start, 0)
                if kept_from < min(length - start, n):
                    # Not a view, which would hold other rows and padding too.
                    new = self._pass_features[row, kept_from : length - start].clone()
                    features[row] = self._reader.trimmed([*features[row], new])

    def _score(self, tokens: Tensor, staged: Staged, *, keep: bool, prompt: bool) -> Tensor:
        """Logits `[rows, nodes, vocab]` of `staged` nodes, by one pass; all else as in `extend`."""
        rows, n = tokens.shape
        tree = self._tree_pass(tokens, staged, prompt=prompt)
        start, longest, visibility = tree.start, self._base + staged.stop, tree.visibility
        nodes = n if self.captured is None else nodes_bucket(n)
        self._make_room(rows, text=self._base, stop=start + nodes)
        captured = self.captured if self._settled else None
        if captured is not None:
            self._check_mode()
            plan = self._cache.plan
            old = old_bucket(staged.start) if self._states.layers else 0
            shape = Shape(plan.rows, nodes, plan.slots - self._room, self._room, old)
            logits, features = captured.score(shape, tree, by_bits=self._uses_tree_kernel)
            if self._reader is not None and features is not None:
                self._pass_features = self._reader.passed_through(features)
            return logits
        arrays = {"positions": tree.positions} | tree.arrays() | self._mask_arrays(visibility)
        if tree.prompts is not None:
            arrays |= {"visible": staged.visible, "prompts": tree.prompts}
        tensors = send(arrays, self.device)
        self._plan(0, rows, start=start, stop=longest)
        self._states.extend(tensors.get("visible"), prompts=tensors.get("prompts"), keep=keep)
        tokens = tree.device_tokens(tensors, self.device)
        logits = self._forward(tokens, self._mask(visibility, tensors), tensors["positions"])
        self._cache.settle(slots=longest)
        return tree.in_call(logits, tensors)

    def _tree_pass(self, tokens: Tensor, staged: Staged, *, prompt: bool = False) -> TreePass:
        """A pass over `staged` nodes, all of which are tokens of a prompt if `prompt`."""
        lengths = np.array(self.lengths, np.int64)
        longest = self._base + staged.stop
        positions = staged.depths + lengths[:, None]
        if self.max_length is not None and longest > self.max_length:
            positions = self._within_limit(positions, staged.counts)
        visibility = Visibility.of(
            self._kinds,
            staged.bits,
            depths=self._region.depths,
            queries=positions,
            lengths=lengths,
            start=self._base,
            longest=longest,
        )
        prompts = None
        if self._states.layers:
            fresh = np.array([row.fresh for row in self._rows])
            prompts = prompt | (fresh[:, None] & (staged.depths == 0))
        return TreePass(tokens, staged, positions, visibility, self._base + staged.start, prompts)

    @property
    def _settled(self) -> bool:
        """Whether a first pass has shown what all layers keep."""
        return (self._cache.settled or not self._kinds) and self._states.settled

    def _make_room(self, rows: int, *, text: int, stop: int) -> None:
        """Have buffers for `rows` of which `text` slots lie before column 0, up to slot `stop`.

        Those of captured passes are exactly as large as the shape of a pass.
        """
        if self.captured is None:
            self._cache.reserve(rows=rows, slots=stop)
            return
        there = len(self._rows) > 0
        self._room = max(self._room, columns_bucket(stop - text))
        bucket = text_bucket(text, longest=self.max_length) if self._kinds else 0
        if self._cache.lay_out(rows=rows_bucket(rows), slots=bucket + self._room, keep=there):
            self.captured.renew()
        self._lay_out_states(rows)

    def _lay_out_states(self, rows: int) -> None:
        """Have room for the recurrent states of so many rows, where passes are captured."""
        if self.captured is not None and self._states.lay_out(rows=rows_bucket(rows), columns=self._room):
            self.captured.renew()

    def _mask_arrays(self, visibility: Visibility) -> dict[str, NDArray[Any]]:
        """What `_mask` needs on the device."""
        return visibility.packed_arrays() if self._uses_tree_kernel else visibility.arrays()

    def _mask(self, visibility: Visibility, tensors: dict[str, Tensor]) -> Any:
        """What the nodes of a pass see: bits where the tree kernel serves the model, else numbers."""
        if self._uses_tree_kernel:
            return PackedMasks.of(
                visibility.kinds, tensors, start=visibility.start, columns=visibility.columns
            )
        return visibility.numbers(tensors, seen=self._seen, unseen=self._unseen)

    def _forward(self, tokens: Tensor, mask: Any, positions: Tensor, **options: Any) -> Tensor:
        if self._takes_positions:
            options["position_ids"] = positions
        attention: AbstractContextManager[None] = self._attention or nullcontext()
        if isinstance(mask, PackedMasks):
            assert self._attention is not None
            mask, attention = mask.markers, self._attention.under(mask)
        with attention:
            return self._logits(tokens, self._cache, attention_mask=mask, **options)

    def _new_captured(self, capture: Capture) -> Captured:
        name = type(self.model).__name__
        for layer in self._states.layers:
            if not layer.traceable:
                raise UnsupportedModel(
                    f"{name} has recurrent layers ({layer.name}, {type(layer).__name__}) whose passes go "
                    'from level to level of a tree, so they are not captured; load it with capture="off".'
                )
        return Captured(
            self._run_captured,
            module=self._module,
            name=name,
            cache=self._cache,
            states=self._states,
            attention=self._attention,
            kinds=tuple(self._kinds),
            device=self.device,
            dtype=self.model.dtype,
            capture=capture,
        )

    def _run_captured(self, tokens: Tensor, mask: Any, positions: Tensor) -> Sequence[Tensor]:
        """The model alone, for tracing."""
        options: dict[str, Any] = {"position_ids": positions} if self._takes_positions else {}
        options |= {self._cache_name: self._cache, "attention_mask": mask, "input_ids": tokens}
        options |= {"use_cache": True, "return_dict": True}
        if self._reader is None:
            return [self._module(**options).logits]
        features, output = self._reader.run(options)
        return [output.logits, features]

    def _plan(self, first: int, last: int, *, start: int, stop: int) -> None:
        plan = self._cache.plan
        plan.first, plan.last, plan.start, plan.stop = first, last, start, stop

    def _within_limit(self, positions: Ints, valid: Sequence[int]) -> Ints:
        assert self.max_length is not None
        for row, position in enumerate(positions.max(1)):
            if valid[row] and position >= self.max_length:
                raise InvalidInput(
                    f"A node of row {row} stands at position {position}, but the model's context holds "
                    f"{self.max_length} tokens; stop the row or grow a shallower tree."
                )
        return np.minimum(positions, self.max_length - 1)
