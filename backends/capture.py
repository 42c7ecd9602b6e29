"""Passes of fixed shape, captured: compiled once for a shape, then replayed over standing buffers.

Outside of the model a pass costs one copy of a few numbers into a standing buffer. In the model it costs what
its compiled graph costs, without a line of Python for a layer; with CUDA graphs one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import chain
from time import perf_counter
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.backends.attention import TreeAttention
from draftwood.backends.buckets import Shape, old_bucket, rows_bucket
from draftwood.backends.captured_graph import Compiler, Graph
from draftwood.backends.captured_inputs import Held, Inputs, fill_pass, pass_inputs, write
from draftwood.backends.captured_levels import LevelsShape
from draftwood.backends.features import Features
from draftwood.backends.kv import RowCache
from draftwood.backends.recurrent.passes import Standing
from draftwood.backends.recurrent.states import Chosen, States
from draftwood.backends.staging import send
from draftwood.backends.tree_kernel import TRACED, bit_masks, markers
from draftwood.backends.tree_pass import TreePass
from draftwood.backends.visibility import Masks

log = logging.getLogger(__name__)

Capture = Literal["off", "compile", "cuda-graphs"] | Compiler
"""How passes are captured: by Inductor, by it and CUDA graphs, by a compiler of one's own, or not at all."""

Run = Callable[[Tensor, Any, Tensor], Sequence[Tensor]]
"""The model's logits for token ids, masks and positions, over its cache; behind them features, if any."""


@attrs.frozen
class ReplayShape:
    """Of a captured commit of recurrent states.

    Attributes:
        rows: of the batch.
        columns: uncommitted ones, at most.
    """

    rows: int
    columns: int


class Captured:
    """The captured passes of one backend.

    Attributes:
        graphs: compilations so far: one a shape.
    """

    def __init__(
        self,
        run: Run,
        *,
        module: torch.nn.Module,
        name: str,
        cache: RowCache,
        states: States,
        attention: TreeAttention | None,
        kinds: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        capture: Capture,
    ) -> None:
        """Capture passes of `run`.

        Args:
            run: the model, without state of its own.
            module: the model's weights.
            name: of the model, for what is logged.
            cache: its keys and values, laid out for the shape of a pass before that is run.
            states: of its recurrent layers, likewise.
            attention: that it uses, if any.
            kinds: names of the kinds of its attention layers.
            device: where it runs.
            dtype: of its masks.
            capture: how.
        """
        self.graphs = 0
        self._module, self._layout = module, _layout(module)
        self._run, self._name, self._cache, self._attention = run, name, cache, attention
        self._states = states
        self._kinds, self._device = tuple(kinds), device
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._unseen = torch.full_like(self._seen, torch.finfo(dtype).min)
        self._replayed = capture == "cuda-graphs"
        on_cpu = device.type == "cpu"
        self._compiler = capture if callable(capture) else _inductor(self._replayed, on_cpu=on_cpu)
        self._by_shape: dict[Any, Graph] = {}
        self._features: Features | None = None

    def renew(self) -> None:
        """Expect other buffers, weights or modes from the next pass on."""
        if (layout := _layout(self._module)) != self._layout:
            # Guards do not look at weights, whose strides are compiled in.
            self._layout = layout
            self._by_shape.clear()
        for graph in self._by_shape.values():
            graph.renew()

    def keep(self, features: Features | None) -> None:
        """Let passes give these features; None: none."""
        self._features = features

    def score(self, shape: Shape, tree: TreePass, *, by_bits: bool) -> tuple[Tensor, Tensor | None]:
        """Logits `[rows, nodes, vocab]` of new nodes in the order of their call; features in column order.

        Args:
            shape: that holds them, for which the cache is laid out.
            tree: the nodes.
            by_bits: whether attention is the tree kernel.
        """
        rows, nodes = tree.tokens.shape
        key = (shape, by_bits, self._features)
        with self._graph(key, lambda: self._pass(shape, by_bits=by_bits)) as graph:
            graph.fill(lambda held: fill_pass(held, shape, tree))
            tensors = self._sent(graph, tree)
            of_shape = graph()
        if self._replayed:  # writes into the memory of the last replay
            of_shape = tuple([one.clone() for one in of_shape])
        logits, *features = [one[:rows, :nodes] for one in of_shape]
        return tree.in_call(logits, tensors), (features[0] if features else None)

    def grow(self, shape: LevelsShape, tree: TreePass, fill: Callable[[Held], None]) -> Tensor:
        """What `LevelsShape.run` gives, until the next pass.

        Args:
            shape: of the pass, for which the cache is laid out.
            tree: the nodes of the first pass.
            fill: writes what the other levels read.
        """

        def fill_all(held: Held) -> None:
            fill_pass(held, shape.first, tree)
            fill(held)

        with self._graph(shape, lambda: self._levels(shape)) as graph:
            graph.fill(fill_all)
            (found,) = graph()
        return found

    def replay(self, chosen: Chosen) -> list[Tensor]:
        """Recurrent states, `[rows, ...]` a layer, after a commit of these columns; until the next pass."""
        shape = ReplayShape(rows_bucket(len(chosen)), old_bucket(chosen.shape[1]))
        with self._graph(shape, lambda: self._replay(shape)) as graph:
            graph.fill(lambda held: write(held["kept"], chosen))
            found = graph()
        return [state[: len(chosen)] for state in found]

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
            "Captured pass %d of %s: %d rows of %s behind texts of %s, in %.1f s.",
            self.graphs,
            self._name,
            first.rows,
            f"{shape.columns} nodes in {shape.plan.depth} levels"
            if isinstance(shape, LevelsShape)
            else f"{first.nodes} nodes",
            f"up to {first.text} tokens" if self._kinds else "any length",
            seconds,
        )

    def _sent(self, graph: Graph, tree: TreePass) -> Inputs:
        """What `TreePass.in_call` needs on the device; and tokens that are there, into their places."""
        more = tree.arrays()
        more.pop("tokens", None)
        tensors = send(more, self._device) if more else {}
        if not tree.on_host:
            rows, nodes = tree.tokens.shape
            graph.tensors["tokens"][:rows, :nodes].copy_(tree.device_tokens(tensors, self._device))
        return tensors

    def _pass(self, shape: Shape, *, by_bits: bool) -> Graph:
        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            mask, TRACED.masks = self._masks(tensors, shape, by_bits=by_bits)
            if recurrent:
                seen, prompts, columns = tensors["seen"], tensors["prompts"], tensors["columns"]
                states.standing = Standing(seen, prompts, columns, old=shape.old)
            found = self._run(tensors["tokens"], mask, tensors["positions"])
            TRACED.masks = ()
            if recurrent:
                states.standing = None
            return tuple(found)

        states, recurrent = self._states, bool(self._states.layers)
        inputs = pass_inputs(shape, self._kinds, recurrent=recurrent)
        return self._new(run, _named(shape), inputs, by_bits=by_bits)

    def _levels(self, shape: LevelsShape) -> Graph:
        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            found = shape.run(
                lambda *options: self._run(*options)[0],
                tensors,
                cache=self._cache,
                kinds=self._kinds,
                additive=self._additive,
            )
            return (found,)

        inputs = pass_inputs(shape.first, self._kinds) | shape.inputs(self._kinds)
        return self._new(run, f"levels_{_named(shape.first)}", inputs, by_bits=False)

    def _replay(self, shape: ReplayShape) -> Graph:
        def run(tensors: Inputs) -> tuple[Tensor, ...]:
            kept = tensors["kept"]
            return tuple(states.replay({kept.device: kept}))

        states = self._states
        inputs = {"kept": np.zeros((shape.rows, shape.columns), np.bool_)}
        return self._new(run, f"commit_{shape.rows}_{shape.columns}", inputs, by_bits=False)

    def _new(self, run: Any, name: str, inputs: Held, *, by_bits: bool) -> Graph:
        return Graph(
            run,
            name=name,
            inputs=inputs,
            device=self._device,
            compiler=self._compiled,
            cache=self._cache,
            attention=lambda: self._around(by_bits=by_bits),
            replayed=self._replayed,
        )

    @contextmanager
    def _around(self, *, by_bits: bool) -> Iterator[None]:
        """What is around a pass that is traced."""
        watched = nullcontext() if self._features is None else self._features.watched()
        attention: AbstractContextManager[Any] = nullcontext()
        if self._attention is not None:
            attention = self._attention.by_bits() if by_bits else self._attention
        with attention, watched:
            yield

    def _compiled(self, graph: Any, inputs: Any) -> Any:
        """A function of a traced graph."""
        self.graphs += 1
        return self._compiler(graph, inputs)

    def _masks(self, tensors: Inputs, shape: Shape, *, by_bits: bool) -> tuple[Masks, Any]:
        """What `attention_mask=` takes, of arrays on the device, and the masks of bits; for tracing."""
        bits = bit_masks(self._kinds, tensors, start=shape.text, columns=shape.columns)
        if by_bits:
            return markers(self._kinds, tensors["lengths"]), bits
        visible = {kind: mask.visible() for kind, mask in zip(self._kinds, bits, strict=True)}
        return self._additive(visible), ()

    def _additive(self, visible: dict[str, Tensor]) -> Masks:
        """Masks of numbers for what is visible, bool `[rows, nodes, slots]` by kind; for tracing."""
        if not self._kinds:
            return None
        numbers = {
            kind: torch.where(seen, self._seen, self._unseen).unsqueeze(1) for kind, seen in visible.items()
        }
        return numbers if len(numbers) > 1 else numbers[self._kinds[0]]


def _layout(module: torch.nn.Module) -> list[tuple[Any, ...]]:
    """How the weights lie in memory, which a compiled pass takes for granted."""
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
