"""The states of recurrent layers as inputs of a converted pass, and what its nodes keep as outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import attrs
import torch
from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState, Vectors
from draftwood.backends.recurrent.mixer import Mixer
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.states import States
from draftwood.backends.recurrent.traced import Traced


@attrs.frozen
class TensorKind:
    """Sizes of a tensor, without rows and nodes, and its dtype."""

    sizes: tuple[int, ...]
    dtype: torch.dtype

    def zeros(self, *first: int) -> Tensor:
        """Returns zeros of these first sizes, and then of `sizes`."""
        return torch.zeros(*first, *self.sizes, dtype=self.dtype)


@attrs.frozen
class Recurrent:
    """The states and vectors that the recurrent layers of a pass keep.

    Attributes:
        layers: for every layer the kind of its committed state, and the kinds of the vectors of a node.
    """

    layers: tuple[tuple[TensorKind, tuple[TensorKind, ...]], ...] = ()

    @property
    def states(self) -> list[TensorKind]:
        """The kinds of all committed states."""
        return [state for state, _ in self.layers]

    @property
    def vectors(self) -> list[TensorKind]:
        """The kinds of all vectors, layer by layer."""
        return [vector for _, vectors in self.layers for vector in vectors]

    @property
    def stacks(self) -> list[TensorKind]:
        """The kinds of vectors, each once: of a kind a pass gives one output for all layers."""
        return list(dict.fromkeys(self.vectors))

    def by_layer(self, vectors: Sequence[Tensor]) -> Iterator[Vectors]:
        """Yields `vectors`, one for each of `self.vectors`, layer by layer."""
        left = iter(vectors)
        for _, kinds in self.layers:
            yield tuple(next(left) for _ in kinds)

    def stacked(self, added: Sequence[Vectors]) -> list[Tensor]:
        """Returns vectors of all layers as `[layers, rows, nodes, ...]`, one for each of `stacks`."""
        tensors = list(zip((one for each in added for one in each), self.vectors, strict=True))
        return [torch.stack([one for one, kind in tensors if kind == stack]) for stack in self.stacks]

    def room(self, *, rows: int, nodes: int) -> list[Tensor]:
        """Returns where a pass can leave what `stacked` gives, in memory that is new in every call."""
        return [kind.zeros(self.vectors.count(kind), rows, nodes) for kind in self.stacks]

    def unstacked(self, stacks: Sequence[Tensor]) -> list[Vectors]:
        """Returns the vectors of every layer, of what `stacked` has given."""
        left = {kind: iter(stack) for kind, stack in zip(self.stacks, stacks, strict=True)}
        return list(self.by_layer([next(left[kind]) for kind in self.vectors]))


def has_foreign_mixers(module: torch.nn.Module) -> bool:
    """Whether mixers of other packages run, whose code no digest covers."""
    mixers = (type(part) for part in module.modules() if isinstance(part, Mixer))
    return any(not kind.__module__.startswith("draftwood.") for kind in mixers)


def states_of(module: torch.nn.Module) -> States | None:
    """The states that the mixers of `module` share; None where it has no mixers."""
    return next((part.states for part in module.modules() if isinstance(part, Mixer)), None)


class Shown(Traced):
    """Rows without text, whose pass shows what layers keep."""

    def __init__(self, states: States, visible: Tensor, prompts: Tensor) -> None:
        """A pass of the layers of `states`."""
        self.now, self._states = Pass(visible, prompts), states
        self._kinds: dict[LayerState, tuple[TensorKind, tuple[TensorKind, ...]]] = {}

    def run(self, layer: LayerState, new: Vectors) -> Tensor:
        """Returns the outputs of the nodes."""
        state = layer.begin_state(new)
        out, kept = layer.attend(state, (), new, self.now)
        vectors = tuple(TensorKind(tuple(one.shape[2:]), one.dtype) for one in kept)
        self._kinds[layer] = TensorKind(tuple(state.shape[1:]), state.dtype), vectors
        return out

    def read(self) -> AbstractContextManager[None]:
        """Inside it the layers run by this pass."""
        return self._states.traced_by(self)

    def recurrent(self) -> Recurrent:
        """Returns what all layers keep, once they have run."""
        return Recurrent(tuple(self._kinds[layer] for layer in self._states.layers))


class Given(Traced):
    """States that are inputs of a pass, whose outputs are the vectors that new nodes keep."""

    def __init__(self, states: States, recurrent: Recurrent, given: Sequence[Tensor]) -> None:
        """A pass of the layers of `states`.

        Args:
            states: of the function that is converted.
            recurrent: what its layers keep.
            given: inputs of `PassFunction`, from what nodes see of columns on.
        """
        visible, prompts, *held = given
        self.now, self._states, self._recurrent = Pass(visible, prompts), states, recurrent
        count = len(recurrent.layers)
        by_layer = zip(states.layers, held[:count], recurrent.by_layer(held[count:]), strict=True)
        self._held = {layer: (state, old) for layer, state, old in by_layer}
        self._added: dict[LayerState, Vectors] = {}

    def run(self, layer: LayerState, new: Vectors) -> Tensor:
        """Returns the outputs of the nodes."""
        state, old = self._held[layer]
        out, self._added[layer] = layer.attend(state, old, new, self.now)
        return out

    def read(self) -> AbstractContextManager[None]:
        """Inside it the layers run by this pass."""
        return self._states.traced_by(self)

    def stacked(self) -> list[Tensor]:
        """Returns the vectors that the nodes keep, once all layers have run; see `Recurrent.stacked`."""
        return self._recurrent.stacked([self._added[layer] for layer in self._states.layers])
