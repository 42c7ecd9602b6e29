"""Passes of fixed shape, captured: compiled once for a shape, then replayed over standing buffers.

Outside of the model a pass costs one copy of a few numbers into a standing buffer. In the model it costs what
its compiled graph costs, without a line of Python for a layer; with CUDA graphs one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FunctionType
from typing import Any, Literal, cast

import torch
from torch import Tensor

from draftwood.backends.attention import TreeAttention
from draftwood.backends.buckets import Shape
from draftwood.backends.captured_graph import Compiler, Graph, Inputs
from draftwood.backends.kv import RowCache
from draftwood.backends.tree_kernel import TRACED, bit_masks, markers
from draftwood.backends.tree_pass import TreePass
from draftwood.backends.visibility import Masks

log = logging.getLogger(__name__)

Capture = Literal["off", "compile", "cuda-graphs"] | Compiler
"""How passes are captured: by Inductor, by it and CUDA graphs, by a compiler of one's own, or not at all."""

Run = Callable[[Tensor, Any, Tensor], Tensor]
"""The model's logits for token ids, masks and positions, over its cache."""


class Captured:
    """The captured passes of one backend.

    Attributes:
        graphs: compilations so far: one a shape.
    """

    def __init__(
        self,
        run: Run,
        *,
        name: str,
        cache: RowCache,
        attention: TreeAttention,
        kinds: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        capture: Capture,
    ) -> None:
        """Capture passes of `run`.

        Args:
            run: the model, without state of its own.
            name: of the model, for what is logged.
            cache: its keys and values, laid out for the shape of a pass before that is run.
            attention: that it uses.
            kinds: names of the kinds of its attention layers.
            device: where it runs.
            dtype: of its masks.
            capture: how.
        """
        self.graphs = 0
        self._run, self._name, self._cache, self._attention = run, name, cache, attention
        self._kinds, self._device = tuple(kinds), device
        self._seen = torch.zeros((), dtype=dtype, device=device)
        self._unseen = torch.full_like(self._seen, torch.finfo(dtype).min)
        self._replayed = capture == "cuda-graphs"
        on_cpu = device.type == "cpu"
        self._compiler = capture if callable(capture) else _inductor(self._replayed, on_cpu=on_cpu)
        self._by_shape: dict[tuple[Shape, bool], Graph] = {}

    def renew(self) -> None:
        """Expect other buffers, weights or modes from the next pass on."""
        for graph in self._by_shape.values():
            graph.renew()

    def score(self, shape: Shape, tree: TreePass, *, by_bits: bool) -> Tensor:
        """Logits `[rows, nodes, vocab]` of new nodes, in the order of their call.

        Args:
            shape: that holds them, for which the cache is laid out.
            tree: the nodes.
            by_bits: whether attention is the tree kernel.
        """
        graph = self._by_shape.get((shape, by_bits))
        if graph is None:
            return self._first(shape, tree, by_bits=by_bits)
        tensors = graph.fill(tree)
        return self._of(tree, graph(), tensors)

    def _first(self, shape: Shape, tree: TreePass, *, by_bits: bool) -> Tensor:
        """The first pass of a shape."""
        started = perf_counter()
        graph = self._new_graph(shape, by_bits=by_bits)
        tensors = graph.fill(tree)
        logits = self._of(tree, graph(), tensors)
        # Only now: a pass that fails leaves nothing behind.
        self._by_shape[shape, by_bits] = graph
        log.info(
            "Captured pass %d of %s: %d rows of %d nodes behind texts of up to %d tokens, in %.1f s.",
            self.graphs,
            self._name,
            shape.rows,
            shape.nodes,
            shape.text,
            perf_counter() - started,
        )
        return logits

    def _of(self, tree: TreePass, logits: Tensor, tensors: Inputs) -> Tensor:
        """What `score` returns of the `logits` of a shape."""
        rows, nodes = tree.tokens.shape
        logits = tree.in_call(logits[:rows, :nodes], tensors)
        # A replay writes into the memory of the last one.
        return logits.clone() if self._replayed else logits

    def _new_graph(self, shape: Shape, *, by_bits: bool) -> Graph:
        def run(tensors: Inputs) -> Tensor:
            mask, TRACED.masks = self._masks(tensors, shape, by_bits=by_bits)
            logits = self._run(tensors["tokens"], mask, tensors["positions"])
            TRACED.masks = ()
            return logits

        return Graph(
            cast(FunctionType, run),
            shape=shape,
            kinds=self._kinds,
            device=self._device,
            compiler=self._compiled,
            cache=self._cache,
            attention=self._attention.by_bits if by_bits else lambda: self._attention,
            replayed=self._replayed,
        )

    def _compiled(self, graph: Any, inputs: Any) -> Any:
        """A function of a traced graph."""
        self.graphs += 1
        return self._compiler(graph, inputs)

    def _masks(self, tensors: Inputs, shape: Shape, *, by_bits: bool) -> tuple[Masks, Any]:
        """What `attention_mask=` takes, of arrays on the device, and the masks of bits; for tracing."""
        bits = bit_masks(self._kinds, tensors, start=shape.text, columns=shape.columns)
        if by_bits:
            return markers(self._kinds, tensors["lengths"]), bits
        numbers = {
            kind: torch.where(mask.visible(), self._seen, self._unseen).unsqueeze(1)
            for kind, mask in zip(self._kinds, bits, strict=True)
        }
        return (numbers if len(numbers) > 1 else numbers[self._kinds[0]]), ()


def _inductor(cuda_graphs: bool, *, on_cpu: bool) -> Compiler:
    def compile_graph(graph: Any, inputs: Any) -> Any:
        from torch._inductor import compile as compile_with_inductor

        # Dynamo's guards have looked at the sizes; to do so again takes 3 to 6 % of a small model's pass.
        # Calling kernels one by one from Python, not from C++, takes a sixth of it more.
        options = {"triton.cudagraphs": cuda_graphs, "size_asserts": False, "cpp_wrapper": on_cpu}
        return compile_with_inductor(graph, inputs, options=options)

    return compile_graph
