"""Requests of a compiled model whose tensors are bound once, and forms of it for fixed sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any
from weakref import WeakSet

from draftwood.base.free_memory import free_memory
from draftwood.base.machine_faults import machine_fault

FIXED_BYTES = 256 * 2**20
"""Bytes of weights that forms of fixed sizes may hold together, however little memory is free."""

SHARE = 4
"""One form may have this part of the memory that is free: a quarter."""

OFTEN = 20
"""Runs before a form of fixed sizes is thought of: a growing text may leave the sizes of its buffers soon."""

PAYS = 4
"""Times as long as compiling took that passes have taken before a form of fixed sizes pays."""


class Compiled:
    """OpenVINO's forms of a model: one for inputs of any size, and others that are faster for fixed sizes.

    Attributes:
        form: the one whose inputs may have any size.
        seconds: that it takes to compile one.
    """

    def __init__(self, model: Any, compile_one: Callable[[Any], Any]) -> None:
        """Compile `model` by `compile_one`."""
        constants = (one for one in model.get_ops() if one.get_type_name() == "Constant")
        self._held = sum(one.get_byte_size() for one in constants)
        self._compile, self._model, self.seconds = compile_one, model, 0.0
        self._fixed: WeakSet[Any] = WeakSet()
        self.form = self._timed(model)

    def fixed(self, sizes: Sequence[Sequence[int]]) -> Any:
        """Returns a form for inputs of these sizes; None where there is no room for one more.

        A pass takes an eighth to a quarter less time: OpenVINO works out nothing about sizes in it. And it
        is not made ready anew after passes of other sizes, such as prompts, which costs a third of a pass.
        But the form has its own copy of all weights.
        """
        together = (len(self._fixed) + 1) * self._held
        if together > FIXED_BYTES and self._held > free_memory() // SHARE:
            return None
        model = self._model.clone()
        model.reshape({place: list(size) for place, size in enumerate(sizes)})
        form = self._timed(model)
        self._fixed.add(form)
        return form

    def _timed(self, model: Any) -> Any:
        started = perf_counter()
        form = self._compile(model)
        self.seconds = max(self.seconds, perf_counter() - started)
        return form


class BoundRequest:
    """A request whose tensors are bound. Once it has run often, it becomes one for their sizes."""

    def __init__(self, compiled: Compiled, *, any_size: bool = False) -> None:
        """A request of `compiled`; one that stays for `any_size` may be bound to tensors of others."""
        self._compiled, self._form = compiled, compiled.form
        self._request = self._form.create_infer_request()
        self._inputs: dict[int, Any] = {}
        self._outputs: dict[int, Any] = {}
        self._runs, self._spent, self._settled = 0, 0.0, any_size

    def read(self, place: int, tensor: Any) -> None:
        """From now on read an input from `tensor`, whose size does not change unless any will do."""
        self._inputs[place] = tensor
        self._request.set_input_tensor(place, tensor)

    def write(self, place: int, tensor: Any) -> None:
        """From now on write an output to `tensor`."""
        self._outputs[place] = tensor
        self._request.set_output_tensor(place, tensor)

    def run(self) -> None:
        """Run once. OpenVINO's `infer` would also copy all outputs."""
        if not self._settled and self._runs >= OFTEN and self._spent >= PAYS * self._compiled.seconds:
            self._settled = True
            self._fix()
        started = perf_counter()
        self._request.start_async()
        self._request.wait()
        self._runs += 1
        self._spent += perf_counter() - started

    def _fix(self) -> None:
        sizes = [list(self._inputs[place].shape) for place in sorted(self._inputs)]
        try:
            form = self._compiled.fixed(sizes)
        except RuntimeError as error:
            if machine_fault(error) is not None:
                raise
            return  # the form for any size goes on
        if form is not None:
            self._form, self._request = form, form.create_infer_request()
            for place, tensor in self._inputs.items():
                self._request.set_input_tensor(place, tensor)
            for place, tensor in self._outputs.items():
                self._request.set_output_tensor(place, tensor)
