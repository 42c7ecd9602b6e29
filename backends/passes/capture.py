"""Passes of fixed shape, captured: compiled once for a shape, then replayed over standing buffers.

Outside of the model a pass costs one copy of a few numbers into a standing buffer. In the model it costs what
its compiled graph costs, without a line of Python for a layer; with CUDA graphs one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import perf_counter
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.backends.attention.number_masks import NumberMasks
from draftwood.backends.attention.tree_kernel import BitMasks
from draftwood.backends.model.model_pass import ModelPass
from draftwood.backends.model.runner import AsItIs, Runner
from draftwood.backends.nodes.buckets import (
    COLUMNS,
    Shape,
    columns_bucket,
    nodes_bucket,
    old_bucket,
    rows_bucket,
    text_bucket,
)
from draftwood.backends.nodes.pass_inputs import Held, Inputs, PassInputs, padded
from draftwood.backends.nodes.region import Ints
from draftwood.backends.nodes.staging import send
from draftwood.backends.passes.captured_graph import Compiler, Graph
from draftwood.backends.passes.captured_levels import LevelsShape
from draftwood.backends.recurrent.states import Chosen
from draftwood.backends.recurrent.traced import Standing
from draftwood.base.errors import UnsupportedModel
from draftwood.trees.level_plan import LevelPlan

log = logging.getLogger(__name__)

Capture = Literal["off", "compile", "cuda-graphs"] | Compiler
"""The ways to capture passes: by Inductor, by it and CUDA graphs, by a given compiler, or not at all."""


@attrs.frozen
class ReplayShape:
    """The sizes of a captured commit of recurrent states.

    Attributes:
        rows: of the batch.
        columns: uncommitted ones, at most.
    """

    rows: int
    columns: int


class Captured(Runner):
    """Runs passes in a few shapes, each of which is compiled when it is first met.

    The first pass, which shows what layers keep, and those over prompts run as they are.

    Attributes:
        graphs: compilations so far: one a shape.
    """

    def __init__(self, model_pass: ModelPass, *, name: str, capture: Capture, longest: int | None) -> None:
        """Capture `model_pass`, whose buffers stay where they are.

        Args:
            model_pass: the function that is captured.
            name: of the model.
            capture: how.
            longest: where the model's context ends, if it does.

        Raises:
            UnsupportedModel: recurrent layers that cannot be traced.
        """
        for layer in model_pass.states.layers if model_pass.states is not None else ():
            if not layer.traceable:
                raise UnsupportedModel(
                    f"{name} has recurrent layers ({layer.name}, {type(layer).__name__}) whose passes go "
                    'from level to level of a tree, so they are not captured; load it with capture="off".'
                )
        self.graphs = 0
        self._pass, self._as_it_is = model_pass, AsItIs(model_pass)
        self._name, self._longest = name, longest
        self._layout = _layout(model_pass.module)
        self._replayed = capture == "cuda-graphs"
        on_cpu = model_pass.device.type == "cpu"
        self._compiler = capture if callable(capture) else _inductor(self._replayed, on_cpu=on_cpu)
        self._by_shape: dict[Any, Graph] = {}
        # Uncommitted columns for which there is room.
        self._room = COLUMNS

    @property
    def grows(self) -> bool:
        """Whether all levels can run in one pass: not before a first pass, nor where states recur."""
        return self._pass.cache.settled and self._pass.states is None and self._pass.reader is None

    @property
    def _settled(self) -> bool:
        """Whether a first pass has shown what all layers keep."""
        one = self._pass
        return (one.cache.settled or not one.kinds) and (one.states is None or one.states.settled)

    def make_room(self, *, rows: int, text: int, stop: int) -> None:
        """Have buffers exactly as large as the shape of the pass."""
        one = self._pass
        self._room = max(self._room, columns_bucket(stop - text))
        bucket = text_bucket(text, longest=self._longest) if one.kinds else 0
        changed = one.cache.lay_out(rows=rows_bucket(rows), slots=bucket + self._room)
        if one.states is not None:
            changed |= one.states.lay_out(rows=rows_bucket(rows), columns=self._room)
        if changed:
            self._renew()

    def joined(self, rows: int) -> None:
        """Expect other buffers, weights or modes from the next pass on."""
        if self._pass.states is not None:
            self._pass.states.lay_out(rows=rows_bucket(rows), columns=self._room)
        self._renew()

    def _renew(self) -> None:
        if (layout := _layout(self._pass.module)) != self._layout:
            # Guards do not look at weights, whose strides are compiled in.
            self._layout = layout
            self._by_shape.clear()
        for graph in self._by_shape.values():
            graph.renew()

    def run(self, inputs: PassInputs) -> tuple[Tensor, Tensor | None]:
        """One pass, as `Runner.run` says."""
        if inputs.texts is not None:
            return self._as_it_is.run(inputs)
        rows, nodes = inputs.tokens.shape
        one, many = self._pass, nodes_bucket(nodes)
        self.make_room(rows=rows, text=inputs.base, stop=inputs.start + many)
        if not self._settled or inputs.more_than_tokens:
            return self._as_it_is.run(inputs)
        old = 0 if one.states is None else old_bucket(inputs.staged.start)
        shape, masks = self._shape(many, old), one.masks
        key = (shape, masks, one.reader)
        arrays = inputs.arrays(masks, shape)
        with self._graph(key, lambda: self._whole(shape, masks, arrays)) as graph:
            graph.fill(arrays)
            tensors = self._sent(graph, inputs)
            of_shape = graph()
        if self._replayed:  # writes into the memory of the last replay
            of_shape = tuple([each.clone() for each in of_shape])
        logits, *features = [each[:rows, :nodes] for each in of_shape]
        return inputs.in_call(logits, tensors), (features[0] if features else None)

    def grow(
        self,
        inputs: PassInputs,
        plan: LevelPlan,
        *,
        widths: Sequence[int],
        temperature: float,
        first: dict[str, Ints | None],
    ) -> Tensor:
        """Returns the result of `LevelsShape.run`, which the next pass overwrites."""
        rows, nodes = inputs.tokens.shape
        self.make_room(rows=rows, text=inputs.base, stop=inputs.stop + sum(widths[1:]))
        shape = LevelsShape(self._shape(nodes, 0), plan, tuple(widths), temperature)
        arrays = inputs.arrays(self._pass.numbers, shape.first)
        positions = inputs.positions[:, -1:] + np.arange(len(widths))
        arrays |= shape.arrays(start=inputs.start, lengths=inputs.lengths, positions=positions, first=first)
        with self._graph(shape, lambda: self._levels(shape, arrays)) as graph:
            graph.fill(arrays)
            self._sent(graph, inputs)
            (found,) = graph()
        return found[:rows]

    def replayed(self, chosen: Chosen) -> Sequence[Tensor] | None:
        """Recurrent states, `[rows, ...]` a layer, after a commit of these columns; until the next pass."""
        states = self._pass.states
        if states is None or not states.settled:
            return None
        shape = ReplayShape(rows_bucket(len(chosen)), old_bucket(chosen.shape[1]))
        arrays: Held = {"kept": padded(chosen, (shape.rows, shape.columns))}
        with self._graph(shape, lambda: self._commit(shape, arrays)) as graph:
            graph.fill(arrays)
            found = graph()
        return [state[: len(chosen)] for state in found]

    def _shape(self, nodes: int, old: int) -> Shape:
        """That of a pass of so many nodes over the buffers as they are."""
        plan = self._pass.cache.plan
        return Shape(plan.rows, nodes, plan.slots - self._room, self._room, old)

    @contextmanager
    def _graph(self, shape: Any, new: Callable[[], Graph]) -> Iterator[Graph]:
        """The graph of a shape, for a pass; a new one is kept when its first pass has ended well."""
        graph = self._by_shape.get(shape)
        if graph is not None:
            yield graph
            return
        started = perf_counter()
        graph = new()
        yield graph
        self._by_shape[shape] = graph
        seconds = perf_counter() - started
        if isinstance(shape, ReplayShape):
            log.info(
                "Captured commit, graph %d of %s: %d rows of %d columns, in %.1f s.",
                self.graphs,
                self._name,
                shape.rows,
                shape.columns,
                seconds,
            )
            return
        first = shape.first if isinstance(shape, LevelsShape) else shape[0]
        log.info(
            "Captured pass %d of %s: %d rows of %s after texts of %s, in %.1f s.",
            self.graphs,
            self._name,
            first.rows,
            f"{shape.columns} nodes in {shape.plan.depth} levels"
            if isinstance(shape, LevelsShape)
            else f"{first.nodes} nodes",
            f"up to {first.text} tokens" if self._pass.kinds else "any length",
            seconds,
        )

    def _sent(self, graph: Graph, inputs: PassInputs) -> Inputs:
        """Send the arrays of `PassInputs.in_call`; put tokens that are on the device into their places."""
        more = inputs.orders()
        tensors = send(more, self._pass.device) if more else {}
        if not inputs.on_host:
            rows, nodes = inputs.tokens.shape
            tokens = inputs.device_tokens(tensors, self._pass.device)
            graph.tensors["tokens"][:rows, :nodes].copy_(tokens)
        return tensors

    def _whole(self, shape: Shape, masks: NumberMasks | BitMasks, arrays: Held) -> Graph:
        one, states = self._pass, self._pass.states

        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            if states is not None:
                seen, prompts, columns = tensors["seen"], tensors["prompts"], tensors["columns"]
                states.traced = Standing(seen, prompts, columns, old=shape.old)
            found = one(tensors, shape, masks)
            if states is not None:
                states.traced = None
            return tuple(found)

        return self._new(run, _named(shape), arrays, masks)

    def _levels(self, shape: LevelsShape, arrays: Held) -> Graph:
        one = self._pass

        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            return (shape.run(one, tensors),)

        return self._new(run, f"levels_{_named(shape.first)}", arrays, one.numbers)

    def _commit(self, shape: ReplayShape, arrays: Held) -> Graph:
        states = self._pass.states
        assert states is not None

        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            kept = tensors["kept"]
            return tuple(states.replay({kept.device: kept}))

        return self._new(run, f"commit_{shape.rows}_{shape.columns}", arrays, self._pass.numbers)

    def _new(self, run: Any, name: str, arrays: Held, masks: NumberMasks | BitMasks) -> Graph:
        return Graph(
            run,
            name=name,
            inputs=arrays,
            device=self._pass.device,
            compiler=self._compiled,
            cache=self._pass.cache,
            around=lambda: self._pass.around(masks),
            replayed=self._replayed,
        )

    def _compiled(self, graph: Any, inputs: Any) -> Any:
        """A function of a traced graph."""
        self.graphs += 1
        return self._compiler(graph, inputs)


def _layout(module: torch.nn.Module) -> list[tuple[Any, ...]]:
    """Returns the weights' layout in memory, on which a compiled pass depends."""
    tensors = chain(module.parameters(), module.buffers())
    return [(tensor.shape, tensor.stride(), tensor.dtype, tensor.device) for tensor in tensors]


def _named(shape: Shape) -> str:
    return f"{shape.rows}_{shape.nodes}_{shape.text}_{shape.columns}_{shape.old}"


def _inductor(cuda_graphs: bool, *, on_cpu: bool) -> Compiler:
    def compile_graph(graph: Any, inputs: Any) -> Any:
        from torch._inductor import compile as compile_with_inductor

        # Dynamo's guards have looked at the sizes; to do so again takes 3 to 6 % of a small model's pass.
        # Calling kernels one by one from Python, not from C++, takes a sixth of it more.
        options = {"triton.cudagraphs": cuda_graphs, "size_asserts": False, "cpp_wrapper": on_cpu}
        return compile_with_inductor(graph, inputs, options=options)

    return compile_graph
