"""What the recurrent layers of a model keep during decoding: one committed state, and the nodes beyond it.

A layer keeps a few vectors for every uncommitted node, as attention keeps keys and values, and no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from draftwood.backends.region import Accepted
from draftwood.errors import InvalidDistribution
from draftwood.kernels.mamba1_tree import dispatch as mamba1_tree
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_conv import dispatch as tree_conv

PIECE = 64
"""Tokens of a prompt that a layer takes at once, as a tree that is one chain."""

Vectors = tuple[Tensor, ...]
"""What nodes keep, each `[rows, nodes, ...]`."""


class Pass:
    """Who sees whom in a pass, worked out once for all layers.

    Attributes:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
        paths: of the nodes; see `mamba1_tree`.
    """

    def __init__(self, visible: Tensor) -> None:
        self.visible = visible
        self.paths = mamba1_tree.Paths(visible)
        self._windows: dict[int, Tensor] = {}

    @property
    def levels(self) -> list[tuple[Tensor, Tensor]]:
        """The new nodes, those below older columns or none first, then their children; see `mamba1_tree`."""
        return self._new_paths.levels

    @cached_property
    def above(self) -> Tensor:
        """1 + the nearest older column that a new node sees, int64 `[rows, nodes]`; 0 where it sees none."""
        old = self.visible[..., : -self.visible.shape[1]]
        columns = torch.arange(old.shape[-1] + 1, device=old.device)
        return torch.where(torch.nn.functional.pad(old, (1, 0)), columns, 0).amax(-1)

    @cached_property
    def _new_paths(self) -> mamba1_tree.Paths:
        return mamba1_tree.Paths(self.visible[..., -self.visible.shape[1] :])

    def window(self, width: int) -> Tensor:
        """Indices `[rows, nodes, width]` of a convolution's inputs; see `tree_conv`."""
        if width not in self._windows:
            self._windows[width] = tree_conv.windows(visible=self.visible, width=width)
        return self._windows[width]


class Text:
    """Tokens of rows that are about to join, worked out once for all layers.

    Attributes:
        counts: how many of the pass are text, int64 `[rows]`; the others are padding behind it.
        whole: whether all are.
    """

    def __init__(self, counts: Sequence[int], tokens: int, device: torch.device) -> None:
        self.counts = torch.tensor(counts, device=device)
        self.whole = min(counts) == tokens
        self._tokens = tokens

    @cached_property
    def kept(self) -> Tensor:
        """Which tokens are text, bool `[rows, tokens]`."""
        return torch.arange(self._tokens, device=self.counts.device) < self.counts.unsqueeze(1)

    @cached_property
    def pieces(self) -> list[tuple[Pass, Tensor]]:
        """The tokens in trees that are chains, each with those that are text."""
        rows, pieces = len(self.counts), list[tuple[Pass, Tensor]]()
        chain: Pass | None = None
        for kept in self.kept.split(PIECE, 1):
            n = kept.shape[1]
            if chain is None or chain.visible.shape[1] != n:
                visible = torch.ones(n, n, dtype=torch.bool, device=kept.device).tril()
                chain = Pass(visible.expand(rows, n, n))
            pieces.append((chain, kept))
        return pieces


class LayerState(ABC):
    """The state of one layer, for every row. Abstract: a kind of layer says how it attends and replays.

    `run` appends nodes and gives their outputs; they stay once the pass is accepted. Nothing changes before.

    Attributes:
        name: of the mixer in the model.
        committed: the state `[rows, ...]`; None before the first pass, which shows its shape.
        nodes: what uncommitted nodes keep.
    """

    def __init__(self) -> None:
        self.name = ""
        self.committed: Tensor | None = None
        self.nodes: Vectors = ()
        self._staged: Vectors = ()
        self._joining: Tensor | None = None

    @abstractmethod
    def blank(self, new: Vectors) -> Tensor:
        """The state before any token, for the rows, dtype and device of `new`."""

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
        """`replay_all` of this layer alone."""
        return self.replay_all([self], [state], [nodes], kept)[0]

    def run(self, new: Vectors, now: Pass) -> Tensor:
        """Append nodes and return their outputs."""
        if self.committed is None:
            self.committed = self.blank(new)
        out, self._staged = self.attend(self.committed, self.nodes, new, now)
        return out

    def read(self, state: Tensor, new: Vectors, text: Text) -> tuple[Tensor, Tensor]:
        """Outputs of the next tokens of rows that are about to join, and the state behind their text."""
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
        state = self.blank(new) if self._joining is None else self._joining
        out, self._joining = self.read(state, new, text)
        return out

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

    def joined(self, have: int, more: int) -> Tensor | None:
        """The committed state once `more` rows stand behind the `have` that are there."""
        old, new = self.committed, self._joining
        like = old if old is not None else new
        if like is None:
            return None
        blank = [like.new_zeros(rows, *like.shape[1:]) for rows in (have, more)]
        return torch.cat([blank[0] if old is None else old, blank[1] if new is None else new])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        if self.committed is not None:
            self.committed = self.committed[list(rows)] if rows else None
        self.nodes = tuple(vector[list(rows)] for vector in self.nodes) if rows else ()


def grown(old: Vectors, new: Vectors) -> Vectors:
    """Older columns with the new ones behind them."""
    return tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True)) if old else new


class States:
    """The states of all recurrent layers of one model, which share what a pass says of the tree.

    Without layers, every call is idle.

    Attributes:
        layers: in the order in which they run.
        may_overflow: whether states are looked at for infinities before they are taken over, which costs an
            accelerator one stall a commit. For half precision with five bits of exponent.
    """

    def __init__(self, wrap: Callable[[LayerState], LayerState] = lambda layer: layer) -> None:
        """Without layers.

        Args:
            wrap: what every layer goes through when it is added.
        """
        self.layers: list[LayerState] = []
        self.may_overflow = False
        self._wrap = wrap
        self._now: Pass | None = None
        self._text: Text | None = None
        self._keep = True
        self._fresh: Tensor | None = None

    def add(self, layer: LayerState) -> LayerState:
        """Keep `layer` with the others; returns what its mixer is to run."""
        self.layers.append(self._wrap(layer))
        return self.layers[-1]

    def run(self, layer: LayerState, *new: Tensor) -> Tensor:
        """What the mixer of `layer` gets for what it gives, in the current pass."""
        if self._now is None:
            assert self._text is not None
            return layer.run_text(new, self._text)
        out = layer.run(new, self._now)
        if not self._keep:
            layer.forget()
        return out

    def begin(self) -> None:
        """Rows are about to join."""
        for layer in self.layers:
            layer.begin()

    def prefill(self, start: int, width: int, lengths: Sequence[int], device: torch.device) -> None:
        """The next pass holds tokens `[start, start + width)` of joining rows of these lengths."""
        if not self.layers:
            return
        counts = [min(max(length - start, 0), width) for length in lengths]
        self._now, self._text = None, Text(counts, width, device)

    def joined(self, have: int, more: int) -> list[Tensor | None]:
        """All committed states once the rows have joined, for `settle`."""
        return self._finite([layer.joined(have, more) for layer in self.layers])

    def extend(self, visible: Tensor | None, *, fresh: Tensor | None, keep: bool = True) -> None:
        """The next pass appends nodes, or scores them only.

        Args:
            visible: bool `[rows, nodes, columns]`; None where there are no layers.
            fresh: bool `[rows]`, whether a row has committed nothing since it joined: a root is then the last
                token of its prompt.
            keep: whether the nodes stay.
        """
        self._now, self._keep, self._fresh = None if visible is None else Pass(visible), keep, fresh

    @property
    def prompts(self) -> Tensor | None:
        """Which nodes of the current pass belong to a prompt, bool `[rows, nodes]`; None where all do."""
        if self._now is None:
            return None
        assert self._fresh is not None
        return self._fresh.unsqueeze(1) & (self._now.visible.sum(2) == 1)

    def accept(self) -> None:
        """The pass succeeded."""
        for layer in self.layers:
            layer.accept()

    def replayed(self, accepted: Accepted, columns: int) -> list[Tensor | None]:
        """All committed states after a commit of these nodes, of so many columns, for `settle`."""
        if not self.layers or not len(accepted.rows):
            return [layer.committed for layer in self.layers]
        chosen = np.zeros((len(accepted.counts), columns), np.bool_)
        chosen[accepted.rows, accepted.columns] = True
        # Layers of a kind on one device are replayed together, in as many launches as one of them.
        alike: dict[tuple[type[LayerState], torch.device], list[int]] = {}
        for index, layer in enumerate(self.layers):
            assert layer.committed is not None
            alike.setdefault((type(layer), layer.committed.device), []).append(index)
        kept = {device: sent(chosen, device) for device in {device for _, device in alike}}
        replayed: dict[int, Tensor | None] = {}
        for (kind, device), indices in alike.items():
            layers = [self.layers[index] for index in indices]
            states = [layer.committed for layer in layers if layer.committed is not None]
            new = kind.replay_all(layers, states, [layer.nodes for layer in layers], kept[device])
            replayed |= dict(zip(indices, new, strict=True))
        return self._finite([replayed[index] for index in range(len(self.layers))])

    def settle(self, committed: Sequence[Tensor | None]) -> None:
        """Take over what `joined` or `replayed` gave, and drop all nodes."""
        for layer, state in zip(self.layers, committed, strict=True):
            layer.committed = state
            layer.drop()
            layer.begin()

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        for layer in self.layers:
            layer.keep(rows)

    def _finite(self, states: list[Tensor | None]) -> list[Tensor | None]:
        pairs = [
            (layer, state) for layer, state in zip(self.layers, states, strict=True) if state is not None
        ]
        if not self.may_overflow or not pairs:
            return states
        device = pairs[0][1].device
        finite = torch.stack([state.isfinite().all().to(device) for _, state in pairs]).tolist()
        for (layer, _), is_finite in zip(pairs, finite, strict=True):
            if not is_finite:
                raise InvalidDistribution(
                    f"The state of {layer.name} is no longer finite in float16; load the model in bfloat16 "
                    "or float32."
                )
        return states
