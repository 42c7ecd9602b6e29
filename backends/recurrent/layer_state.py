"""`LayerState`: what one recurrent layer keeps during decoding: a committed state, and the nodes beyond it.

A layer keeps a few vectors for every uncommitted node, as attention keeps keys and values, and no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.arena import Arena
from draftwood.backends.recurrent.passes import Pass, Text

Vectors = tuple[Tensor, ...]
"""Vectors that nodes keep, each `[rows, nodes, ...]`."""


class LayerState(ABC):
    """The state of one layer, for every row. Abstract: a kind of layer says how it attends and replays.

    `run` appends nodes and gives their outputs; they stay once the pass is accepted. Nothing changes before.

    Attributes:
        name: of the mixer in the model.
        number: of the model's layer, counted from 0; None where the mixer does not say.
        kept_as: where a layer of a transformers cache has this state: `conv_states`, `recurrent_states`, or
            "" for nowhere.
        committed: the state `[rows, ...]`; None before the first pass, which shows its shape.
        nodes: what uncommitted nodes keep.
        arena: where both lie instead, for captured passes.
        traceable: whether `attend` can be traced: that it makes no tensor's shape, and no loop, hang on
            the values of another.
    """

    traceable = True
    kept_as = ""

    def __init__(self) -> None:
        self.name = ""
        self.number: int | None = None
        self.committed: Tensor | None = None
        self.nodes: Vectors = ()
        self.arena: Arena | None = None
        self._staged: Vectors = ()
        self._joining: Tensor | None = None
        # The state before any token, `[1, ...]`, once a pass has shown its shape.
        self._start: Tensor | None = None

    @property
    def not_converted(self) -> str | None:
        """Why no engine runs passes of such layers, following that word; None where one may."""
        return None if self.traceable else "whose passes go from level to level of a tree"

    @abstractmethod
    def blank(self, new: Vectors) -> Tensor:
        """The state before any token, for the rows, dtype and device of `new`."""

    def begin_state(self, new: Vectors) -> Tensor:
        """Returns `blank` as one tensor `[rows, ...]`, whose first row rows without text start from."""
        state = self.blank(new)
        self._start = state[:1]
        return state

    @abstractmethod
    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Outputs `[rows, nodes, ...]` of the new nodes, and what they keep.

        Args:
            state: committed, `[rows, ...]`.
            old: what older columns keep; empty where there are none.
            new: what the mixer gives for the new nodes.
            now: who sees whom.
        """

    @classmethod
    @abstractmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """The states of `layers` after committing the columns `kept`, bool `[rows, columns]`."""

    def replay(self, state: Tensor, nodes: Vectors, kept: Tensor) -> Tensor:
        """Runs `replay_all` for only this layer."""
        return self.replay_all([self], [state], [nodes], kept)[0]

    def run(self, new: Vectors, now: Pass) -> Tensor:
        """Append nodes and return their outputs."""
        if self.committed is None:
            self.committed = self.begin_state(new)
        out, self._staged = self.attend(self.committed, self.nodes, new, now)
        return out

    def shown(self, new: Vectors) -> Arena:
        """An arena without rows for what nodes like `new` keep."""
        one = tuple(vector[:1, :1] for vector in new)
        visible = torch.ones(1, 1, 1, dtype=torch.bool, device=new[0].device)
        state = self.begin_state(one)
        _, kept = self.attend(state, (), one, Pass(visible))
        return Arena(state, kept)

    def read(self, state: Tensor, new: Vectors, text: Text) -> tuple[Tensor, Tensor]:
        """Returns outputs of the next tokens of rows that will join, and the state after their text."""
        outputs, start = [], 0
        for now, kept in text.pieces:
            stop = start + kept.shape[1]
            out, nodes = self.attend(state, (), tuple(vector[:, start:stop] for vector in new), now)
            state = self.replay(state, nodes, kept)
            outputs.append(out)
            start = stop
        return torch.cat(outputs, 1), state

    def run_text(self, new: Vectors, text: Text) -> Tensor:
        """Outputs of rows that are about to join."""
        state = self.begin_state(new) if self._joining is None else self._joining
        out, self._joining = self.read(state, new, text)
        return out

    @property
    def device(self) -> torch.device:
        """Where the layer is, once a pass has shown that."""
        # Of a captured pass no shape may hang on the rows that there are.
        held = self.committed if self.arena is None else self.arena.state
        assert held is not None
        return held.device

    def held(self, *, rows: int, columns: int) -> tuple[Tensor, Vectors]:
        """The committed state, and what the uncommitted columns keep, of which there are so many."""
        if self.arena is None:
            assert self.committed is not None
            return self.committed, self.nodes
        return self.arena.state[:rows], tuple([vector[:rows, :columns] for vector in self.arena.vectors])

    def place(self, rows: int) -> Tensor:
        """Where the committed state of so many rows lies in the arena."""
        assert self.arena is not None
        if self.committed is None or len(self.committed) != rows:
            self.committed = self.arena.state[:rows]
        return self.committed

    def stage(self, new: Vectors) -> None:
        """Take over what the nodes of a pass keep that ran elsewhere."""
        self._staged = new

    def accept(self) -> None:
        """The pass succeeded: its nodes stay."""
        self.nodes = grown(self.nodes, self._staged)
        self._staged = ()

    def forget(self) -> None:
        """Forget the nodes of the pass."""
        self._staged = ()

    def drop(self) -> None:
        """Forget all nodes."""
        self.nodes = self._staged = ()

    def begin(self) -> None:
        """Rows are about to join; what failed to join before is forgotten."""
        self._joining = None

    def adopted(self, state: Tensor) -> Tensor:
        """Returns a state of a transformers cache, from `kept_as`, as this layer keeps it."""
        raise NotImplementedError(f"{type(self).__name__} has no kept_as.")

    def join(self, state: Tensor) -> None:
        """Rows with this state `[rows, ...]` are about to join."""
        self._joining = state

    def joined(self, have: int, more: int) -> Tensor | None:
        """Returns the committed state once `more` rows follow the `have` present ones."""
        old, new = self.committed, self._joining
        like = old if old is not None else new
        if like is None and self.arena is not None:
            like = self.arena.state
        if like is None:
            return None
        start = like.new_zeros(1, *like.shape[1:]) if self._start is None else self._start
        blank = [start.to(like).expand(rows, *like.shape[1:]) for rows in (have, more)]
        return torch.cat([blank[0] if old is None else old, blank[1] if new is None else new])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in ascending order."""
        if self.arena is not None and self.committed is not None:
            self.arena.keep(rows)
            self.committed = self.arena.state[: len(rows)] if rows else None
        elif self.committed is not None:
            self.committed = self.committed[list(rows)] if rows else None
        self.nodes = tuple(vector[list(rows)] for vector in self.nodes) if rows else ()


def grown(old: Vectors, new: Vectors) -> Vectors:
    """Returns older columns followed by the new ones."""
    return tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True)) if old else new
