"""The pass of a model as a pure function of tensors, which an engine can convert."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import logging as hf_logging

from draftwood.backends.attention.kv import BufferKind, RowCache, RowLayer
from draftwood.backends.model.content_digest import content_digest
from draftwood.backends.model.features import Features
from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.openvino.given import BY_KEY_HEAD, GivenCache, Pair
from draftwood.backends.openvino.recurrent import Given, Recurrent, Shown, has_foreign_mixers, states_of
from draftwood.backends.openvino.rotary import Rotations
from draftwood.backends.structure.layers import shared_copy
from draftwood.base.errors import UnsupportedModel

UNSEEN = -1e30
"""What masks add to the score of a key that a node does not see; a line of -inf would give NaN."""

ROWS, NODES, SLOTS, WANTED, OLD = 2, 5, 7, 3, 4
"""Sizes of an example, which all differ: a function that mistakes one for another gives itself away."""

TREE = [0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]
"""For every node of an example, the nodes that it sees."""


@attrs.frozen
class Past:
    """The keys and values that a pass is given.

    Attributes:
        layers: the kinds of the keys and of the values of every layer; None for a layer that keeps none.
    """

    layers: tuple[tuple[BufferKind, BufferKind] | None, ...]

    @classmethod
    def of(cls, cache: RowCache) -> Past:
        """Returns the past of `cache`, which is settled."""
        found = []
        for layer in cache.layers:
            held = layer.kinds if isinstance(layer, RowLayer) else {}
            found.append((held["keys"], held["values"]) if held else None)
        return cls(tuple(found))

    @property
    def buffers(self) -> list[BufferKind]:
        """The kinds of all buffers: the keys and the values of every layer in turn."""
        return [kind for pair in self.layers if pair is not None for kind in pair]

    @property
    def arenas(self) -> list[BufferKind]:
        """The kinds of the arenas of `RowCache`, in their order."""
        return list(dict.fromkeys(self.buffers))

    def paired(self, buffers: Sequence[Tensor]) -> list[Pair | None]:
        """Returns `buffers`, one for each of `self.buffers`, layer by layer."""
        left = iter(buffers)
        return [None if pair is None else (next(left), next(left)) for pair in self.layers]

    def added(self, kind: BufferKind, *, rows: int, nodes: int) -> tuple[int, int, int, int]:
        """Returns the sizes of what an arena gets, `[rows, buffers * kv_heads, nodes, head_dim]`."""
        return rows, self.buffers.count(kind) * kind.heads, nodes, kind.dim

    @staticmethod
    def as_arena(kind: BufferKind, added: NDArray[Any]) -> NDArray[Any]:
        """Returns a view of that, `[buffers, rows, kv_heads, nodes, head_dim]` as arenas are."""
        return np.moveaxis(added.reshape(len(added), -1, kind.heads, *added.shape[2:]), 1, 0)

    def stacked(self, added: Sequence[Pair]) -> list[Tensor]:
        """Returns `added` keys and values `[rows, kv_heads, nodes, head_dim]`, by arena, as `added` says."""
        tensors = [tensor for pair in added for tensor in pair]
        stacks = []
        for arena in self.arenas:
            of_kind = zip(tensors, self.buffers, strict=True)
            stacks.append(torch.cat([one.to(arena.dtype) for one, kind in of_kind if kind == arena], 1))
        return stacks


class PassFunction(torch.nn.Module):
    """The pass as a function of `tokens, positions, wanted, masks, rotations, past` to logits and new keys.

    Inputs, in this order:

    - tokens and positions, int64 `[rows, nodes]`;
    - wanted, int64 `[wanted]`: the nodes whose logits are given;
    - for every kind of attention layer a mask, added to scores, float32 `[rows, 1, nodes, slots + nodes]`;
    - for every table of `rotations` cosines and sines, float32 `[2, rows, nodes, width]`;
    - for every buffer of `past` its keys or values, `[rows, kv_heads, slots, head_dim]`;
    - where layers are recurrent, the columns that a node sees, bool `[rows, nodes, old + nodes]`, and the
      nodes that are tokens of a prompt, bool `[rows, nodes]`; then the committed states of all layers,
      `[rows, ...]`, and all vectors of older columns, `[rows, old, ...]`.

    It gives logits `[rows, wanted, vocab]`, features `[rows, nodes, width]` where they are read, for
    every arena of `past` the keys and values of the nodes, `[rows, buffers * kv_heads, nodes, head_dim]`, and
    for every kind of vectors the vectors of the nodes, `[layers, rows, nodes, ...]`.

    Attributes:
        past: what it reads.
        recurrent: what its recurrent layers keep, once an example has shown it.
        rotations: cosines and sines that it is given.
        by_key_head: whether attention is `attend_by_key_head`, not the model's own.
    """

    def __init__(self, model: Any, one: ModelPass, *, reader: Features | None, by_key_head: bool) -> None:
        """The pass `one` of `model`, whose cache is settled.

        Args:
            model: it is not changed: the function runs a copy of its structure over the same weights.
            one: how the pass is called, and what its layers keep.
            reader: the features that are read.
            by_key_head: whether attention is `attend_by_key_head`, not the model's own.

        Raises:
            UnsupportedModel: the model's attention cannot be exchanged, as `by_key_head` needs.
        """
        super().__init__()
        self._model = [model]  # not a submodule
        module = shared_copy(one.module)
        self.past, self.by_key_head, self.recurrent = Past.of(one.cache), by_key_head, Recurrent()
        self._states, self._noted = states_of(module), False
        self.rotations = Rotations(module)
        # A loop over experts cannot be traced, and few compilers know how to multiply groups.
        _quietly(module, "set_experts_implementation", "batched_mm")
        self.module = module
        self._pass = ModelPass(
            module, module, kinds=one.kinds, cache=one.cache, states=None, device=one.device
        )
        if by_key_head:
            _quietly(module, "set_attn_implementation", BY_KEY_HEAD)
            if one.kinds and module.config._attn_implementation != BY_KEY_HEAD:
                raise UnsupportedModel("its attention cannot be exchanged")
        if reader is not None:
            self._pass.reader = Features(module, reader.request)
        self._around: AbstractContextManager[None] = (
            nullcontext() if by_key_head else self._pass.numbers.attention
        )

    @property
    def kinds(self) -> tuple[str, ...]:
        """Names of the kinds of attention layers, one mask each."""
        return self._pass.kinds

    @property
    def reads_features(self) -> bool:
        """Whether features are read."""
        return self._pass.reader is not None

    def content(self) -> str | None:
        """Returns what tells it from the functions of other models; None where that is not known."""
        reader = self._pass.reader
        if has_foreign_mixers(self.module) or (reader is not None and reader.request.through is not None):
            return None
        if (model := content_digest(self._model[0])) is None:
            return None
        asked = None if reader is None else reader.request
        tables = [table.described for table in self.rotations.tables]
        kept = self.past, self.recurrent
        return repr((type(self).__name__, model, kept, self.kinds, self.by_key_head, asked, tables))

    def watched(self) -> AbstractContextManager[None]:
        """Inside it the function may be called, or traced."""
        reader = self._pass.reader
        return nullcontext() if reader is None else reader.watched()

    @property
    def fixed_axes(self) -> list[tuple[int, ...]]:
        """The axes of every input whose sizes are the same in all passes."""
        buffers, recurrent = len(self.past.buffers), self.recurrent
        found: list[tuple[int, ...]] = [(), (), (), *[(1,)] * len(self.kinds)]
        found += [(0, 3)] * len(self.rotations.tables) + [(1, 3)] * buffers
        if recurrent.layers:
            found += [(), ()]
            for first, kinds in ((1, recurrent.states), (2, recurrent.vectors)):
                found += [tuple(range(first, first + len(kind.sizes))) for kind in kinds]
        return found

    def forward(self, tokens: Tensor, positions: Tensor, wanted: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """One pass; see the class."""
        kinds, tables, buffers = len(self.kinds), len(self.rotations.tables), len(self.past.buffers)
        parts = iter(more)
        masks, rotations, past = ([next(parts) for _ in range(count)] for count in (kinds, tables, buffers))
        given = None if self._states is None else Given(self._states, self.recurrent, list(parts))
        with nullcontext() if given is None else given.read():
            found, added = self.step(
                tokens, positions, masks, rotations, self.past.paired(past), wanted=wanted
            )
        return *found, *self.past.stacked(added), *(() if given is None else given.stacked())

    def step(
        self,
        tokens: Tensor,
        positions: Tensor,
        masks: Sequence[Tensor],
        rotations: Sequence[Tensor],
        past: Sequence[Pair | None],
        *,
        wanted: Tensor | int | None = None,
        before: Sequence[Pair] | None = None,
    ) -> tuple[list[Tensor], list[Pair]]:
        """Returns logits, and features where they are read, and what has been added: see `GivenCache`."""
        self.rotations.give(rotations)
        cache = GivenCache(past, before=before)
        dtype = self.module.dtype
        by_kind = {kind: mask.to(dtype) for kind, mask in zip(self.kinds, masks, strict=True)}
        mask: Any = by_kind if len(by_kind) > 1 else next(iter(by_kind.values()), None)
        with self._around:
            found = self._pass.forward(tokens, positions, mask, kept=wanted, cache=cache)
        return found, cache.added()

    def example(self, *, vocab: int, longest: int | None) -> tuple[Tensor, ...]:
        """Returns inputs of small sizes: a tree of five nodes after seven slots, in two rows.

        Notes which cosines and sines the function is to be given, on the first call.

        Raises:
            UnsupportedModel: the model does not run as such a function.
        """
        draws = torch.Generator().manual_seed(0)
        tokens = torch.randint(1, vocab, (ROWS, NODES), generator=draws)
        depths = torch.tensor([0, 1, 1, 2, 2])
        positions = torch.stack([SLOTS + depths, SLOTS - 2 + depths])
        mask = torch.full((ROWS, 1, NODES, SLOTS + NODES), UNSEEN)
        mask[0, ..., :SLOTS] = mask[1, ..., : SLOTS - 2] = 0.0
        for node, seen in enumerate(TREE):
            mask[:, :, node, [SLOTS + other for other in seen]] = 0.0
        past = [
            torch.randn(ROWS, kind.heads, SLOTS, kind.dim, generator=draws).mul(0.3).to(kind.dtype)
            for kind in self.past.buffers
        ]
        fixed = tokens, positions, torch.tensor([0, 2, 4][:WANTED])
        masks = [mask] * len(self.kinds)
        visible, prompts = _example_tree()
        if not self._noted:
            shown = None if self._states is None else Shown(self._states, visible[..., OLD:], prompts)
            self.rotations.note(positions)
            try:
                with self.watched(), nullcontext() if shown is None else shown.read():
                    self.step(*fixed[:2], masks, (), self.past.paired(past), wanted=fixed[2])
            finally:
                self.rotations.note(None)
            self.recurrent = Recurrent() if shown is None else shown.recurrent()
            self._noted = True
        given = [torch.from_numpy(t.at(positions.numpy(), longest=longest)) for t in self.rotations.tables]
        if not self.recurrent.layers:
            return *fixed, *masks, *given, *past
        held = [kind.zeros(ROWS) for kind in self.recurrent.states]
        held += [kind.zeros(ROWS, OLD) for kind in self.recurrent.vectors]
        held = [torch.randn(one.shape, generator=draws).mul(0.3).to(one.dtype) for one in held]
        return *fixed, *masks, *given, *past, visible, prompts, *held


def _quietly(module: Any, method: str, choice: str) -> None:
    """Call a setter of transformers, which warns or raises where a model has no such choice."""
    loud = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        getattr(module, method)(choice)
    except (AttributeError, ValueError, ImportError):
        pass
    finally:
        hf_logging.set_verbosity(loud)


def _example_tree() -> tuple[Tensor, Tensor]:
    """Returns what the example's nodes see of older columns and each other, and which are a prompt's."""
    visible = torch.zeros(ROWS, NODES, OLD + NODES, dtype=torch.bool)
    for node, seen in enumerate(TREE):
        visible[:, node, [OLD + other for other in seen]] = True
    visible[0, :, [0, 2, 3]] = visible[1, :, [0, 1]] = True
    return visible, torch.arange(NODES).expand(ROWS, -1) < 1
