"""Checks of a foreign function's signature for adapters, and the name that messages give it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.testing.samplers.sampler_runs import Sampler


def check_call(function: Callable[..., Any], args: list[Any], named: Mapping[str, Any], *, name: str) -> None:
    """Raise `InvalidInput` where `function` does not take these arguments, if its signature can be read."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise InvalidInput(
            f"{name} does not take the arguments that the adapter gives it ({error}): its signature is "
            f"{signature}, of a version that is not known here. Write a function of a SamplerCase yourself."
        ) from error


def spelled(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """`named` arguments as `function` spells them: SGLang's `retrive_` became `retrieve_`."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(named)
    others = {"retrive": "retrieve", "retrieve": "retrive"}
    found = {}
    for name, value in named.items():
        begin, _, end = name.partition("_")
        other = f"{others.get(begin, begin)}_{end}"
        found[other if name not in known and other in known else name] = value
    return found


def named(sampler: Sampler, name: str) -> Sampler:
    """`sampler` with the name that messages give it."""
    sampler.__name__ = name
    return sampler
