"""`LongRopeBackend`: longrope models, whose rotation of a whole text switches where the text grows long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.backends.model.model_backend import ModelBackend
from draftwood.backends.model.renewal import RenewedBackend
from draftwood.backends.nodes import validation
from draftwood.backends.structure.context import end_of_positions, longrope_switch, recomputes_at_switch
from draftwood.backends.structure.layers import shared_copy
from draftwood.protocols import StateBackend


class PinnedRotaryEmbedding(torch.nn.Module):
    """A rotary embedding that rotates as in a text that ends before the switch, or as in one beyond it."""

    def __init__(self, rotary: torch.nn.Module, *, switch: int, long: bool) -> None:
        super().__init__()
        self.rotary, self.switch, self.long = rotary, switch, long

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines `[batch, n, rotated]` at `position_ids` `[batch, n]`; `x` says their dtype."""
        # The largest position decides how all are rotated.
        if not self.long:
            short: tuple[Tensor, Tensor] = self.rotary(x, position_ids.clamp(max=self.switch - 1))
            return short
        beyond = position_ids.new_full((*position_ids.shape[:-1], 1), self.switch)
        cosines, sines = self.rotary(x, torch.cat([position_ids, beyond], -1))
        return cosines[..., :-1, :], sines[..., :-1, :]


def with_longrope(model: Any, make: Callable[[Any], ModelBackend]) -> StateBackend:
    """The backend that `make` gives; two of them where `generate()` of `model` switches its rotation."""
    if recomputes_at_switch(model) and _rotaries(model):
        return LongRopeBackend(model, make)
    return make(model)


@attrs.define(eq=False)
class _LongRopeRow:
    """A batch row, and the text that the other backend would have to read.

    Attributes:
        length: committed tokens.
        prompt: `[length]` int64 that it joined with; empty once nobody needs the text.
        commits: of every commit since: the calls before it, the row's number in them, and the path.
    """

    length: int
    prompt: Tensor
    commits: list[tuple[list[_Call], int, list[int]]] = attrs.field(factory=list)

    def text(self) -> Tensor:
        """Its committed tokens `[length]`."""
        written = [
            tokens[node]
            for calls, row, path in self.commits
            for tokens in [_nodes(calls, row)[0]]
            for node in path
        ]
        return torch.cat([self.prompt.cpu(), torch.tensor(written, dtype=torch.int64)])


@attrs.frozen(eq=False)
class _Call:
    """The arguments of one `extend`: tokens and parents `[rows, nodes]`, and how many count."""

    tokens: Tensor
    parents: Tensor
    counts: list[int]

    def of(self, rows: list[int]) -> _Call:
        return _Call(self.tokens[rows], self.parents[rows], [self.counts[row] for row in rows])


class LongRopeBackend(RenewedBackend):
    """Keeps a text by its short rotation, by its long one, or, while a tree leads over the switch, by both.

    Both run on the same weights. What is short is as it was before the switch; what is long was read again
    from its beginning, once a text, as `generate()` does there. A row's neighbours do not matter to it.

    It keeps no features: after the switch, features of earlier tokens would have to be computed again.
    """

    def __init__(self, model: Any, make: Callable[[Any], ModelBackend]) -> None:
        """Serve `model`, a longrope model, by two backends that `make` gives.

        Raises:
            InvalidInput: as `make`.
            UnsupportedModel: as `make`.
        """
        switch = longrope_switch(model.config)
        assert switch is not None
        self._switch, self._make = switch, make
        self.made_by(model, lambda: LongRopeBackend(model, make))
        self._short, self._long = (make(_pinned(model, switch=switch, long=long)) for long in (False, True))
        self.max_length = end_of_positions(model)
        self._short.max_length = self._long.max_length = self.max_length
        inner = self._short
        self.model, self.device, self.chunk = model, inner.device, inner.chunk
        self.vocab_size, self.weight_bytes = inner.vocab_size, inner.weight_bytes
        self.eos_token_ids, self.pad_token_id = inner.eos_token_ids, inner.pad_token_id
        self.skippable_layers, self.hidden_size = inner.skippable_layers, inner.hidden_size
        self.gives_first_logits, self.ranks = inner.gives_first_logits, inner.ranks
        self._rows: list[_LongRopeRow] = []
        # The rows of either, in its order.
        self._in_short: list[_LongRopeRow] = []
        self._in_long: list[_LongRopeRow] = []
        self._calls: list[_Call] = []

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._short!r}, switch={self._switch}, lengths={self.lengths})"

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        return [row.length for row in self._rows]

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows; a text beyond the switch is rotated for its length from its beginning."""
        self._begin(rows, lambda backend, texts: backend.prefill(texts))

    def first_logits(self, rows: Sequence[Int[Tensor, " length"]]) -> Float[Tensor, "rows vocab"]:
        """Append rows and return the logits after each row's last token; a row has at least one."""
        parts: list[Tensor] = []
        order = self._begin(rows, lambda backend, texts: parts.append(backend.first_logits(texts)))
        return torch.cat(parts)[order]

    def _begin(self, rows: Sequence[Tensor], read: Callable[[StateBackend, list[Tensor]], None]) -> list[int]:
        """Let each backend `read` its rows; the place of every row, short ones counted before long ones."""
        texts = validation.as_rows(rows, vocab=self.vocab_size, longest=self.max_length)
        new = [_LongRopeRow(len(text), text) for text in texts]
        short = [row for row in new if row.length <= self._switch]
        long = [row for row in new if row.length > self._switch]
        have = len(self._in_short)
        read(self._short, [row.prompt for row in short])
        try:
            read(self._long, [row.prompt for row in long])
        except BaseException:
            self._short.release(range(have, have + len(short)))
            raise
        self._rows += new
        self._in_short += short
        self._in_long += long
        self._calls = [_padded(call, len(self._rows)) for call in self._calls]
        places = {id(row): place for place, row in enumerate([*short, *long])}
        return [places[id(row)] for row in new]

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all; later rows move up, uncommitted nodes and all."""
        keep = validation.remaining_rows(rows, have=len(self._rows))
        remaining = [self._rows[row] for row in keep]
        released = [row for row in self._rows if row not in remaining]
        self._leave(self._short, self._in_short, released)
        self._leave(self._long, self._in_long, released)
        self._rows, self._calls = remaining, [call.of(keep) for call in self._calls]

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Extend as `PackedBackend.extend` does; nodes beyond the switch see a text rotated so."""
        have = [sum(call.counts[row] for call in self._calls) for row in range(len(self._rows))]
        vocab = self.vocab_size
        call = _Call(*validation.as_nodes(tokens, parents, counts, have=have, vocab=vocab))
        positions = self._near(call, have)
        beyond = [self._rows[row] for row, at in positions.items() if max(at) >= self._switch]
        if joining := [row for row in beyond if row not in self._in_long]:
            self._join(joining)
        logits = self._run(call, positions)
        self._calls.append(call)
        return logits

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Commit as `PackedBackend.commit` does, with the same errors."""
        validation.check_paths(paths, rows=len(self._rows))
        if self._in_short and self._in_long:
            # What one backend refuses the other must not have committed.
            for index, path in enumerate(paths):
                validation.check_path(path, _nodes(self._calls, index)[1], row=index)
        path_of = {row: list(path) for row, path in zip(self._rows, paths, strict=True)}
        lengths = {row: row.length + len(path) for row, path in path_of.items()}
        past = [row for row in self._in_short if lengths[row] > self._switch]
        if self._in_short:
            self._short.commit([[] if row in past else path_of[row] for row in self._in_short])
        if self._in_long:
            self._long.commit([path_of[row] for row in self._in_long])
        self._leave(self._short, self._in_short, past)
        for index, row in enumerate(self._rows):
            row.length = lengths[row]
            if row in self._in_short and path_of[row]:
                row.commits.append((self._calls, index, path_of[row]))
            elif row not in self._in_short:
                row.prompt, row.commits = row.prompt[:0], []
        self._calls = []

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """Returns the backend of `ModelBackend.without_layers`, which switches too."""
        return LongRopeBackend(self._make(self.model).without_layers(layers).model, self._make)

    def _near(self, call: _Call, have: Sequence[int]) -> dict[int, list[int]]:
        """By row, the positions of the nodes of a new call, for rows that it may lead over the switch."""
        near = {}
        for index, row in enumerate(self._rows):
            new = call.counts[index]
            # Elsewhere nothing is read: to read what is on an accelerator would stall it.
            if new and row in self._in_short and row.length + have[index] + new > self._switch:
                positions: list[int] = []
                for parent in _nodes([*self._calls, call], index)[1]:
                    positions.append(row.length if parent < 0 else positions[parent] + 1)
                near[index] = positions[have[index] :]
        return near

    def _join(self, rows: list[_LongRopeRow]) -> None:
        """Let the long backend have `rows` too, with their uncommitted nodes."""
        texts, before = [row.text() for row in rows], list(self._in_long)
        self._long.commit([()] * len(before))
        try:
            self._long.prefill(texts)
            self._in_long += rows
            self._repeat(self._long, self._in_long)
        except BaseException:
            self._in_long = before
            self._long.release(range(len(before), len(self._long.lengths)))
            with suppress(Exception):
                self._repeat(self._long, before)
            raise

    def _run(self, call: _Call, positions: dict[int, list[int]]) -> Tensor:
        """Returns the logits of a call, each node's from the backend that has it."""
        if not self._in_long:
            return self._short.extend(call.tokens, call.parents, call.counts)
        if not self._in_short and self._in_long == self._rows:
            return self._long.extend(call.tokens, call.parents, call.counts)
        long = self._run_by(self._long, self._in_long, call)
        try:
            short = self._run_by(self._short, self._in_short, call)
        except BaseException:
            self._repeat(self._long, self._in_long)
            raise
        beyond = torch.zeros(call.tokens.shape, dtype=torch.bool)
        for index, row in enumerate(self._rows):
            beyond[index] = row not in self._in_short
        for index, at in positions.items():
            beyond[index, : len(at)] = torch.tensor(at) >= self._switch
        return torch.where(beyond.unsqueeze(2).to(long.device), long, short)

    def _run_by(self, backend: ModelBackend, rows: list[_LongRopeRow], call: _Call) -> Tensor:
        """Logits of a call by `backend`, `[rows, nodes, vocab]` with 0 for rows that it does not have."""
        indices = [self._rows.index(row) for row in rows]
        part = call.of(indices)
        new = backend.extend(part.tokens, part.parents, part.counts)
        logits = new.new_zeros(*call.tokens.shape, self.vocab_size)
        logits[indices] = new
        return logits

    def _repeat(self, backend: ModelBackend, rows: list[_LongRopeRow]) -> None:
        """Let `backend` have the nodes of the calls that came to an end, and no others."""
        backend.commit([()] * len(rows))
        for call in self._calls:
            part = call.of([self._rows.index(row) for row in rows])
            backend.extend(part.tokens, part.parents, part.counts)

    @staticmethod
    def _leave(backend: ModelBackend, rows: list[_LongRopeRow], released: Sequence[_LongRopeRow]) -> None:
        if indices := [index for index, row in enumerate(rows) if row in released]:
            backend.release(indices)
            rows[:] = [row for row in rows if row not in released]


def _nodes(calls: Sequence[_Call], row: int) -> tuple[list[int], list[int]]:
    """Tokens and parents of a row's uncommitted nodes."""
    tokens = [token for call in calls for token in call.tokens[row, : call.counts[row]].tolist()]
    parents = [parent for call in calls for parent in call.parents[row, : call.counts[row]].tolist()]
    return tokens, parents


def _padded(call: _Call, rows: int) -> _Call:
    """The call with more rows, of which no node counts."""
    more = rows - len(call.counts)
    # `torch.nn.functional.pad` of torch 2.7 refuses a call without nodes.
    new = more, call.tokens.shape[1]
    tokens = torch.cat([call.tokens, call.tokens.new_zeros(new)])
    parents = torch.cat([call.parents, call.parents.new_full(new, -1)])
    return _Call(tokens, parents, call.counts + [0] * more)


def _rotaries(model: Any) -> list[str]:
    """Dotted names of what rotates the text of a model."""
    text = model.config.get_text_config(decoder=True)
    return [
        name
        for name, module in model.named_modules()
        if type(module).__name__.endswith("RotaryEmbedding") and getattr(module, "config", None) is text
    ]


def _pinned(model: Any, *, switch: int, long: bool) -> Any:
    """A copy of `model` over the same weights whose rotation does not switch."""
    pinned = shared_copy(model)
    for name in _rotaries(model):
        parent, _, attribute = name.rpartition(".")
        rotary = pinned.get_submodule(name)
        setattr(
            pinned.get_submodule(parent), attribute, PinnedRotaryEmbedding(rotary, switch=switch, long=long)
        )
    return pinned
