"""`-o name=value`: from words to what a strategy's constructor takes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.base.errors import InvalidInput, UnknownStrategy, nearest
from draftwood.protocols import registry

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def split(word: str) -> tuple[str, list[str]]:
    """`"dyspec:budget=8:law=top-k"` as the name and its options.

    The colon of `package.module:Name` belongs to it, in the name and in the option `drafter`.
    """
    known = {name for kind in registry.KINDS for name in registry.names(kind)}
    parts: list[str] = []
    for part in map(str.strip, word.split(":")):
        option, _, value = parts[-1].rpartition("=") if parts else ("", "", "")
        module = value.rpartition("+")[2]
        is_class = parts and option in ("", "drafter") and not {"=", ":"} & set(part + module)
        if is_class and module not in known:
            parts[-1] += f":{part}"
        else:
            parts.append(part)
    return parts[0], parts[1:]


def numbers(option: str, words: Sequence[str] | None, kind: type) -> tuple[Any, ...] | None:
    """Returns the numbers of `--rows 1,4 --rows 16`; None where the option was not given.

    Args:
        option: its name, for the error.
        words: as they were given.
        kind: `int` or `float`.

    Raises:
        InvalidInput: a word that is no such number.
    """
    if words is None:
        return None
    try:
        return tuple(kind(part) for word in words for part in word.split(","))
    except ValueError as error:
        what = "whole numbers" if kind is int else "numbers"
        raise InvalidInput(f"{option} is {','.join(words)!r}; give {what} with commas between.") from error


def parse(words: Sequence[str]) -> dict[str, str]:
    """`["budget=32"]` as `{"budget": "32"}`."""
    options = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise InvalidInput(f"The option {word!r} is not of the form name=value, such as budget=32.")
        options[name.strip().replace("-", "_")] = value.strip()
    return options


def assign(words: Mapping[str, str], strategies: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    """The options of each strategy, converted to the types that its parameters declare.

    Args:
        words: by option name.
        strategies: kind and name, such as `("policies", "dyspec")`; an option goes to the first one
            that has it.

    Raises:
        UnknownStrategy: a strategy or option that does not exist; the message names the nearest.
        InvalidInput: a word that is no value of the option's type.
    """
    known = [registry.options(kind, name) for kind, name in strategies]
    assigned: list[dict[str, Any]] = [{} for _ in strategies]
    for option, word in words.items():
        index = next((i for i, parameters in enumerate(known) if option in parameters), None)
        if index is None:
            for _, name in strategies:
                registry.check_not_gone(name, option)
            everything = sorted({name for parameters in known for name in parameters})
            names = ", ".join(name for _, name in strategies)
            if option in ("policy", "verifier", "drafter"):
                raise UnknownStrategy(_as_part(option, word, strategies[0][1]))
            raise UnknownStrategy(
                f"There is no option {option!r:.80} of {names}{nearest(option, everything)}"
            )
        assigned[index][option] = convert(option, word, known[index][option])
    return assigned


def _as_part(option: str, word: str, policy: str) -> str:
    """The sentence for a strategy that is given as an option of another one."""
    in_bench = {
        "policy": f"{word}+VERIFIER in bench",
        "verifier": f"{policy}+{word} in bench",
        "drafter": f"{policy}:drafter={word} in bench and tune",
    }
    return (
        f"The {option} {word!r:.80} is a strategy and no option; write {in_bench[option]}, and "
        f"--{option} {word} in generate."
    )


def convert(option: str, word: str, parameter: inspect.Parameter) -> Any:
    """`word` as a value of the parameter's declared type; unchanged if that is not a plain one."""
    types = _type_names(parameter)
    if word.lower() == "none" and ("None" in types or parameter.default is None):
        return None
    if "bool" in types and word.lower() in _WORDS:
        return _WORDS[word.lower()]
    for name, convert_to in (("int", int), ("float", float)):
        if name in types:
            try:
                return convert_to(word)
            except ValueError:
                continue
    plain = types & {"int", "float", "bool", "None"}
    if plain == types and plain:
        described = {"int": "an integer", "float": "a number", "bool": "true or false", "None": "none"}
        choices = " or ".join(described[name] for name in described if name in plain)
        raise InvalidInput(f"{option} is {word!r}; give {choices}.")
    return word


def _type_names(parameter: inspect.Parameter) -> set[str]:
    """The names in a parameter's annotation, such as {"int", "None"}."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return {type(parameter.default).__name__} if parameter.default is not parameter.empty else set()
    if isinstance(annotation, type):
        return {annotation.__name__}
    # attrs writes what an optional converter takes as Optional[ForwardRef('...')].
    words = set(re.findall(r"\w+", str(annotation)))
    return words - {"Optional", "ForwardRef"} | ({"None"} if "Optional" in words else set())
