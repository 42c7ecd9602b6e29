"""Builds the strategy that `draftwood check` looks at, with small settings and with those it will have."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from draftwood import Drafter, Randomness, StateBackend, TreePolicy, Verifier
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal import options
from draftwood.base.errors import InvalidInput
from draftwood.base.import_object import import_object
from draftwood.protocols import registry

PROTOCOLS: dict[type, str] = {
    TreePolicy: "tree policy",
    Verifier: "verifier",
    Drafter: "drafter",
    StateBackend: "state backend",
    Randomness: "source of chance",
}

# Every random outcome of a tree is visited, so a policy's own sizes are cut down to these.
SMALL: Mapping[str, int] = {"length": 2, "depth": 2, "branching": 2, "budget": 3, "paths": 2, "width": 2}


def build(target: str, words: Mapping[str, str]) -> Any:
    """Returns the strategy at `module:name`: an instance, or what a class or function there makes of `words`.

    Raises:
        InvalidInput: no such module or name, options that do not fit, or something else than a strategy.
    """
    named = import_object(target, list(PROTOCOLS))
    name = target.partition(":")[2]
    if isinstance(named, type):
        _must_be_strategy(named, name)
    elif protocol_of(type(named)):
        if words:
            raise InvalidInput(
                f"{name!r} is built already and takes no option {next(iter(words))!r}; name its class."
            )
        return named
    elif not callable(named):
        raise InvalidInput(
            f"{name!r} is a {type(named).__name__}; name a class, or a function that builds one."
        )
    parameters = registry.options_of(named)
    chosen = {**_small(named, parameters)}
    chosen |= {
        o: options.convert(o, word, parameters[o]) if o in parameters else word for o, word in words.items()
    }
    read = _target(named, parameters, words)
    if read is not None:
        known = {"vocab_size": read.vocab_size} if "vocab_size" in parameters else {}
        chosen = known | chosen | {"target": read}
    missing = [o for o, p in parameters.items() if p.default is p.empty and o not in chosen]
    if missing:
        value = "VALUE"
        if missing[0] == "target":
            value = "NAME, a model's folder, hub name or module:function"
        raise InvalidInput(
            f"{name!r} needs the option {missing[0]!r}; give -o {missing[0]}={value}, or name a function "
            "that builds the strategy."
        )
    built = registry.build(named, name, chosen)
    if not isinstance(named, type):
        _must_be_strategy(type(built), f"{name}()")
    if read is None or Drafter not in type(built).__mro__:
        return built
    from draftwood.testing import DrafterWithTarget

    return built if isinstance(built, DrafterWithTarget) else DrafterWithTarget(read, built)


def _target(
    named: Any, parameters: Mapping[str, inspect.Parameter], words: Mapping[str, str]
) -> StateBackend | None:
    """The backend for a drafter that reads its target, where `-o target=` names one."""
    is_other = isinstance(named, type) and Drafter not in named.__mro__
    if is_other or "target" not in parameters or "target" not in words:
        return None
    models.quiet()
    loader = models.Loader(models.Dtype.auto, models.find_device(None), trust_remote_code=False)
    return loader.backend(words["target"])


def as_used(target: str, words: Mapping[str, str]) -> tuple[Any, str]:
    """The policy or verifier with the settings that it would have, and which of them `build` makes smaller.

    None where it has no settings, or is neither.
    """
    named = import_object(target, list(PROTOCOLS))
    if not isinstance(named, type):
        built = build(target, words)
        return (built, "") if is_proved(type(built)) else (None, "")
    if not is_proved(named):
        return None, ""
    parameters = registry.options_of(named)
    chosen = {
        o: options.convert(o, word, parameters[o]) if o in parameters else word for o, word in words.items()
    }
    small = {o: size for o, size in _small(named, parameters).items() if o not in chosen}
    needed = {o: size for o, size in small.items() if parameters[o].default is inspect.Parameter.empty}
    smaller = ", ".join(
        f"{o} {size} for {parameters[o].default}" for o, size in small.items() if o not in needed
    )
    return registry.build(named, target.partition(":")[2], {**needed, **chosen}), smaller


def is_proved(kind: type) -> bool:
    return TreePolicy in kind.__mro__ or Verifier in kind.__mro__


def protocol_of(kind: type) -> str:
    """Returns the kind of a class, in words; empty if it is derived from none of the protocols."""
    return next((words for protocol, words in PROTOCOLS.items() if protocol in kind.__mro__), "")


def _must_be_strategy(kind: type, name: str) -> None:
    protocols = ", ".join(protocol.__name__ for protocol in PROTOCOLS)
    if kind in PROTOCOLS:
        raise InvalidInput(f"{name!r} is a protocol itself; name a class that is derived from it.")
    if not protocol_of(kind):
        what = "is" if name == kind.__name__ else f"is a {kind.__name__},"
        raise InvalidInput(f"{name!r} {what} derived from none of {protocols}; derive it from one of them.")


def _small(strategy: Any, parameters: Mapping[str, inspect.Parameter]) -> dict[str, Any]:
    """Small sizes for the options of a policy that ask for a size or have a larger one."""
    if not isinstance(strategy, type) or TreePolicy not in strategy.__mro__:
        return {}
    return {
        option: small
        for option, small in SMALL.items()
        if option in parameters
        and (
            parameters[option].default is inspect.Parameter.empty or _above(parameters[option].default, small)
        )
    }


def _above(default: Any, small: int) -> bool:
    return isinstance(default, int) and default > small
