"""The states of a model's recurrent layers during decoding, which share what a pass says of the tree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.region import Accepted
from draftwood.backends.recurrent.arena import Arena
from draftwood.backends.recurrent.layer_state import LayerState
from draftwood.backends.recurrent.passes import Pass, Text
from draftwood.backends.recurrent.traced import Traced
from draftwood.base.errors import InvalidDistribution
from draftwood.kernels.transfer import sent

Chosen = NDArray[np.bool_]
"""Columns of every row that are accepted, `[rows, columns]`."""


class States:
    """The states of all recurrent layers of one model, which share what a pass says of the tree.

    Attributes:
        layers: in the order in which they run.
        may_overflow: whether states are looked at for infinities before they are taken over, which costs an
            accelerator one stall a commit. For half precision with five bits of exponent.
        traced: what the layers read and leave in a pass, while that is traced.
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
        self.traced: Traced | None = None
        self._arenas: dict[LayerState, Arena] | None = {} if standing else None
        self._size = (0, 0)
        self._wrap = wrap
        self._now: Pass | None = None
        self._text: Text | None = None
        self._keep = True
        self._reads_prompt = True

    def add(self, layer: LayerState) -> LayerState:
        """Keep `layer` with the others; returns what its mixer is to run."""
        self.layers.append(self._wrap(layer))
        return self.layers[-1]

    def run(self, layer: LayerState, *new: Tensor) -> Tensor:
        """Returns the mixer's outputs for the inputs of `layer` in the current pass."""
        if self.traced is not None:
            return self.traced.run(layer, new)
        if self._arenas is not None and layer not in self._arenas:
            self._arenas[layer] = layer.shown(new)
        if self._now is None:
            assert self._text is not None
            return layer.run_text(new, self._text.on(new[0].device))
        out = layer.run(new, self._now.on(new[0].device))
        if not self._keep:
            layer.forget()
        return out

    @contextmanager
    def traced_by(self, traced: Traced) -> Iterator[None]:
        """Inside it layers run by `traced`."""
        self.traced = traced
        try:
            yield
        finally:
            self.traced = None

    @property
    def committed(self) -> list[Tensor]:
        """The committed states of the layers that have one: all, once rows have joined or a pass has run."""
        return [layer.committed for layer in self.layers if layer.committed is not None]

    @property
    def shown(self) -> bool:
        """Whether all layers have a committed state."""
        return len(self.committed) == len(self.layers)

    def forget(self) -> None:
        """Forget the nodes of the pass."""
        for layer in self.layers:
            layer.forget()

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
        self,
        counts: Sequence[int],
        width: int,
        device: torch.device,
        *,
        mask: Tensor | None = None,
        prompt: bool = True,
    ) -> None:
        """The next pass holds `width` tokens of every joining row, of which so many are text.

        Args:
            counts: for every row.
            width: of the pass.
            device: where the counts go.
            mask: bool `[rows, width]`, False for tokens that a prompt hides; None: none.
            prompt: whether they are tokens of a prompt, for `prompts`.
        """
        self._now, self._text, self._reads_prompt = None, Text(counts, width, device, mask=mask), prompt

    def unmasked(self, values: Tensor) -> Tensor:
        """Returns `values` `[rows, nodes, ...]` of the pass, with zeros for tokens that a prompt hides."""
        if self.traced is not None or self._now is not None or self._text is None:
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
        if self.traced is not None:
            return self.traced.now.prompts
        if self._now is None:
            return None if self._reads_prompt else torch.zeros(1, 1, dtype=torch.bool, device=device)
        return self._now.on(device).prompts

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
        """Keep these rows only, in ascending order."""
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
