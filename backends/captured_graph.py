"""One captured pass: the standing inputs of a shape, and the function that replays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.buckets import Shape
from draftwood.backends.kv import RowCache
from draftwood.backends.region import own_bits
from draftwood.backends.staging import Layout, send
from draftwood.backends.tree_pass import TreePass
from draftwood.kernels.transfer import pinned

Inputs = dict[str, Tensor]
"""The standing inputs of a pass, by name."""

Compiler = Callable[[Any, Any], Any]
"""Makes a function of a traced graph and its inputs, as `torch.compile(backend=)` takes."""


class Graph:
    """A pass of one shape, compiled when it is first run.

    It first runs through Dynamo, which looks at its guards and hands on to the compiled function all that it
    reads: weights, keys and values, standing inputs. From then on that function is called with the same
    tensors, which costs a third of the time on the host. `renew` makes it go through Dynamo again.
    """

    def __init__(
        self,
        run: FunctionType,
        *,
        shape: Shape,
        kinds: Sequence[str],
        device: torch.device,
        compiler: Compiler,
        cache: RowCache,
        attention: Callable[[], AbstractContextManager[None]],
        replayed: bool,
    ) -> None:
        """A graph of `run`, which gives logits `[rows, nodes, vocab]`.

        Args:
            run: the whole pass over standing inputs.
            shape: of the pass.
            kinds: names of the kinds of attention layers.
            device: where it runs.
            compiler: that makes a function of what is traced.
            cache: that the pass writes into and reads.
            attention: what the model attends by.
            replayed: whether CUDA graphs run it.
        """
        self._shape, self._compiler, self._replayed = shape, compiler, replayed
        self._cache, self._attention = cache, attention
        self._direct: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._modes: tuple[bool, ...] = ()
        rows, nodes, words = shape.rows, shape.nodes, shape.columns // 32
        arrays: dict[str, NDArray[Any]] = {
            "tokens": np.zeros((rows, nodes), np.int64),
            "positions": np.zeros((rows, nodes), np.int64),
            "slots": np.zeros(nodes, np.int64),
            "lengths": np.zeros(rows, np.int32),
            "counts": np.full(rows, nodes, np.int32),
            "at": np.zeros(1, np.int32),
        }
        for kind in kinds:
            arrays[f"bits of {kind}"] = np.zeros((rows, nodes, words), np.int32)
            arrays[f"first of {kind}"] = np.zeros((rows, nodes), np.int32)
        self._layout = Layout.of(arrays)
        self._buffer = torch.zeros(self._layout.size, dtype=torch.uint8, device=device)
        self._on_host = self._layout.arrays(self._buffer) if device.type == "cpu" else None
        self.tensors = self._layout.read(self._buffer)
        if device.type == "cuda":
            for tensor in self.tensors.values():
                torch._dynamo.mark_static_address(tensor)
        # Dynamo keeps what it compiled by code object, and looks through all of one's entries at every call.
        name = f"pass_{rows}_{nodes}_{shape.text}_{shape.columns}"
        code = run.__code__.replace(co_name=name)
        alone = FunctionType(code, run.__globals__, name, None, run.__closure__)
        # torch 2.7 checks all guards.
        filters = hasattr(torch.compiler, "keep_tensor_guards_unsafe")
        options: Any = {"guard_filter_fn": _kept} if filters else None
        self._traced = torch.compile(
            alone, fullgraph=True, dynamic=False, backend=self._compiled, options=options
        )

    def renew(self) -> None:
        """Look at the guards again in the next pass: buffers, weights or rows may be others."""
        self._direct = None

    def fill(self, tree: TreePass) -> Inputs:
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
            self.tensors["tokens"][:rows, :real].copy_(tree.device_tokens(tensors, buffer.device))
        return tensors

    def __call__(self) -> Tensor:
        """Logits `[rows, nodes, vocab]` of the shape, by the inputs as they stand."""
        if self._replayed:
            torch.compiler.cudagraph_mark_step_begin()
        modes = _modes(self._buffer.device)
        if self._direct is not None and modes == self._modes:
            function, inputs = self._direct
            logits: Tensor = function(*inputs)[0]
        else:
            self._modes = modes
            with self._cache.written_at(self.tensors["slots"]), self._attention():
                logits = self._traced(self.tensors)
        return logits

    def _compiled(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        function = self._compiler(graph, inputs)

        def first(*inputs: Any) -> Any:
            outputs = function(*inputs)
            # A model that keeps tensors of a pass has more outputs, which Dynamo puts in their places.
            self._direct = (function, inputs) if len(outputs) == 1 else None
            return outputs

        return first


CHECKED = {
    "AUTOGRAD_SAVED_TENSORS_HOOKS",
    "DEFAULT_DEVICE",
    "DETERMINISTIC_ALGORITHMS",
    "GLOBAL_STATE",
    "GRAD_MODE",
    "TENSOR_MATCH",
    "TORCH_FUNCTION_STATE",
}
"""Guards that are looked at; what else a trace relied on is the model's structure."""


def _kept(guards: Sequence[Any]) -> list[bool]:
    """Which of Dynamo's guards are checked: hundreds would cost as much as a small model's pass."""
    return [
        guard.guard_type in CHECKED and not isinstance(guard.value, torch.nn.Parameter) for guard in guards
    ]


def _modes(device: torch.device) -> tuple[bool, ...]:
    """Of torch's modes those that a program may well switch while rows are being written."""
    return torch.is_autocast_enabled(device.type), torch.are_deterministic_algorithms_enabled()


def _write(place: NDArray[Any], values: NDArray[Any] | None) -> None:
    """Let `place` begin with `values`, along every axis, and hold 0 elsewhere."""
    place.fill(0)
    if values is not None:
        place[tuple(map(slice, values.shape))] = values
