"""One captured pass: the standing inputs of a shape, and the function that replays it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.backends.attention.kv import RowCache
from draftwood.backends.nodes.pass_inputs import Held
from draftwood.backends.nodes.staging import Layout
from draftwood.kernels.transfer import pinned

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
        name: str,
        inputs: Held,
        device: torch.device,
        compiler: Compiler,
        cache: RowCache,
        around: Callable[[], AbstractContextManager[None]],
        replayed: bool,
    ) -> None:
        """A graph of `run`, which makes tensors of its standing inputs.

        Args:
            run: the whole pass.
            name: of the shape, as part of an identifier.
            inputs: of its first run; all runs have the same shapes and dtypes.
            device: where it runs.
            compiler: that makes a function of what is traced.
            cache: that the pass writes into and reads.
            around: what the pass is traced inside.
            replayed: whether CUDA graphs run it.
        """
        self._compiler, self._replayed = compiler, replayed
        self._cache, self._around = cache, around
        self._direct: tuple[Callable[..., Any], tuple[Any, ...]] | None = None
        self._outputs: Sequence[Any] = ()
        self._modes: tuple[bool, ...] = ()
        self._layout = Layout.of(inputs)
        self._buffer = torch.zeros(self._layout.size, dtype=torch.uint8, device=device)
        self._on_host = self._layout.arrays(self._buffer) if device.type == "cpu" else None
        self.tensors = self._layout.read(self._buffer)
        if device.type == "cuda":
            for tensor in self.tensors.values():
                torch._dynamo.mark_static_address(tensor)
        # Dynamo keeps what it compiled by code object, and looks through all of one's entries at every call.
        code = run.__code__.replace(co_name=f"pass_{name}")
        alone = FunctionType(code, run.__globals__, code.co_name, None, run.__closure__)
        # torch 2.7 checks all guards.
        filters = hasattr(torch.compiler, "keep_tensor_guards_unsafe")
        options: Any = {"guard_filter_fn": _kept} if filters else None
        self._traced = torch.compile(
            alone, fullgraph=True, dynamic=False, backend=self._compiled, options=options
        )

    def renew(self) -> None:
        """Look at the guards again in the next pass: buffers, weights or rows may be others."""
        self._direct = None

    def fill(self, values: Held) -> None:
        """Copy the inputs of a pass to their fixed place."""
        held, host = self._on_host, None
        if held is None:
            host = pinned(self._layout.size, self._buffer.device)
            held = self._layout.arrays(host)
        for name, place in held.items():
            np.copyto(place, values[name], casting="no")
        if host is not None:
            self._buffer.copy_(host, non_blocking=True)

    def __call__(self) -> tuple[Tensor, ...]:
        """Returns the outputs of the pass for the inputs as they are."""
        if self._replayed:
            torch.compiler.cudagraph_mark_step_begin()
        modes = _modes(self._buffer.device)
        if self._direct is not None and modes == self._modes:
            function, inputs = self._direct
            return tuple(function(*inputs))
        self._modes = modes
        slots = self.tensors.get("slots")
        written = nullcontext() if slots is None else self._cache.written_at(slots)
        with written, self._around():
            results: tuple[Tensor, ...] = self._traced(self.tensors)
        # A model that keeps tensors of a pass has more outputs, which Dynamo puts in their places.
        if [id(result) for result in results] != [id(output) for output in self._outputs]:
            self._direct = None
        self._outputs = ()
        return results

    def _compiled(self, graph: Any, inputs: Any) -> Callable[..., Any]:
        function = self._compiler(graph, inputs)

        def first(*inputs: Any) -> Any:
            outputs = function(*inputs)
            self._direct, self._outputs = (function, inputs), outputs
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
    """Returns which of Dynamo's guards are checked: hundreds would cost as much as a small model's pass."""
    return [
        guard.guard_type in CHECKED and not isinstance(guard.value, torch.nn.Parameter) for guard in guards
    ]


def _modes(device: torch.device) -> tuple[bool, ...]:
    """Returns the modes of torch that a program may switch while rows are being written."""
    return torch.is_autocast_enabled(device.type), torch.are_deterministic_algorithms_enabled()
