"""All levels of a draft tree in one call, where a plan says how one leads to the next."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Ints
from draftwood.backends.openvino.bound_request import BoundRequest
from draftwood.backends.openvino.conversion import Weights, as_engine, compiled
from draftwood.backends.openvino.function import UNSEEN, PassFunction
from draftwood.backends.openvino.requests import SLOTS, Bound, as_numpy, see, see_text
from draftwood.trees.level_plan import GrowingLevels, LevelPlan

REQUESTS = 4
"""Requests of a call that are kept, each for buffers of other sizes."""


@attrs.frozen
class LevelsSizes:
    """The sizes of a call over all levels.

    Attributes:
        rows: of the buffers, padding included.
        nodes: of the first pass; the last one is the root, and what is before the call's nodes is padding.
        plan: that is followed.
        widths: nodes of every level, the root first.
        temperature: of the draft's distributions.
    """

    rows: int
    nodes: int
    plan: LevelPlan
    widths: tuple[int, ...]
    temperature: float

    @property
    def below(self) -> int:
        """Levels that run after the first pass."""
        return len(self.widths) - 1


class LevelsFunction(torch.nn.Module):
    """The passes over all levels as a function of tensors.

    Inputs, in this order: tokens `[rows, nodes]`; positions `[rows, nodes + below]`, the levels last;
    for every kind of attention layer a mask `[rows, 1, nodes, slots + nodes]` of the first pass,
    and one of the text `[rows, below, slots]` for the levels; then rotations, at all these positions, and
    past keys and values, as in `PassFunction`.

    It gives the tokens, parents and values of all candidates as `GrowingLevels.packed`, and for every arena
    the keys and values of all nodes, level by level, as `PassFunction` does.
    """

    def __init__(self, function: PassFunction, sizes: LevelsSizes) -> None:
        super().__init__()
        self.function, self.sizes = function, sizes

    def forward(self, tokens: Tensor, positions: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        """All passes; see the class."""
        function, sizes = self.function, self.sizes
        kinds, nodes = len(function.kinds), sizes.nodes
        masks, texts, more = more[:kinds], more[kinds : 2 * kinds], more[2 * kinds :]
        tables = len(function.rotations.tables)
        rotations, past = more[:tables], function.past.paired(more[tables:])
        found, added = function.step(
            tokens, positions[:, :nodes], masks, [r[:, :, :nodes] for r in rotations], past, wanted=1
        )
        grown = GrowingLevels(sizes.plan, sizes.rows, tokens.device)
        grown.take(self._distributions(found[0]))
        # What the nodes of a level see of the tree, added to scores.
        seen = masks[0][:, 0, -1:, -nodes:]
        for level, width in enumerate(sizes.widths[1:]):
            chosen, parents = grown.expand(width)
            own = torch.full((width, width), UNSEEN).fill_diagonal_(0.0).expand(sizes.rows, -1, -1)
            above = seen.gather(1, parents.unsqueeze(2).expand(-1, -1, seen.shape[2]))
            seen = torch.cat([above, own], 2)
            at = nodes + level
            found, added = function.step(
                chosen,
                positions[:, at : at + 1].expand(-1, width),
                [
                    torch.cat([text[:, level, None].expand(-1, width, -1), seen], 2).unsqueeze(1)
                    for text in texts
                ],
                [r[:, :, at : at + 1].expand(-1, -1, width, -1) for r in rotations],
                past,
                before=added,
            )
            grown.take(self._distributions(found[0]))
        return grown.packed(torch.float32), *function.past.stacked(added)

    def content(self) -> str | None:
        """Returns what tells the function from every other one; None where that is not known."""
        content = self.function.content()
        return None if content is None else repr((type(self).__name__, content, self.sizes))

    def _distributions(self, logits: Tensor) -> Tensor:
        scores, temperature = logits.float(), self.sizes.temperature
        return torch.softmax(scores / temperature if temperature != 1 else scores, -1)


@attrs.frozen
class Arrays:
    """The inputs of a call that are filled anew every time; see `LevelsFunction`."""

    tokens: Ints
    positions: Ints
    masks: list[NDArray[np.float32]]
    texts: list[NDArray[np.float32]]
    rotations: list[NDArray[np.float32]]

    def all(self) -> list[NDArray[Any]]:
        """All, in the order of the inputs."""
        return [self.tokens, self.positions, *self.masks, *self.texts, *self.rotations]


@attrs.define(eq=False)
class Reading:
    """A request over buffers of some slots.

    Attributes:
        held: its inputs that are filled anew every time.
        request: that reads them.
        bound: the buffers that it reads.
    """

    held: Arrays
    request: BoundRequest
    bound: Bound | None = None


class LevelsCall:
    """The compiled call of some sizes, for buffers of any number of slots."""

    def __init__(
        self,
        function: PassFunction,
        sizes: LevelsSizes,
        *,
        vocab: int,
        dtype: torch.dtype,
        weights: Weights | None = None,
    ) -> None:
        """Convert and compile the call, for logits of `vocab`, in arithmetic of `dtype`."""
        self.sizes, self._function = sizes, function
        held = self._arrays(SLOTS)
        inputs = [torch.from_numpy(array) for array in held.all()]
        past = [
            torch.zeros(sizes.rows, kind.heads, SLOTS, kind.dim, dtype=kind.dtype)
            for kind in function.past.buffers
        ]
        kinds, example = len(function.kinds), (*inputs, *past)
        shapes = {place: list(tensor.shape) for place, tensor in enumerate(example)}
        for place in range(2, 2 + kinds):
            shapes[place][3] = shapes[place + kinds][2] = -1
        for place in range(len(inputs), len(example)):
            shapes[place][2] = -1
        one = LevelsFunction(function, sizes).eval()
        self._compiled = compiled(one, example, sizes=shapes, dtype=dtype, weights=weights)
        most = max(sizes.plan.count(width, vocab) for width in sizes.widths)
        self._found = torch.zeros(sizes.rows, len(sizes.widths), most, 3)
        self._added = [
            torch.zeros(
                function.past.added(kind, rows=sizes.rows, nodes=sizes.nodes + sum(sizes.widths[1:])),
                dtype=kind.dtype,
            )
            for kind in function.past.arenas
        ]
        self._written = [
            function.past.as_arena(kind, as_numpy(tensor))
            for kind, tensor in zip(function.past.arenas, self._added, strict=True)
        ]
        self._requests: OrderedDict[int, Reading] = OrderedDict()

    def _arrays(self, slots: int) -> Arrays:
        rows, nodes, below = self.sizes.rows, self.sizes.nodes, self.sizes.below
        kinds, tables = self._function.kinds, self._function.rotations.tables
        return Arrays(
            np.zeros((rows, nodes), np.int64),
            np.zeros((rows, nodes + below), np.int64),
            [np.zeros((rows, 1, nodes, slots + nodes), np.float32) for _ in kinds],
            [np.zeros((rows, below, slots), np.float32) for _ in kinds],
            [np.zeros(table.shape(rows, nodes + below), np.float32) for table in tables],
        )

    def _for(self, bound: Bound) -> Reading:
        """The request that reads these buffers, and its inputs."""
        reading = self._requests.get(bound.slots)
        if reading is None:
            if len(self._requests) >= REQUESTS:
                self._requests.popitem(last=False)
            # A request keeps what it knows of its last shape, so there is one for each.
            held, request = self._arrays(bound.slots), BoundRequest(self._compiled)
            for place, array in enumerate(held.all()):
                request.read(place, as_engine(torch.from_numpy(array)))
            for place, tensor in enumerate((self._found, *self._added)):
                request.write(place, as_engine(tensor))
            reading = self._requests[bound.slots] = Reading(held, request)
        if reading.bound is not bound:
            for place, buffer in enumerate(bound.buffers, len(reading.held.all())):
                reading.request.read(place, buffer)
            reading.bound = bound
        self._requests.move_to_end(bound.slots)
        return reading

    def run(
        self,
        inputs: PassInputs,
        bound: Bound,
        *,
        positions: Ints,
        first: dict[str, Ints | None],
        longest: int | None,
    ) -> Tensor:
        """Returns what `GrowingLevels.packed` gives, and writes the keys of all nodes into their slots.

        What it returns lasts until the next call.

        Args:
            inputs: of the first pass.
            bound: the buffers.
            positions: of the levels, the root's first, `[rows, levels]`.
            first: by kind, the first slot of the text that a level sees, of the same shape; None: all.
            longest: where the model's context ends, if it does.
        """
        reading, (rows, real) = self._for(bound), inputs.tokens.shape
        held = reading.held
        nodes, slots = self.sizes.nodes, bound.slots
        padding = nodes - real
        held.tokens[:rows, padding:] = inputs.tokens.numpy()
        held.positions[:rows, padding:nodes] = inputs.positions
        held.positions[:rows, nodes:] = positions[:, 1:]
        for kind, mask, text in zip(self._function.kinds, held.masks, held.texts, strict=True):
            see(mask[:rows, 0], inputs, kind, slots=slots, padding=padding)
            begins = first[kind]
            see_text(text[:rows], inputs, None if begins is None else begins[:, 1:])
        for table, rotation in zip(self._function.rotations.tables, held.rotations, strict=True):
            table.write(held.positions, rotation, longest=longest)
        reading.request.run()
        start, columns = inputs.start, nodes + sum(self.sizes.widths[1:])
        for arena, added in zip(bound.arenas, self._written, strict=True):
            arena[:, :rows, :, start : start + columns - padding] = added[:, :rows, :, padding:]
        return self._found[:rows]
