"""A model that a function of the caller makes, named `package.module:function` in place of a folder."""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood import Drafter, StateBackend
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import DraftwoodError, InvalidInput
from draftwood.base.import_object import import_object
from draftwood.base.machine_faults import machine_fault
from draftwood.protocols import registry

_NAME = re.compile(r"[^\W\d]\w*(\.\w+)*:\w+")


@attrs.frozen(eq=False)
class OwnModel:
    """The result of the function: a transformers model or a backend, and a tokenizer or None."""

    model: Any
    tokenizer: Any = None

    def backend(
        self, name: str, *, dtype: torch.dtype | None, device: torch.device, engine: str
    ) -> StateBackend:
        """Returns the backend of the model, which the function `name` has made for this call.

        Args:
            name: for messages.
            dtype: to convert the model's weights to; None leaves them.
            device: that of the command.
            engine: as in `draftwood.load`.

        Raises:
            InvalidInput: a backend with an engine or of another dtype, or a model on another kind of device.
            UnsupportedModel: as `draftwood.load`.
        """
        made = self.model
        is_backend = StateBackend in type(made).__mro__
        if is_backend and engine != "eager":
            raise InvalidInput(
                f"{name!r} makes a backend, which runs by itself, so --engine {engine} is not "
                "supported with it; "
                "let it return the transformers model."
            )
        if is_backend and dtype is not None and _dtypes(made) - {dtype}:
            raise InvalidInput(
                f"{name!r} makes a backend in {', '.join(map(str, _dtypes(made)))}, not {dtype}; "
                "let it return the transformers model, or give --dtype as it is."
            )
        if not is_backend and dtype is not None:
            made = made.to(dtype)
        chosen: Any = engine
        backend: StateBackend = made if is_backend else registry.load(made, engine=chosen)
        if backend.device.type != device.type:
            raise InvalidInput(
                f"The model of {name!r} is on {backend.device} and the command runs on {device}; move it "
                f"there, or give --device {backend.device.type}."
            )
        return backend


def is_own(name: str) -> bool:
    """Returns whether `name` is of the form `package.module:function`, and no file or folder."""
    return _NAME.fullmatch(name) is not None and not Path(name).exists()


def make(name: str) -> OwnModel:
    """Calls the function `name`, which takes no arguments.

    It returns a transformers model, a backend, or one of them and its tokenizer.

    Raises:
        InvalidInput: there is no such function, it fails, or it returns something else.
    """
    function = import_object(name, [StateBackend])
    if not callable(function):
        raise InvalidInput(
            f"{name!r} is a {type(function).__name__}; name a function that returns the model."
        )
    needed = [p for p in inspect.signature(function).parameters.values() if _is_needed(p)]
    if needed:
        raise InvalidInput(
            f"{name!r} needs the argument {needed[0].name!r}; name a function without arguments that returns "
            "the model."
        )
    try:
        result = function()
    except DraftwoodError:
        raise
    except Exception as error:  # anyone's code may fail in any way
        if machine_fault(error) is not None:
            raise
        raise InvalidInput(
            f"{name!r} raised {type(error).__name__}: {first_line(error)}; fix it first."
        ) from error
    return of_result(name, result)


def of_result(name: str, result: Any) -> OwnModel:
    """Returns the model that the function `name` has returned as `result`; raises as `make`."""
    model, tokenizer = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    kinds = type(model).__mro__
    if Drafter in kinds:
        raise InvalidInput(
            f"{name!r} makes the drafter {type(model).__name__} where a model is wanted; name it as the "
            "drafter."
        )
    if not isinstance(model, torch.nn.Module) and StateBackend not in kinds:
        raise InvalidInput(
            f"{name!r} returns a {type(model).__name__}; let it return a transformers model or a backend, or "
            "one of them and its tokenizer."
        )
    return OwnModel(model, tokenizer)


def file_of(name: str) -> Path | None:
    """Returns the file of the module of `name`; None where it has none."""
    import_object(name, [StateBackend])
    file = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    return Path(file) if file else None


def _dtypes(backend: StateBackend) -> set[torch.dtype]:
    """The dtypes of a backend's floating-point weights; none where it runs no torch module."""
    if not isinstance(backend.model, torch.nn.Module):
        return set()
    return {weight.dtype for weight in backend.model.parameters() if weight.is_floating_point()}


def _is_needed(parameter: inspect.Parameter) -> bool:
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in anything
