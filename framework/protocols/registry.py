"""Strategies by name. Installed packages add theirs through entry points.

The groups are `draftwood.drafters`, `draftwood.policies`, `draftwood.verifiers`, `draftwood.recipes` and
`draftwood.laws`; `draftwood.loaders` holds functions that turn a model into a backend, `draftwood.mixers`
classes that replace a model's recurrent layers, and `draftwood.processors` functions that give the
constraints that a logits processor holds. This is how the framework reaches the layers above it without
importing them. A policy, verifier or drafter that is not registered is named `package.module:Name`, a class
or a function that builds one; a law is named by its class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any, Literal

from draftwood.base.errors import DraftwoodError, InvalidInput, UnknownStrategy, nearest
from draftwood.base.import_object import import_object, is_strategy_class
from draftwood.laws.proposals import Proposal
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier

KINDS = ("drafters", "policies", "verifiers", "recipes")
_GROUPS = {f"draftwood.{kind}" for kind in (*KINDS, "constraints", "laws", "loaders", "mixers", "processors")}
# The classes that may be imported by name; None: all of them.
_importable: ContextVar[Collection[str] | None] = ContextVar("_importable", default=None)
_PROTOCOLS: Mapping[str, type] = {
    "drafters": Drafter,
    "laws": Proposal,
    "policies": TreePolicy,
    "verifiers": Verifier,
}
# Options that strategies once had, which files of that time may name.
_REMOVED_OPTIONS: Mapping[tuple[str, str], str] = {
    ("class-ordered-traversal", "luck"): "it gained nothing; name the verifier without it",
    ("class-ordered-traversal", "phantoms"): "for adaptive trees name 'traversal', else leave it out",
    ("class-ordered-rejection", "phantoms"): "for adaptive trees name 'traversal', else leave it out",
}


_REMOVED_NAMES: Mapping[str, str] = {
    "cost-aware": "name 'throughput-dyspec', which reads measured costs, or 'ordinary' for no tree",
}


@cache
def _entries(kind: str) -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=f"draftwood.{kind}")}


def names(kind: str) -> list[str]:
    """Registered names of a kind: `"drafters"`, `"policies"`, `"verifiers"`, `"recipes"` or `"laws"`."""
    return sorted(_entries(kind))


def strange_entries() -> list[str]:
    """A sentence for every entry point that stands in a group of ours which is not read."""
    sentences = []
    for group in sorted(entry_points().groups):
        if group.startswith("draftwood.") and group not in _GROUPS:
            for entry in entry_points(group=group):
                owner = entry.dist.name if entry.dist else "a package"
                sentences.append(
                    f"{owner} registers {entry.name!r} in the group {group}, which this draftwood does not "
                    f"read; known are: {', '.join(sorted(_GROUPS))}."
                )
    return sentences


@contextmanager
def registered_only(*, but: Collection[str] = ()) -> Iterator[None]:
    """Import no `package.module:Class` in this block: the names come out of a file, which may run no code.

    Args:
        but: classes that the caller named too.
    """
    before = _importable.set(but)
    try:
        yield
    finally:
        _importable.reset(before)


def get(kind: str, name: str) -> Any:
    """Returns what is registered as `name`, or the class or function `package.module:Name`.

    Raises:
        UnknownStrategy: nothing is registered under that name; the message names the nearest.
        InvalidInput: there is no such module or name, or it is neither a class derived from the protocol nor
            a function.
    """
    singular = {"laws": "proposal law", "policies": "policy"}.get(kind, kind.removesuffix("s"))
    if ":" in name and kind in _PROTOCOLS:
        allowed = _importable.get()
        if allowed is not None and name not in allowed:
            raise InvalidInput(
                f"The class {name!r} is named by a file, which may run no code; name it yourself."
            )
        strategy = import_object(name, [_PROTOCOLS[kind]])
        is_builder = kind != "laws" and inspect.isfunction(strategy)
        if not is_builder and not is_strategy_class(strategy, [_PROTOCOLS[kind]]):
            either = "" if kind == "laws" else ", or a function that builds one"
            raise InvalidInput(
                f"{name!r} is no {singular}; name a class derived from {_PROTOCOLS[kind].__name__}{either}."
            )
        return strategy
    try:
        entry = _entries(kind)[name]
    except KeyError:
        check_name_not_gone(name)
        raise UnknownStrategy(f"There is no {singular} {name!r:.80}{nearest(name, names(kind))}") from None
    return entry.load()


def options(kind: str, name: str) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters that `create` takes for `name`, by option name."""
    return options_of(get(kind, name))


@cache
def options_of(make: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Returns the parameters of a class or function, by option name.

    A class without a constructor takes nothing, although a protocol's constructor seems to take anything.
    """
    anything = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    parameters = inspect.signature(make).parameters
    return MappingProxyType({option: p for option, p in parameters.items() if p.kind not in anything})


def create(kind: str, name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Build the strategy `name` with `options`.

    Raises:
        UnknownStrategy: an unknown name or option; the message names the nearest.
        InvalidInput: an option is missing or cannot be used.
    """
    made = build(get(kind, name), name, options)
    if ":" in name and _PROTOCOLS[kind] not in type(made).__mro__:
        raise InvalidInput(
            f"{name!r} builds a {type(made).__name__}; let it build an instance of a class derived from "
            f"{_PROTOCOLS[kind].__name__}."
        )
    return made


def build(make: Callable[..., Any], name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Calls the class or function `make` with `options` and returns the result; errors call it `name`.

    Raises:
        UnknownStrategy: an unknown option; the message names the nearest.
        InvalidInput: an option is missing or cannot be used.
    """
    options = dict(options or {})
    parameters = options_of(make)
    for option in options:
        if option not in parameters:
            check_not_gone(name, option)
            raise UnknownStrategy(f"{name!r} has no option {option!r}{nearest(option, parameters)}")
    missing = [o for o, p in parameters.items() if p.default is p.empty and o not in options]
    if missing:
        raise InvalidInput(f"{name!r} needs the option {missing[0]!r}; give it.")
    try:
        return make(**options)
    except DraftwoodError:
        raise
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{name!r} cannot be built from {options}: {error}.") from error


def check_name_not_gone(name: str) -> None:
    """Raise `UnknownStrategy`, with what to do, if there once was a strategy `name`."""
    if remedy := _REMOVED_NAMES.get(name):
        raise UnknownStrategy(f"There is no strategy {name!r} any more; {remedy}.") from None


def check_not_gone(name: str, option: str) -> None:
    """Raise `UnknownStrategy`, with what to do, if the strategy `name` once had the option."""
    if remedy := _REMOVED_OPTIONS.get((name, option)):
        raise UnknownStrategy(f"{name!r} no longer has the option {option!r}: {remedy}.")


def load(
    model: Any,
    *,
    dtype: Any = None,
    device: Any = None,
    trust_remote_code: bool = False,
    offload: Any = None,
    capture: Literal["off", "compile", "cuda-graphs"] = "off",
    engine: Literal["auto", "eager", "inductor", "openvino"] = "eager",
    weights: Literal["int8", "int4"] | None = None,
) -> StateBackend:
    """The backend that can decode `model`: an object, a folder or a hub name.

    `dtype`, `device` and `trust_remote_code` say how a folder or hub name is loaded; `offload`, a folder,
    that the weights of its layers stay on the disk and are streamed to every pass; `capture`, whether its
    passes run in a few fixed shapes, each compiled when it is first met; `engine`, what runs them;
    `weights`, what OpenVINO rounds its copy of the weights to (see `draftwood.backends.load`).

    Raises:
        UnsupportedModel: no backend supports it; the message says why.
    """
    loader = get("loaders", "auto")
    chosen = {
        "capture": (capture, "off"),
        "engine": (engine, "eager"),
        "offload": (offload, None),
        "weights": (weights, None),
    }
    more = {name: value for name, (value, usual) in chosen.items() if value != usual}
    return loader(model, dtype=dtype, device=device, trust_remote_code=trust_remote_code, **more)  # type: ignore[no-any-return]
