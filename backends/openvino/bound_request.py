"""Requests of a compiled model whose tensors are bound once, and forms of it for fixed sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

from draftwood.base.machine_faults import machine_fault

FIXED_BYTES = 256 * 2**20
"""Bytes of weights that forms of fixed sizes may hold together: none of a large model, which gains little."""

OFTEN = 160
"""Runs after which a form of fixed sizes pays: a growing text leaves the sizes of its buffers earlier."""


class Compiled:
    """OpenVINO's forms of a model: one for inputs of any size, and others that are faster for fixed sizes.

    Attributes:
        form: the one whose inputs may have any size.
    """

    def __init__(self, model: Any, compile_one: Callable[[Any], Any]) -> None:
        """Compile `model` by `compile_one`."""
        constants = (one for one in model.get_ops() if one.get_type_name() == "Constant")
        held = sum(one.get_byte_size() for one in constants)
        self.form = compile_one(model)
        self._compile, self._most = compile_one, FIXED_BYTES // max(held, 1)
        self._model = model if self._most else None
        self._fixed: WeakSet[Any] = WeakSet()

    def fixed(self, sizes: Sequence[Sequence[int]]) -> Any:
        """Returns a form for inputs of these sizes; None where so many are in use that there is no room.

        Where passes are short, it takes a fifth to a quarter less time: OpenVINO works out nothing about
        sizes in a pass. Compiling it takes as long as about a hundred passes, and it has its own copy of all
        weights.
        """
        if len(self._fixed) >= self._most:
            return None
        assert self._model is not None
        model = self._model.clone()
        model.reshape({place: list(size) for place, size in enumerate(sizes)})
        form = self._compile(model)
        self._fixed.add(form)
        return form


class BoundRequest:
    """A request whose tensors are bound. Once it has run often, it becomes one for their sizes."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled, self._form = compiled, compiled.form
        self._request = self._form.create_infer_request()
        self._inputs: dict[int, Any] = {}
        self._outputs: dict[int, Any] = {}
        self._runs = 0

    def read(self, place: int, tensor: Any) -> None:
        """From now on read an input from `tensor`, whose size does not change."""
        self._inputs[place] = tensor
        self._request.set_input_tensor(place, tensor)

    def write(self, place: int, tensor: Any) -> None:
        """From now on write an output to `tensor`."""
        self._outputs[place] = tensor
        self._request.set_output_tensor(place, tensor)

    def run(self) -> None:
        """Run once. OpenVINO's `infer` would also copy all outputs."""
        self._runs += 1
        if self._runs == OFTEN:
            self._fix()
        self._request.start_async()
        self._request.wait()

    def _fix(self) -> None:
        sizes = [list(self._inputs[place].shape) for place in sorted(self._inputs)]
        if any(0 in size for size in sizes):
            return  # a prompt, whose pass is long
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
