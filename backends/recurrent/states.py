"""The states of a model's recurrent layers during decoding: one committed state, and the nodes beyond it.

A layer keeps a few vectors for every uncommitted node, as attention keeps keys and values, and no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.region import Accepted
from draftwood.backends.recurrent.arena import Arena
from draftwood.backends.recurrent.passes import Pass, Standing, Text
from draftwood.base.errors import InvalidDistribution
from draftwood.kernels.transfer import sent

Vectors = tuple[Tensor, ...]
"""What nodes keep, each `[rows, nodes, ...]`."""

Chosen = NDArray[np.bool_]
"""Columns of every row that are accepted, `[rows, columns]`."""


class LayerState(ABC):
    """The state of one layer, for every row. Abstract: a kind of layer says how it attends and replays.

    `run` appends nodes and gives their outputs; they stay once the pass is accepted. Nothing changes before.

    Attributes:
        name: of the mixer in the model.
        committed: the state `[rows, ...]`; None before the first pass, which shows its shape.
        nodes: what uncommitted nodes keep.
        arena: where both lie instead, for captured passes.
        traceable: whether `attend` can be traced: that it makes no tensor's shape, and no loop, hang on
            the values of another.
    """

    traceable = True

    def __init__(self) -> None:
        self.name = ""
        self.committed: Tensor | None = None
        self.nodes: Vectors = ()
        self.arena: Arena | None = None
        self._staged: Vectors = ()
        self._joining: Tensor | None = None
        # The state before any token, `[1, ...]`, once a pass has shown its shape.
        self._start: Tensor | None = None

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

    def run_standing(self, new: Vectors, now: Standing) -> Tensor:
        """Outputs of the nodes of a captured pass, whose vectors go into the arena; for tracing."""
        assert self.arena is not None
        vectors = self.arena.vectors
        old = tuple([vector[:, : now.old] for vector in vectors]) if now.old else ()
        out, kept = self.attend(self.arena.state, old, new, now.now)
        for place, vector in zip(vectors, kept, strict=True):
            # Autocast may have made them narrower.
            place.index_copy_(1, now.columns, vector.to(place.dtype))
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
        """Keep these rows only, in this order."""
        if self.arena is not None and self.committed is not None:
            self.arena.keep(rows)
            self.committed = self.arena.state[: len(rows)] if rows else None
        elif self.committed is not None:
            self.committed = self.committed[list(rows)] if rows else None
        self.nodes = tuple(vector[list(rows)] for vector in self.nodes) if rows else ()


def grown(old: Vectors, new: Vectors) -> Vectors:
    """Returns older columns followed by the new ones."""
    return tuple(torch.cat(pair, 1) for pair in zip(old, new, strict=True)) if old else new


class States:
    """The states of all recurrent layers of one model, which share what a pass says of the tree.

    Attributes:
        layers: in the order in which they run.
        may_overflow: whether states are looked at for infinities before they are taken over, which costs an
            accelerator one stall a commit. For half precision with five bits of exponent.
        standing: what the layers of a captured pass share, while that is traced.
    """

    def __init__(
        self, wrap: Callable[[LayerState], LayerState] = lambda layer: layer, *, standing: bool = False
    ) -> None:
        """Without layers.

        Args:
            wrap: what every layer goes through when it is added.
            standing: whether what layers keep is to lie in arenas, once their first pass has shown its shape.
        """
        self.layers: list[LayerState] = []
        self.may_overflow = False
        self.standing: Standing | None = None
        self._arenas: dict[LayerState, Arena] | None = {} if standing else None
        self._size = (0, 0)
        self._wrap = wrap
        self._now: Pass | None = None
        self._text: Text | None = None
        self._keep = True

    def add(self, layer: LayerState) -> LayerState:
        """Keep `layer` with the others; returns what its mixer is to run."""
        self.layers.append(self._wrap(layer))
        return self.layers[-1]

    def run(self, layer: LayerState, *new: Tensor) -> Tensor:
        """Returns the mixer's outputs for the inputs of `layer` in the current pass."""
        if self.standing is not None:
            return layer.run_standing(new, self.standing)
        if self._arenas is not None and layer not in self._arenas:
            self._arenas[layer] = layer.shown(new)
        if self._now is None:
            assert self._text is not None
            return layer.run_text(new, self._text.on(new[0].device))
        out = layer.run(new, self._now.on(new[0].device))
        if not self._keep:
            layer.forget()
        return out

    @property
    def settled(self) -> bool:
        """Whether all that layers keep lies where captured passes find it."""
        return all(layer.arena is not None for layer in self.layers)

    def lay_out(self, *, rows: int, columns: int) -> bool:
        """Make the arenas, if their shapes are known, exactly so large; on failure nothing has changed.

        Returns:
            Whether they are others now.
        """
        arenas = self._arenas
        if not arenas or len(arenas) < len(self.layers) or self._size == (rows, columns):
            return False
        for layer, arena in arenas.items():
            arena.prepare(rows=rows, columns=columns, state=layer.committed, vectors=layer.nodes)
        for layer, arena in arenas.items():
            arena.lay_out()
            layer.arena, layer.nodes = arena, ()
            if layer.committed is not None:
                layer.committed = arena.state[: len(layer.committed)]
        self._size = rows, columns
        return True

    def begin(self) -> None:
        """Rows are about to join."""
        for layer in self.layers:
            layer.begin()

    def prefill(
        self, counts: Sequence[int], width: int, device: torch.device, *, mask: Tensor | None = None
    ) -> None:
        """The next pass holds `width` tokens of every joining row, of which so many are text.

        Args:
            counts: for every row.
            width: of the pass.
            device: where the counts go.
            mask: bool `[rows, width]`, False for tokens that a prompt hides; None: none.
        """
        self._now, self._text = None, Text(counts, width, device, mask=mask)

    def unmasked(self, values: Tensor) -> Tensor:
        """Returns `values` `[rows, nodes, ...]` of the pass, with zeros for tokens that a prompt hides."""
        if self.standing is not None or self._now is not None or self._text is None:
            return values
        mask = self._text.on(values.device).mask
        return values if mask is None else torch.where(mask.unsqueeze(2), values, 0.0)

    def joined(self, have: int, more: int) -> list[Tensor | None]:
        """All committed states once the rows have joined, for `settle`."""
        return self._finite([layer.joined(have, more) for layer in self.layers])

    def extend(self, visible: Tensor, *, prompts: Tensor, keep: bool = True) -> None:
        """The next pass appends nodes, or scores them only.

        Args:
            visible: bool `[rows, nodes, columns]`.
            prompts: bool `[rows, nodes]`, the nodes that are tokens of a prompt.
            keep: whether the nodes stay.
        """
        self._now, self._keep = Pass(visible, prompts), keep

    def prompts(self, device: torch.device) -> Tensor | None:
        """Returns which nodes of the pass belong to a prompt, bool `[rows, nodes]`; None if all do."""
        if self.standing is not None:
            return self.standing.now.prompts
        return None if self._now is None else self._now.on(device).prompts

    def accept(self) -> None:
        """The pass succeeded."""
        for layer in self.layers:
            layer.accept()

    def replayed(
        self,
        accepted: Accepted,
        columns: int,
        *,
        by: Callable[[Chosen], Sequence[Tensor] | None],
    ) -> list[Tensor | None]:
        """All committed states after a commit of these nodes, of so many columns, for `settle`.

        Args:
            accepted: the nodes.
            columns: uncommitted ones.
            by: what may give them instead of `replay`.
        """
        if not len(accepted.rows):
            return [layer.committed for layer in self.layers]
        chosen = np.zeros((len(accepted.counts), columns), np.bool_)
        chosen[accepted.rows, accepted.columns] = True
        if (states := by(chosen)) is not None:
            return self._finite(list(states))
        devices = {layer.device for layer in self.layers}
        return self._finite([*self.replay({device: sent(chosen, device) for device in devices})])

    def replay(self, kept: dict[torch.device, Tensor]) -> list[Tensor]:
        """All committed states after a commit of the columns `kept`, bool `[rows, columns]` by device."""
        # Layers of a kind on one device are replayed together, in as many launches as one of them.
        alike: dict[tuple[type[LayerState], torch.device], list[int]] = {}
        for index, layer in enumerate(self.layers):
            alike.setdefault((type(layer), layer.device), []).append(index)
        replayed: dict[int, Tensor] = {}
        for (kind, device), indices in alike.items():
            layers = [self.layers[index] for index in indices]
            seen = kept[device]
            held = [layer.held(rows=len(seen), columns=seen.shape[1]) for layer in layers]
            states, nodes = [state for state, _ in held], [vectors for _, vectors in held]
            replayed |= dict(zip(indices, kind.replay_all(layers, states, nodes, seen), strict=True))
        return [replayed[index] for index in range(len(self.layers))]

    def settle(self, committed: Sequence[Tensor | None]) -> None:
        """Take over what `joined` or `replayed` gave, and drop all nodes."""
        pairs = list(zip(self.layers, committed, strict=True))
        if self.settled:
            new = [
                (layer, state) for layer, state in pairs if state is not None and state is not layer.committed
            ]
            if new:
                places = [layer.place(len(state)) for layer, state in new]
                torch._foreach_copy_(places, [state for _, state in new])
        else:
            for layer, state in pairs:
                layer.committed = state
        for layer in self.layers:
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
