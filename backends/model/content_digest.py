"""A digest of all that a model computes with, which is the same in the next process.

`ModelKey` tells whether a model is still the same object with the same parts. This tells whether another
process has met a model of the same content.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from functools import partial
from types import BuiltinFunctionType, CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), torch.dtype, torch.device, torch.Size)
# Of a whole model, and not read by its forward.
_IGNORED = frozenset(vars(torch.nn.Module())) | {"generation_config", "name_or_path", "warnings_issued"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")


def content_digest(model: torch.nn.Module) -> str | None:
    """Returns a digest of a model's modules, their code and settings, its configuration and all its values.

    Returns:
        None where some part cannot be described by its content: hooks, a forward of an object's own, objects
        of other kinds, and weights that are elsewhere.
    """
    made = hashlib.sha256()
    try:
        for part in _parts(model):
            made.update(part)
    except _NotDescribed:
        return None
    return made.hexdigest()


class _NotDescribed(Exception):
    """Raised for a part whose content is not known."""


def _parts(model: torch.nn.Module) -> Iterator[bytes]:
    for name, module in model.named_modules():
        state, kind = vars(module), type(module)
        if any(state[hooks] for hooks in _HOOKS) or "forward" in state:
            raise _NotDescribed
        yield f"{name}|{kind.__module__}.{kind.__qualname__}|{module.training}|".encode()
        yield _code(inspect.unwrap(kind.forward))
        for attribute in sorted(state.keys() - _IGNORED):
            yield f"{attribute}={_described(state[attribute])}|".encode()
        for held in ("_parameters", "_buffers"):
            for own, tensor in sorted(state[held].items()):
                yield f"{own}|".encode()
                if tensor is not None:
                    yield from _values(tensor)


def _values(tensor: Tensor) -> Iterator[bytes | Any]:
    """The layout and the values of a tensor."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.device.type != "cpu" or tensor.is_sparse:
        raise _NotDescribed
    yield f"{tensor.dtype}{tuple(tensor.shape)}|".encode()
    if tensor.numel():
        yield tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()


def _described(value: Any) -> str:
    """Words that tell one value from another, in any process."""
    if isinstance(value, _PLAIN):
        return f"{type(value).__name__}:{value!r}"
    if isinstance(value, Mapping):
        return f"{{{','.join(sorted(f'{_described(key)}:{_described(one)}' for key, one in value.items()))}}}"
    if isinstance(value, list | tuple):
        return f"[{','.join(map(_described, value))}]"
    if isinstance(value, set | frozenset):
        return f"({','.join(sorted(map(_described, value)))})"
    if isinstance(value, type | BuiltinFunctionType):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, FunctionType):
        return f"{value.__module__}.{value.__qualname__}:{_code(value).hex()}"
    if isinstance(value, partial):
        return f"partial{_described([value.func, value.args, value.keywords])}"
    if isinstance(value, Tensor):
        return "".join(hashlib.sha256(part).hexdigest() for part in _values(value))
    if callable(getattr(value, "to_dict", None)):  # a configuration
        return f"{type(value).__qualname__}:{_described(vars(value))}"
    raise _NotDescribed


def _code(function: Any) -> bytes:
    """The instructions of a function, and the values that it holds."""
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        raise _NotDescribed
    held = [cell.cell_contents for cell in function.__closure__ or ()]
    told = _described([held, function.__defaults__, function.__kwdefaults__])
    return b"".join(_instructions(function.__code__)) + told.encode()


def _instructions(code: CodeType) -> Iterator[bytes]:
    yield code.co_code
    yield repr(code.co_names).encode()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _instructions(constant)
        else:
            yield _described(constant).encode()
