"""`PackedBackend`: draft trees in one pass under a mask, for whatever layers a model has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.backends.kinds.given_keys import given_keys, refuse_states
from draftwood.backends.model.features import Pieces, Through
from draftwood.backends.model.model_cache import columns_of, empty_cache, written_part
from draftwood.backends.model.prompt_check import check_behind
from draftwood.backends.model.prompt_reading import inputs_of_one_pass, keeps_other_keys, read_prompt
from draftwood.backends.nodes import validation
from draftwood.backends.nodes.heavy_paths import in_heavy_paths
from draftwood.backends.nodes.region import Accepted, Region
from draftwood.backends.nodes.row_inputs import joined_inputs
from draftwood.backends.passes.captured_levels import widths_that_pay
from draftwood.backends.passes.packed_passes import PackedRow
from draftwood.backends.passes.windowed_passes import WindowedPasses
from draftwood.backends.recurrent.given_states import given_states
from draftwood.backends.recurrent.states import States
from draftwood.backends.structure.forward import guarded_pass
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.decoding.given_cache import filled_cache
from draftwood.kernels.transfer import sent
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.reading import read_chains

REORDER_ABOVE = 128
"""Nodes of a pass beyond which the tree kernel gets them in heavy-path order; of less it saves few blocks."""


class PackedBackend(WindowedPasses):
    """Abstract: runs a draft tree in one pass, in which every node sees the text and its own ancestors.

    Attention: uncommitted nodes follow the committed slots; a commit moves the accepted ones down.
    Recurrent layers: one committed state and a few vectors a node; a commit replays the accepted ones. Either
    way the rest is forgotten without a second pass.
    """

    gives_first_logits = True

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return self._lengths.tolist()  # type: ignore[no-any-return]

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none).

        Raises:
            InvalidInput: a token outside the vocabulary, a row beyond `max_length`, or uncommitted nodes.
            OutOfMemory: the rows do not fit; those that were there are as they were.
        """
        self._join(rows, scored=False)

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows and return the logits after each row's last token, in the model's dtype.

        Raises:
            InvalidInput: a row without tokens.
        """
        validation.check_filled(rows)
        return self._join(rows, scored=True)

    def take_over(self, cache: Any, lengths: Sequence[int]) -> None:
        """Take over a cache, as `StateBackend.take_over` says.

        Raises:
            InvalidInput: a cache that cannot be read, a row beyond `max_length`, or uncommitted nodes.
            OutOfMemory: the rows do not fit; those that were there are as they were.
            UnsupportedModel: only recurrent layers, or ones whose states no cache holds, or a drafter that
                reads features, which no cache holds either.
        """
        self._check_no_nodes()
        states = self._states
        if self._reader is not None:
            raise self._unread_cache("a drafter that reads its features")
        validation.check_lengths(lengths, longest=self.max_length)
        have, more = len(self._rows), len(lengths)
        given = joined_inputs(self._given, have, None, more)
        with guarded_pass(have + more):
            if states is None:
                refuse_states(cache)
            else:
                self._join_states(states, cache, rows=more, lengths=lengths)
            self._append(cache, lengths)
            if states is not None:
                states.settle(states.joined(have, more))
            self._region = Region.empty(have + more)
        self._given = given
        self._hold([*self._rows, *[PackedRow(length, fresh=False) for length in lengths]])

    def read_prompt(self, prompt: ModelPrompt) -> Float[Tensor, "rows vocab"]:
        """Append rows that the model's own forward reads, as `StateBackend.read_prompt` says.

        Raises:
            InvalidInput: inputs that the model refuses, or a row beyond `max_length`.
            OutOfMemory: the rows do not fit; those that were there are as they were.
            UnsupportedModel: later passes after such a prompt do not give what `generate()` would.
        """
        self._check_no_nodes()
        have, more, states = len(self._rows), len(prompt), self._states
        with guarded_pass(have + more):
            if states is not None:
                cache, columns = filled_cache(prompt.inputs), prompt.columns
                self._join_states(states, cache, rows=more)
                columns -= 0 if cache is None else columns_of(cache, otherwise=0)
                mask = None if prompt.mask is None else prompt.mask[:, -columns:].bool()
                # A model takes one token after its states as one that it writes.
                alone = cache is not None and columns == 1
                states.prefill([columns] * more, columns, self.device, mask=mask, prompt=not alone)
            read = read_prompt(self._module, prompt, empty_cache(self.model), reader=self._reader)
            validation.check_lengths(read.lengths, longest=self.max_length)
            own = inputs_of_one_pass(read, name=type(self.model).__name__)
            given = joined_inputs(self._given, have, own.keep(range(more)), more)
            try:
                self._append(written_part(read.cache), read.lengths, seen=read.seen)
            except InvalidInput as error:
                if filled_cache(prompt.inputs) is not None:
                    raise
                raise keeps_other_keys(type(self.model).__name__) from error
            if states is not None:
                states.settle(states.joined(have, more))
            self._region = Region.empty(have + more)
        self._given = given
        rows = zip(read.lengths, read.features, strict=True)
        new = [PackedRow(length, fresh=False, features=features) for length, features in rows]
        self._hold([*self._rows, *new])
        check_behind(self, prompt, read.logits)
        return read.logits

    def _join_states(self, states: States, cache: Any, *, rows: int, lengths: Sequence[int] = ()) -> None:
        """Let `rows` rows join the recurrent layers, with the states of a filled cache unless it is None."""
        states.begin()
        if cache is None:
            return
        if not self._kinds:
            raise self._unread_cache("only recurrent layers, whose cache does not count its tokens")
        given = given_states(cache, states.layers, rows=rows, lengths=lengths)
        for layer, state in zip(states.layers, given, strict=True):
            layer.join(state)

    def _unread_cache(self, what: str) -> UnsupportedModel:
        return UnsupportedModel(
            f"{type(self.model).__name__} has {what}, so past_key_values is not read; leave it out."
        )

    def _append(self, cache: Any, lengths: Sequence[int], *, seen: Tensor | None = None) -> None:
        """Write the cached keys and values of new rows into new slots; see `given_keys`."""
        have, more, longest = len(self._rows), len(lengths), max(lengths, default=0)
        pieces = given_keys(cache, lengths, seen=seen)
        self._make_room(have + more, text=longest, stop=longest)
        self._cache.write(have, have + more, start=0, stop=longest)
        for layer, piece in enumerate(pieces):
            if piece is not None:
                self._cache.update(*piece, layer)
        self._cache.settle(slots=longest)
        self._runner.joined(have + more)

    def _make_room(self, rows: int, *, text: int, stop: int) -> None:
        """Have buffers for so many rows with texts of up to `text` tokens, and for `stop` slots at first."""
        self._pass.choose_masks()
        self._runner.make_room(rows=rows, text=max(text, self._base), stop=stop)

    def _check_no_nodes(self) -> None:
        if self._region.counts.any():
            raise InvalidInput(
                "Rows cannot join while others hold uncommitted nodes; commit or drop those first."
            )

    def _join(self, rows: Sequence[Tensor], *, scored: bool) -> Tensor:
        """Append rows; returns the logits `[rows, vocab]` that follow them if `scored`."""
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        self._check_source(texts)
        self._check_no_nodes()
        have, more = len(self._rows), len(texts)
        given = joined_inputs(self._given, have, None, more)
        first: dict[int, Tensor] = {}
        if not texts:
            return self._stacked(first)
        lengths = [len(text) for text in texts]
        longest = max(lengths)
        with guarded_pass(have + more):
            padded = pad_sequence(texts, batch_first=True).to(self.device)
            # The first pass of all shows the shapes of the buffers, and small ones suffice for that.
            slots = longest if self._cache.settled else min(longest, self.chunk)
            self._make_room(have + more, text=longest, stop=slots)
            features: list[Pieces] = [()] * more
            states = self._states
            if states is not None:
                states.begin()
            for start in range(0, longest, self.chunk):
                self._read_chunk(padded, start, lengths, features, first if scored else None)
                self._cache.settle(slots=longest)
            self._runner.joined(have + more)
            if states is not None:
                states.settle(states.joined(have, more))
            self._region = Region.empty(have + more)
        self._given = given
        # The root of a row whose prompt was scored is the first written token, and none of the prompt.
        new = [PackedRow(lengths[row], fresh=not scored, features=features[row]) for row in range(more)]
        self._hold([*self._rows, *new])
        return self._stacked(first)

    def _stacked(self, logits: dict[int, Tensor]) -> Tensor:
        """Logits `[rows, vocab]` of the rows from 0 on, in the order of the rows."""
        if not logits:
            return torch.empty(0, self.vocab_size, dtype=self.model.dtype, device=self.device)
        with guarded_pass(len(logits)):
            return torch.stack([logits[row] for row in range(len(logits))])

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._rows))
        with guarded_pass(len(keep)):
            if keep:
                self._cache.keep(keep, slots=self._base + self._columns)
            else:
                self._cache.drop()
            self._region = self._region.keep(keep)
            drafted = None if self._drafted is None else self._drafted.keep(keep)
            if self._states is not None:
                self._states.keep(keep)
            self._uncommitted = [states[keep] for states in self._uncommitted]
            self._given = self._given.keep(keep) if self._given is not None and keep else None
        self._hold([self._rows[row] for row in keep], drafted=drafted)

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Read on as `StateBackend.read` says, in the model's dtype; errors as in `extend`."""
        return read_chains(rows, extend=partial(self.extend, prompt=True), commit=self.commit)

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
        *,
        keep: bool = True,
        prompt: bool = False,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Append nodes to the uncommitted region of every row and return their logits.

        Args:
            tokens: `[rows, nodes]` int64.
            parents: `[rows, nodes]` int64, region indices (see `region`); -1 is the committed state.
            counts: valid nodes of every row, the rest being padding; None means all.
            keep: False forgets the nodes with the pass, what recurrent layers keep of them layer by layer.
            prompt: whether all nodes are tokens of a prompt, whose steps some layers clamp.

        Returns:
            Logits `[rows, nodes, vocab]` in the model's dtype; rows beyond `counts` are undefined.

        Raises:
            InvalidTree: a token outside the vocabulary or a parent not before its child.
            InvalidInput: a node beyond `max_length`.
            OutOfMemory: the pass does not fit. After any error the state is as it was.
        """
        region = self._region
        tokens, parents, valid = validation.padded_nodes(
            tokens, parents, counts, have=region.counts, vocab=self.vocab_size
        )
        rows, n = tokens.shape
        with self._guard:
            if not rows or not n:
                return torch.empty(rows, n, self.vocab_size, dtype=self.model.dtype, device=self.device)
            staged = region.stage(parents.numpy(), valid)
            if n > REORDER_ABOVE and self._pass.by_bits:
                staged = in_heavy_paths(staged)
            # Before the pass, after which nothing is left in the processor's caches.
            after = region.accept(staged) if keep else region
            inputs = self._tree_inputs(tokens, staged, region, keep=keep, prompt=prompt)
            self._drafted = None  # their slots are about to be written
            logits, features = self._runner.run(inputs)
            if not self._cache.plan.gathered:
                self._cache.settle(slots=inputs.stop)
            if self._reader is not None and features is not None:
                features = self._reader.passed_through(features)
            if keep:
                if self._states is not None:
                    self._states.accept()
                self._region = after
                if features is not None:
                    self._uncommitted.append(features)
        return logits

    def extend_levels(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        plan: LevelPlan,
        *,
        temperature: float = 1.0,
    ) -> Levels | None:
        """Extend by all levels in one pass, where passes are captured; see `StateBackend.extend_levels`.

        The nodes of all levels join the region after the first ones, level by level, from every level as many
        as its width.
        """
        if not self._runner.grows or self._region.columns or not self._rows:
            return None
        if self._given is not None:  # their positions are not what their windows are counted by
            return None
        tokens, parents, valid = validation.padded_nodes(
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
        deepest = max(self.lengths) + n + plan.depth
        limited = [reach for reach in self._kinds.values() if reach.limits(deepest)]
        # Windows are only computed for the text.
        within = any(reach.window is None or reach.window <= n + plan.depth for reach in limited)
        if widths is None or within or deepest > (self.max_length or deepest):
            return None
        with guarded_pass(rows):
            staged = self._region.stage(parents.numpy(), valid)
            inputs = self._tree_inputs(tokens, staged, self._region)
            positions = inputs.positions[:, -1:] + np.arange(len(widths))
            first = {
                kind: reach.first(positions) if reach in limited else None
                for kind, reach in self._kinds.items()
            }
            found = self._runner.grow(inputs, plan, widths=widths, temperature=temperature, first=first)
            if found is None:
                return None
            levels = Levels.of(found, widths=widths, vocab_size=self.vocab_size)
            if levels.misses(plan):
                return None
            _, below = levels.nodes(root=n - 1)
            above = np.concatenate([parents.numpy(), below], 1)
            self._region = self._region.accept(self._region.stage(above, [above.shape[1]] * rows))
        return levels

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, in order, and drop the others.

        Raises:
            InvalidTree: a path that does not start at a node with parent -1 or skips a parent; nothing
                has changed then.
        """
        accepted = self._region.accepted(paths)
        sources = self._base + accepted.columns
        targets = self._lengths[accepted.rows] + accepted.steps
        moved = np.flatnonzero(sources != targets)
        with self._guard:
            states = self._states
            if states is not None:
                replayed = states.replayed(accepted, self._region.columns, by=self._runner.replayed)
            rows = self._rows_after(accepted, paths)
            if len(moved):
                self._cache.move(accepted.rows[moved], sources[moved], targets[moved])
            if states is not None:
                states.settle(replayed)
            self._region = self._region.cleared()
            self._uncommitted = []
        self._hold(rows)

    def keep_features(
        self, layers: Sequence[int], *, last: int | None = None, through: Through | None = None
    ) -> None:
        """Keep features, as `StateBackend.keep_features` says."""
        super().keep_features(layers, last=last, through=through)
        self._pass.reader = self._reader

    def take_features(self) -> list[Float[Tensor, "length width"]]:
        """Returns the features of `StateBackend.take_features`, in the model's dtype and on `device`."""
        features = self._joined([row.features for row in self._rows])
        self._rows = [attrs.evolve(row, features=()) for row in self._rows]
        return features

    def _rows_after(self, accepted: Accepted, paths: Sequence[Sequence[int]]) -> list[PackedRow]:
        """Returns the rows after a commit of these nodes, which `paths` lists too."""
        new: Sequence[Tensor] = ()
        if self._reader is not None and len(accepted.rows):
            passes = self._uncommitted
            features = passes[0] if len(passes) == 1 else torch.cat(passes, 1)
            places = accepted.rows * features.shape[1] + accepted.columns
            kept = features.flatten(0, 1).index_select(0, sent(places, features.device))
            new = kept.split(accepted.counts.tolist())
        after = list[PackedRow]()
        for place, (row, path) in enumerate(zip(self._rows, paths, strict=True)):
            pieces = row.features
            if path and self._reader is not None:
                pieces = self._reader.trimmed([*pieces, new[place]])
            after.append(PackedRow(row.length + len(path), row.fresh and not path, pieces))
        return after
