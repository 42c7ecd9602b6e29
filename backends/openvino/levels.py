"""All levels of a draft tree in one call, where a plan says how one leads to the next."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Ints
from draftwood.backends.openvino.conversion import Weights, as_engine, as_torch, compiled
from draftwood.backends.openvino.function import UNSEEN, PassFunction
from draftwood.backends.openvino.requests import SLOTS, Bound, as_numpy, see
from draftwood.trees.level_plan import GrowingLevels, LevelPlan


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

    It gives the tokens, parents and values of all candidates, `[rows, levels, candidates]` each, and for
    every arena the keys and values of all nodes, level by level.
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
        return *grown.apart(), *function.past.stacked(added)

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


class LevelsCall:
    """The compiled call of some sizes, for buffers of any number of slots."""

    def __init__(
        self,
        function: PassFunction,
        sizes: LevelsSizes,
        *,
        dtype: torch.dtype,
        weights: Weights | None = None,
    ) -> None:
        """Convert and compile the call, in arithmetic of `dtype`, with weights of these bits."""
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
        self._held: Arrays | None = None
        self._bound: Bound | None = None
        self._request: Any = None

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

    def _for(self, bound: Bound) -> Arrays:
        """The inputs of a request that reads these buffers."""
        if self._held is None or self._bound is not bound:
            # A request keeps what it knows of its last shape.
            self._held, self._request = self._arrays(bound.slots), self._compiled.create_infer_request()
            inputs = self._held.all()
            for place, array in enumerate(inputs):
                self._request.set_input_tensor(place, as_engine(torch.from_numpy(array)))
            for place, buffer in enumerate(bound.buffers, len(inputs)):
                self._request.set_input_tensor(place, buffer)
            self._bound = bound
        return self._held

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

        Args:
            inputs: of the first pass.
            bound: the buffers.
            positions: of the levels, the root's first, `[rows, levels]`.
            first: by kind, the first slot of the text that a level sees, of the same shape; None: all.
            longest: where the model's context ends, if it does.
        """
        held, (rows, real) = self._for(bound), inputs.tokens.shape
        nodes, slots = self.sizes.nodes, bound.slots
        padding = nodes - real
        held.tokens[:rows, padding:] = inputs.tokens.numpy()
        held.positions[:rows, padding:nodes] = inputs.positions
        held.positions[:rows, nodes:] = positions[:, 1:]
        text = np.arange(slots)
        for kind, mask, level_text in zip(self._function.kinds, held.masks, held.texts, strict=True):
            see(mask[:rows, 0], inputs, kind, slots=slots, padding=padding)
            visible = text < inputs.lengths[:, None, None]
            if (begins := first[kind]) is not None:
                visible = visible & (text >= begins[:, 1:, None])
            level_text[:rows] = np.where(visible, np.float32(0), np.float32(UNSEEN))
        for table, rotation in zip(self._function.rotations.tables, held.rotations, strict=True):
            rotation[...] = table.at(held.positions, longest=longest)
        request = self._request
        request.infer()
        columns = real + sum(self.sizes.widths[1:])
        for place, arena in enumerate(bound.arenas, 3):
            added = as_numpy(
                as_torch(request.get_output_tensor(place), self._function.past.arenas[place - 3].dtype)
            )
            arena[:, :rows, :, inputs.start : inputs.start + columns] = added[:, :rows, :, padding:]
        parts = [request.get_output_tensor(place).data[:rows] for place in range(3)]
        return torch.from_numpy(np.stack(parts, -1).astype(np.float64))
