"""Passes of fixed shape, captured: compiled once for a shape, then replayed over standing buffers.

Outside of the model a pass costs one copy of a few numbers into a standing buffer. In the model it costs what
its compiled graph costs, without a line of Python for a layer; with CUDA graphs one launch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from types import FunctionType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.attention import TreeAttention
from draftwood.backends.buckets import Shape
from draftwood.backends.kv import RowCache
from draftwood.backends.region import own_bits
from draftwood.backends.staging import Layout, send
from draftwood.backends.tree_kernel import TRACED, bit_masks, markers
from draftwood.backends.tree_pass import TreePass
from draftwood.backends.visibility import Masks
from draftwood.kernels.transfer import pinned

log = logging.getLogger(__name__)

Compiler = Callable[[Any, Any], Any]
"""Makes a function of a traced graph and its inputs, as `torch.compile(backend=)` takes."""

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
        self._compiler = capture if callable(capture) else _inductor(cuda_graphs=self._replayed)
        self._by_shape: dict[tuple[Shape, bool], Graph] = {}

    def score(self, shape: Shape, tree: TreePass, *, by_bits: bool) -> Tensor:
        """Logits `[rows, nodes, vocab]` of new nodes, in the order of their call.

        Args:
            shape: that holds them, for which the cache is laid out.
            tree: the nodes.
            by_bits: whether attention is the tree kernel.
        """
        rows, nodes = tree.tokens.shape
        graph = self._by_shape.get((shape, by_bits))
        fresh = graph is None
        if graph is None:
            graph = Graph(self, shape, by_bits=by_bits)
        started = perf_counter()
        tensors = graph.fill(tree)
        logits = tree.in_call(graph()[:rows, :nodes], tensors)
        if fresh:
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
        # A replay writes into the memory of the last one.
        return logits.clone() if self._replayed else logits

    def compiled(self, graph: Any, inputs: Any) -> Any:
        """A function of a traced graph, for Dynamo."""
        self.graphs += 1
        return self._compiler(graph, inputs)

    def masks(self, tensors: dict[str, Tensor], shape: Shape, *, by_bits: bool) -> tuple[Masks, Any]:
        """What `attention_mask=` takes, of arrays on the device, and the masks of bits; for tracing."""
        bits = bit_masks(self._kinds, tensors, start=shape.text, columns=shape.columns)
        if by_bits:
            return markers(self._kinds, tensors["lengths"]), bits
        numbers = {
            kind: torch.where(mask.visible(), self._seen, self._unseen).unsqueeze(1)
            for kind, mask in zip(self._kinds, bits, strict=True)
        }
        return (numbers if len(numbers) > 1 else numbers[self._kinds[0]]), ()


class Graph:
    """One captured pass: standing inputs, and the function that replays it."""

    def __init__(self, captured: Captured, shape: Shape, *, by_bits: bool) -> None:
        self._shape = shape
        rows, nodes, words = shape.rows, shape.nodes, shape.columns // 32
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.zeros((rows, nodes), np.int64),
            "positions": np.zeros((rows, nodes), np.int64),
            "slots": np.zeros(nodes, np.int64),
            "lengths": np.zeros(rows, np.int32),
            "counts": np.full(rows, nodes, np.int32),
            "at": np.zeros(1, np.int32),
        }
        for kind in captured._kinds:
            arrays[f"bits of {kind}"] = np.zeros((rows, nodes, words), np.int32)
            arrays[f"first of {kind}"] = np.zeros((rows, nodes), np.int32)
        self._layout = Layout.of(arrays)
        device = captured._device
        self._buffer = torch.zeros(self._layout.size, dtype=torch.uint8, device=device)
        self._tensors = self._layout.read(self._buffer)
        run, self._cache = captured._run, captured._cache
        self._attention = captured._attention.by_bits if by_bits else lambda: captured._attention
        for tensor in self._tensors.values() if device.type == "cuda" else ():
            torch._dynamo.mark_static_address(tensor)

        def inner(tensors: dict[str, Tensor]) -> Tensor:
            mask, TRACED.masks = captured.masks(tensors, shape, by_bits=by_bits)
            logits = run(tensors["tokens"], mask, tensors["positions"])
            TRACED.masks = ()
            return logits

        # Dynamo keeps what it compiled by code object, and looks through all of one's entries at every call.
        code = inner.__code__.replace(co_name=f"pass_{rows}_{nodes}_{shape.text}_{shape.columns}_{by_bits}")
        alone = FunctionType(code, inner.__globals__, inner.__name__, None, inner.__closure__)
        # torch 2.7 checks all guards.
        filters = hasattr(torch.compiler, "keep_tensor_guards_unsafe")
        options: Any = {"guard_filter_fn": _kept} if filters else None
        self._function = torch.compile(
            alone, fullgraph=True, dynamic=False, backend=captured.compiled, options=options
        )
        self._on_host = self._layout.arrays(self._buffer) if device.type == "cpu" else None

    def fill(self, tree: TreePass) -> dict[str, Tensor]:
        """Write the inputs of a pass in place; gives what `TreePass.in_call` needs on the device."""
        seen, buffer, nodes = tree.visibility, self._buffer, self._shape.nodes
        held, host = self._on_host, None
        if held is None:
            host = pinned(self._layout.size, buffer.device)
            held = self._layout.arrays(host)
        rows, real = tree.tokens.shape
        held["slots"][:] = np.arange(tree.start, tree.start + nodes)
        held["at"][:] = seen.start
        held["counts"][:] = nodes
        _write(held["positions"], tree.positions)
        _write(held["lengths"], seen.lengths)
        old = tree.start - seen.start
        for kind, bits, first in zip(seen.kinds, seen.bits, seen.first, strict=True):
            place = held[f"bits of {kind}"]
            # Padding sees itself, since softmax needs something.
            place[:] = own_bits(old + nodes, words=place.shape[2])[old:].view(np.int32)
            place[:rows, :real, : bits.shape[2]] = bits.view(np.int32)
            _write(held[f"first of {kind}"], first)
        _write(held["tokens"], tree.host_tokens() if tree.on_host else None)
        if host is not None:
            buffer.copy_(host, non_blocking=True)
        more = tree.arrays()
        more.pop("tokens", None)
        tensors = send(more, buffer.device) if more else {}
        if not tree.on_host:
            self._tensors["tokens"][:rows, :real].copy_(tree.device_tokens(tensors, buffer.device))
        return tensors

    def __call__(self) -> Tensor:
        """Logits `[rows, nodes, vocab]` of the shape."""
        with self._cache.written_at(self._tensors["slots"]), self._attention():
            logits: Tensor = self._function(self._tensors)
        return logits


CHECKED = {
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DEFAULT_DEVICE",
    "DETERMINISTIC_ALGORITHMS",
    "GLOBAL_STATE",
    "GRAD_MODE",
    "TENSOR_MATCH",
    "TORCH_FUNCTION_STATE",
}
"""What is looked at before every replay; what else a trace relied on is the model's structure."""


def _kept(guards: Sequence[Any]) -> list[bool]:
    """Which of Dynamo's guards are checked: hundreds would cost as much as a small model's pass."""
    return [
        guard.guard_type in CHECKED and not isinstance(guard.value, torch.nn.Parameter) for guard in guards
    ]


def _write(place: NDArray[Any], values: NDArray[Any] | None) -> None:
    """Let `place` begin with `values`, along every axis, and hold 0 elsewhere."""
    place.fill(0)
    if values is not None:
        place[tuple(map(slice, values.shape))] = values


def _inductor(*, cuda_graphs: bool) -> Compiler:
    def compile_graph(graph: Any, inputs: Any) -> Any:
        from torch._inductor import compile as compile_with_inductor

        return compile_with_inductor(graph, inputs, options={"triton.cudagraphs": cuda_graphs})

    return compile_graph
