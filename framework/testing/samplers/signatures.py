"""Reads a foreign function's signature for adapters, and gives samplers the name that messages show."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Mapping
from functools import lru_cache
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.testing.samplers.sampler_runs import Sampler

_POSITIONAL = inspect.Parameter.POSITIONAL_ONLY
_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_call(function: Callable[..., Any], args: list[Any], named: Mapping[str, Any], *, name: str) -> None:
    """Raise `InvalidInput` where `function` does not take these arguments, if its signature can be read."""
    signature = _signature(function)
    if signature is None:
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise InvalidInput(
            f"{name} does not take the arguments that the adapter gives it ({error}): its signature is "
            f"{signature}, of a version that is not known here. Write a function of a SamplerCase yourself."
        ) from error


def takes(function: Callable[..., Any], argument: str, *, unread: bool = False) -> bool:
    """Returns whether `function` names this argument, in either of SGLang's spellings.

    Args:
        function: the function to call.
        argument: its name.
        unread: the answer where the function does not name its arguments.
    """
    signature = _signature(function)
    if signature is None or any(one.kind in _REST for one in signature.parameters.values()):
        return unread or (signature is not None and _spelled(argument) in map(_spelled, signature.parameters))
    return _spelled(argument) in map(_spelled, signature.parameters)


def matched(
    function: Callable[..., Any], given: Mapping[str, Any], *, needed: Collection[str], name: str
) -> tuple[list[Any], dict[str, Any]]:
    """Returns the part of `given` that `function` takes: arguments by position, and by name.

    Arguments go by name, in the spelling that the function has, or by position where it takes them only so. A
    function that names no arguments gets all of them: by name if it can take that, else in the order of
    `given`.

    Args:
        function: the function to call.
        given: the arguments by name, in the order of the newest version.
        needed: the ones that every version takes.
        name: what messages call the function.

    Raises:
        InvalidInput: the function lacks one of `needed`, or asks for one that `given` has not.
    """
    # A sampler is called some ten thousand times with arguments of the same names.
    matching = _known_matching if isinstance(function, Hashable) else _matching
    by_position, by_name = matching(function, tuple(given), tuple(needed), name)
    return [given[one] for one in by_position], {spelled: given[one] for spelled, one in by_name}


def _matching(
    function: Callable[..., Any], given: tuple[str, ...], needed: tuple[str, ...], name: str
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Returns names of `given`: by position, and by name, each of these after the function's spelling."""
    signature = _signature(function)
    if signature is None:
        return (), tuple((one, one) for one in given)
    parameters = list(signature.parameters.values())
    spelled = {_spelled(one): one for one in given}
    known = [one for one in parameters if one.kind not in _REST]
    unknown = [one.name for one in known if _spelled(one.name) not in spelled and one.default is one.empty]
    kinds = {one.kind for one in parameters}
    open_to_names = inspect.Parameter.VAR_KEYWORD in kinds
    names = {_spelled(one.name) for one in known}
    lacking = [one for one in needed if _spelled(one) not in names]
    if not known and kinds and not open_to_names:
        return given, ()
    if unknown or (lacking and not open_to_names):
        what = f"asks for {unknown}" if unknown else f"does not take {lacking}"
        raise InvalidInput(
            f"{name} does not take the arguments that the adapter gives it ({what}): its signature is "
            f"{signature}, of a version that is not known here. Write a function of a SamplerCase yourself."
        )
    taken = [one for one in known if _spelled(one.name) in spelled]
    by_position = [spelled[_spelled(one.name)] for one in taken if one.kind is _POSITIONAL]
    by_name = [(one.name, spelled[_spelled(one.name)]) for one in taken if one.kind is not _POSITIONAL]
    if open_to_names:
        by_name += [(one, one) for one in given if _spelled(one) not in names]
    return tuple(by_position), tuple(by_name)


_known_matching = lru_cache(maxsize=64)(_matching)


def named(sampler: Sampler, name: str) -> Sampler:
    """`sampler` with the name that messages give it."""
    sampler.__name__ = name
    return sampler


def _spelled(argument: str) -> str:
    """Returns the argument's newer spelling: SGLang's `retrive_` became `retrieve_` in some functions."""
    return "retrieve_" + argument.removeprefix("retrive_") if argument.startswith("retrive_") else argument


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Returns the signature, of an operator of torch the one in its schema; None if it cannot be read.

    `check_call` asks for it in every call of a sampler, and reading takes a third of one.
    """
    return _known_signature(function) if isinstance(function, Hashable) else _read_signature(function)


def _read_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    schema = getattr(function, "_schema", None) or getattr(
        getattr(function, "default", None), "_schema", None
    )
    if schema is not None:
        return inspect.Signature(
            [
                inspect.Parameter(
                    one.name,
                    inspect.Parameter.KEYWORD_ONLY
                    if one.kwarg_only
                    else inspect.Parameter.POSITIONAL_OR_KEYWORD,
                    default=one.default_value if one.has_default_value() else inspect.Parameter.empty,
                )
                for one in schema.arguments
            ]
        )
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


_known_signature = lru_cache(maxsize=64)(_read_signature)
