"""`PackedBackend`: draft trees in one pass under a mask, for whatever layers a model has."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.backends import validation
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
from draftwood.backends.captured_levels import LevelsShape, widths_that_pay
from draftwood.backends.features import Pieces, Through
from draftwood.backends.forward import guarded_pass
from draftwood.backends.heavy_paths import in_heavy_paths
from draftwood.backends.kv import RowCache
from draftwood.backends.masks import Reach
from draftwood.backends.model import ModelBackend, refuse_training
from draftwood.backends.recurrent.states import States
from draftwood.backends.region import Accepted, Ints, Region, Staged, chain_bits
from draftwood.backends.staging import send
from draftwood.backends.streamed import read_ahead
from draftwood.backends.tree_kernel import PackedMasks
from draftwood.backends.tree_pass import TreePass
from draftwood.backends.visibility import Visibility
from draftwood.errors import InvalidInput, UnsupportedModel
from draftwood.kernels.transfer import sent
from draftwood.level_plan import LevelPlan, Levels

REORDER_ABOVE = 128
"""Nodes of a pass beyond which the tree kernel gets them in heavy-path order; of less it saves few blocks."""


class PackedBackend(ModelBackend):
    """Abstract: runs a draft tree in one pass, in which every node sees the text and its own ancestors.

    Attention: uncommitted nodes lie behind the committed slots; a commit moves the accepted ones down.
    Recurrent layers: one committed state and a few vectors a node; a commit replays the accepted ones. Either
    way the rest is forgotten without a second pass.
    """

    gives_first_logits = True

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
        self._lengths: list[int] = []
        # Of every row, whether it has committed nothing since it joined.
        self._fresh: list[bool] = []
        # Where features are kept: those of every row since `take_features`, `[length, width]` a piece, and
        # one `[rows, nodes, width]` for every pass over uncommitted nodes.
        self._features: list[Pieces] = []
        self._uncommitted: list[Tensor] = []
        self._region = Region(0)
        # The slot of column 0.
        self._base = 0

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
        self._join(rows, scored=False)

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """As `prefill`, errors too, and the logits behind every row's last token, in the model's dtype.

        Raises:
            InvalidInput: a row without tokens.
        """
        validation.check_filled(rows)
        return self._join(rows, scored=True)

    def _join(self, rows: Sequence[Tensor], *, scored: bool) -> Tensor:
        """Append rows; logits `[rows, vocab]` behind them, where `scored`."""
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        if any(self._region.counts):
            raise InvalidInput(
                "Rows cannot join while others hold uncommitted nodes; commit or drop those first."
            )
        have, more = len(self._lengths), len(texts)
        first: dict[int, Tensor] = {}
        if not texts:
            return self._stacked(first)
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        with guarded_pass(have + more):
            padded = pad_sequence(texts, batch_first=True).to(self.device)
            # The first pass of all shows the shapes of the buffers, and small ones suffice for that.
            slots = longest if self._cache.settled else min(longest, self.chunk)
            self._make_room(have + more, text=max(longest, self._base), stop=slots)
            features: list[Pieces] = [()] * more
            self._states.begin()
            for start in range(0, longest, self.chunk):
                self._prefill_chunk(padded, start, lengths, features, first if scored else None)
                self._cache.settle(slots=longest)
            self._lay_out_states(have + more)
            joined = self._states.joined(have, more)
            self._features += features
            self._region = Region(have + more)
            self._states.settle(joined)
            if self.captured is not None:
                self.captured.renew()
        self._lengths += lengths
        self._fresh += [True] * more
        self._base = max(self._lengths)
        return self._stacked(first)

    def _stacked(self, logits: dict[int, Tensor]) -> Tensor:
        """Logits `[rows, vocab]` of the rows from 0 on, in the order of the rows."""
        if not logits:
            return torch.empty(0, self.vocab_size, dtype=self.model.dtype, device=self.device)
        with guarded_pass(len(logits)):
            return torch.stack([logits[row] for row in range(len(logits))])

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._lengths))
        with guarded_pass(len(keep)):
            if keep:
                self._cache.keep(keep, slots=self._base + self._region.columns)
            else:
                self._cache.drop()
            self._region.keep(keep)
            self._states.keep(keep)
            self._uncommitted = [states[keep] for states in self._uncommitted]
        self._features = [self._features[row] for row in keep]
        self._lengths = [self._lengths[row] for row in keep]
        self._fresh = [self._fresh[row] for row in keep]
        # Uncommitted nodes stay in the slots that they have.
        if not self._region.columns:
            self._base = max(self._lengths, default=0)

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
        with guarded_pass(rows):
            if not rows or not n:
                return torch.empty(rows, n, self.vocab_size, dtype=self.model.dtype, device=self.device)
            staged = region.stage(parents.numpy(), valid)
            if n > REORDER_ABOVE and self._uses_tree_kernel:
                staged = in_heavy_paths(staged)
            logits = self._score(tokens, staged, keep=keep)
            if keep:
                self._states.accept()
                region.accept(staged)
                if self._reader is not None:
                    self._uncommitted.append(self._pass_features)
        return logits

    def extend_levels(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        plan: LevelPlan,
        *,
        temperature: float = 1.0,
    ) -> Levels | None:
        """As `StateBackend.extend_levels`, where passes are captured: all levels in one.

        The nodes of all levels join the region behind the first ones, level by level, of every one as many
        as its width.
        """
        captured = self.captured if self._cache.settled and self._reader is None else None
        if captured is None or self._states.layers or any(self._region.counts) or not self._lengths:
            return None
        tokens, parents, valid = validation.as_nodes(
            tokens, parents, None, have=self._region.counts, vocab=self.vocab_size
        )
        rows, n = tokens.shape
        widths = widths_that_pay(
            plan,
            rows=rows,
            nodes=n,
            layers=len(self._cache.layers),
            vocab_size=self.vocab_size,
            device=self.device,
        )
        deepest = max(self._lengths) + n + plan.depth
        limited = [reach for reach in self._kinds.values() if reach.limits(deepest)]
        # What lies in a window is worked out for the text alone.
        within = any(reach.window is None or reach.window <= n + plan.depth for reach in limited)
        if widths is None or within or deepest > (self.max_length or deepest):
            return None
        with guarded_pass(rows):
            self._make_room(rows, text=self._base, stop=self._base + n + sum(widths[1:]))
            staged = self._region.stage(parents.numpy(), valid)
            tree = self._tree_pass(tokens, staged)
            cache = self._cache.plan
            first = Shape(cache.rows, n, cache.slots - self._room, self._room)
            shape = LevelsShape(first, plan, widths, temperature)
            positions = tree.positions[:, -1:] + np.arange(len(widths))
            seen = {
                kind: reach.first(positions) if reach in limited else None
                for kind, reach in self._kinds.items()
            }
            refuse_training(self._module)
            found = captured.grow(
                shape,
                tree,
                lambda held: shape.fill(held, start=tree.start, positions=positions, first=seen),
            )
            levels = Levels.of(found[:rows], widths=widths, vocab_size=self.vocab_size)
            if levels.misses(plan):
                return None
            _, below = levels.nodes(root=n - 1)
            above = np.concatenate([parents.numpy(), below], 1)
            self._region.accept(self._region.stage(above, [above.shape[1]] * rows))
        return levels

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, in order, and drop the others.

        Raises:
            InvalidTree: a path that does not start at a node with parent -1 or skips a parent; nothing
                has changed then.
        """
        validation.check_paths(paths, rows=len(self._lengths))
        accepted = self._region.accepted(paths)
        sources = self._base + accepted.columns
        targets = np.array(self._lengths, np.int64)[accepted.rows] + accepted.steps
        moved = np.flatnonzero(sources != targets)
        with guarded_pass(len(self._lengths)):
            captured = self.captured.replay if self.captured is not None and self._states.settled else None
            replayed = self._states.replayed(accepted, self._region.columns, captured=captured)
            features = self._with_accepted(accepted)
            if len(moved):
                self._cache.move(accepted.rows[moved], sources[moved], targets[moved])
            self._states.settle(replayed)
            self._region.clear()
            self._features, self._uncommitted = features, []
        self._lengths = [have + len(path) for have, path in zip(self._lengths, paths, strict=True)]
        self._fresh = [fresh and not path for fresh, path in zip(self._fresh, paths, strict=True)]
        self._base = max(self._lengths, default=0)

    def keep_features(
        self, layers: Sequence[int], *, last: int | None = None, through: Through | None = None
    ) -> None:
        """As `StateBackend.keep_features`."""
        super().keep_features(layers, last=last, through=through)
        if self.captured is not None:
            self.captured.keep(self._reader)

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """As `StateBackend.take_features`, in the model's dtype and on `device`."""
        features = self._joined(self._features)
        self._features = [()] * len(self._features)
        return features

    def _with_accepted(self, accepted: Accepted) -> list[Pieces]:
        """The features of every row, to be taken, after a commit of these nodes."""
        if self._reader is None or not len(accepted.rows):
            return self._features
        passes = self._uncommitted
        features = passes[0] if len(passes) == 1 else torch.cat(passes, 1)
        places = accepted.rows * features.shape[1] + accepted.columns
        kept = features.flatten(0, 1).index_select(0, sent(places, features.device))
        reader = self._reader
        return [
            reader.trimmed([*pieces, more]) if len(more) else pieces
            for pieces, more in zip(self._features, kept.split(accepted.counts.tolist()), strict=True)
        ]

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
        have, tokens = len(self._lengths), padded[:, start : start + self.chunk]
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

    def _score(self, tokens: Tensor, staged: Staged, *, keep: bool) -> Tensor:
        """Logits `[rows, nodes, vocab]` of `staged` nodes, by one pass; all else as in `extend`."""
        rows, n = tokens.shape
        tree = self._tree_pass(tokens, staged)
        start, longest, visibility = tree.start, self._base + staged.stop, tree.visibility
        nodes = n if self.captured is None else nodes_bucket(n)
        self._make_room(rows, text=self._base, stop=start + nodes)
        captured = self.captured if self._settled else None
        if captured is not None:
            refuse_training(self._module)
            plan = self._cache.plan
            old = old_bucket(staged.start) if self._states.layers else 0
            shape = Shape(plan.rows, nodes, plan.slots - self._room, self._room, old)
            logits, features = captured.score(shape, tree, by_bits=self._uses_tree_kernel)
            if self._reader is not None and features is not None:
                self._pass_features = self._reader.passed_through(features)
            return logits
        arrays = {"positions": tree.positions} | tree.arrays() | self._mask_arrays(visibility)
        if tree.fresh is not None:
            arrays |= {"visible": staged.visible, "fresh": tree.fresh}
        tensors = send(arrays, self.device)
        self._plan(0, rows, start=start, stop=longest)
        self._states.extend(tensors.get("visible"), fresh=tensors.get("fresh"), keep=keep)
        tokens = tree.device_tokens(tensors, self.device)
        logits = self._forward(tokens, self._mask(visibility, tensors), tensors["positions"])
        self._cache.settle(slots=longest)
        return tree.in_call(logits, tensors)

    def _tree_pass(self, tokens: Tensor, staged: Staged) -> TreePass:
        """A pass over `staged` nodes."""
        lengths = np.array(self._lengths, np.int64)
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
        fresh = np.array(self._fresh) if self._states.layers else None
        return TreePass(tokens, staged, positions, visibility, self._base + staged.start, fresh)

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
        there = len(self._lengths) > 0
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
