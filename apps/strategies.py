"""`draftwood strategies`: the names of all that is registered, the lines of a kind, or one in full."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from shutil import get_terminal_size
from textwrap import shorten, wrap
from typing import Annotated, Any

import attrs
import typer

from draftwood import Proposal, Recipe
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.apps.terminal.shown import say, to_stderr, write_out
from draftwood.base.errors import UnknownStrategy, nearest
from draftwood.protocols import registry
from draftwood.protocols.compatibility import registered_laws

COMPUTED = "..."
_WHOLE: Any = {"break_long_words": False, "break_on_hyphens": False}


@attrs.frozen
class Entry:
    """One registered strategy.

    Attributes:
        summary: the first line of its docstring.
        laws: names of the proposal laws it proposes or verifies; with its defaults first.
        lossless: whether a verifier keeps the target's law; None where the question does not arise.
        trees: which trees a verifier judges with its defaults: "any", "not adaptive", "independent paths" or
            "chains".
        parts: what a recipe is made of: policy, verifier and drafter.
        settings: the settings of a recipe's paper.
        options: option names and their defaults as text; None where one must be given, `COMPUTED` where
            the strategy computes the default from its other options.
        problem: why it cannot be loaded, or None.
    """

    kind: str
    name: str
    summary: str = ""
    laws: tuple[str, ...] = ()
    lossless: bool | None = None
    trees: str = ""
    parts: tuple[str, ...] = ()
    settings: str = ""
    source: str = ""
    options: dict[str, str | None] = attrs.field(factory=dict)
    problem: str | None = None


def entries() -> list[Entry]:
    """Every registered drafter, policy, verifier and recipe; what fails to import says why."""
    return [_entry(kind, name) for kind in registry.KINDS for name in registry.names(kind)]


def _entry(kind: str, name: str) -> Entry:
    try:
        strategy = registry.get(kind, name)
        parameters = registry.options(kind, name)
    except Exception as error:  # a third party's module may fail in any way
        return Entry(kind, name, problem=f"{type(error).__name__}: {first_line(error)}")
    if kind == "recipes":
        return _recipe(name, strategy, parameters)
    lossless = getattr(strategy, "lossless", None)
    return Entry(
        kind,
        name,
        summary=_summary(strategy),
        laws=_laws(strategy, parameters),
        lossless=lossless if isinstance(lossless, bool) else None,
        trees=_trees(kind, name) if kind == "verifiers" else "",
        source=_source(strategy),
        options={option: _default(parameter) for option, parameter in parameters.items()},
    )


def _recipe(name: str, assemble: Any, parameters: Mapping[str, inspect.Parameter]) -> Entry:
    """A recipe is a function: what it builds with its defaults has the laws, its docstring the rest."""
    try:
        method: Recipe = assemble()
    except Exception as error:  # a third party's recipe may fail in any way
        return Entry("recipes", name, problem=f"{type(error).__name__}: {first_line(error)}")
    return Entry(
        "recipes",
        name,
        summary=_summary(assemble),
        laws=tuple(_laws_with(method.policy)),
        lossless=method.verifier.lossless,
        parts=(type(method.policy).__name__, type(method.verifier).__name__, method.drafter),
        settings=_said(assemble, "Settings: "),
        source=_said(assemble, "Source: "),
        # The temperature follows --temperature.
        options={option: _default(p) for option, p in parameters.items() if option != "temperature"},
    )


def _laws(strategy: Any, parameters: Mapping[str, inspect.Parameter]) -> tuple[str, ...]:
    """Laws may depend on the options: those with the defaults, then those that `law=` can choose."""
    names = dict.fromkeys(_laws_with(strategy))
    if "law" in parameters:
        for law in registered_laws():
            names |= dict.fromkeys(_laws_with(strategy, law=law))
    return tuple(names)


def _laws_with(strategy: Any, **options: Any) -> list[str]:
    laws: Any = getattr(strategy, "laws", frozenset())
    if not isinstance(laws, frozenset):  # a property: only an instance knows
        try:
            laws = strategy(**options).laws
        except Exception:  # needs other options, or refuses this law
            return []
    return sorted(law.__name__ for law in laws)


def _trees(kind: str, name: str) -> str:
    try:
        verifier = registry.create(kind, name)
        if verifier.independent_paths:
            return "independent paths"
        return "chains" if not verifier.branches else "any" if verifier.adaptive else "not adaptive"
    except Exception:  # needs options, or a third party's class fails
        return ""


def _source(strategy: Any) -> str:
    source = getattr(strategy, "source", "")
    return source if isinstance(source, str) else ""


def _summary(strategy: Any) -> str:
    return (inspect.getdoc(strategy) or "").partition("\n")[0].replace("`", "")


def _said(strategy: Any, what: str) -> str:
    """The line of a docstring that begins with `what`, without it; empty where there is none."""
    lines = (inspect.getdoc(strategy) or "").splitlines()
    return next((line.removeprefix(what) for line in lines if line.startswith(what)), "")


def _default(parameter: inspect.Parameter) -> str | None:
    if parameter.default is parameter.empty:
        return None
    default = parameter.default
    if default is attrs.NOTHING:
        return COMPUTED
    return default.__name__ if isinstance(default, type) else str(default)


def strategies(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A strategy to show in full, or a kind: recipes, policies, verifiers or drafters.",
            show_default=False,
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """List what is installed, or show one strategy in full.

    Without a name, the names of all recipes, policies, verifiers and drafters. A verifier marked with *
    is lossy: it does not keep the target's distribution.

    \b
    Examples:
      draftwood strategies
      draftwood strategies recipes
      draftwood strategies dyspec
      draftwood strategies --json
    """
    chosen = entries()
    for sentence in registry.strange_entries():
        to_stderr(sentence)
    if name in registry.KINDS:
        chosen = [entry for entry in chosen if entry.kind == name]
    elif name is not None:
        known = sorted({entry.name for entry in chosen} | set(registry.KINDS))
        chosen = [entry for entry in chosen if entry.name == name]
        if not chosen:
            raise UnknownStrategy(f"There is no strategy {name!r}{nearest(name, known)}")
    if as_json:
        write_out(json.dumps([attrs.asdict(entry) for entry in chosen], indent=1) + "\n")
    elif name is None:
        _names(chosen)
    elif name in registry.KINDS:
        _lines(chosen)
    else:
        write_out("\n\n".join(map(_in_full, chosen)) + "\n")


_SHORT = {
    "recipes": "methods of the literature, made of the others (--recipe)",
    "policies": "how a draft tree grows (--policy)",
    "verifiers": "how a draft tree is judged (--verifier)",
    "drafters": "where the drafts come from (--drafter, besides model names)",
}


def _names(listed: Sequence[Entry]) -> None:
    """Print the names of every kind, as wide as the terminal."""
    width = get_terminal_size().columns
    for kind, words in _SHORT.items():
        of_kind = [entry for entry in listed if entry.kind == kind]
        marks = {entry.name: "*" if entry.lossless is False else "" for entry in of_kind}
        broken = [entry for entry in of_kind if entry.problem]
        names = [name + mark for name, mark in marks.items()]
        say(shorten(f"{kind}: {words}", width, placeholder=" ..."))
        for line in wrap("  ".join(names), width, initial_indent="  ", subsequent_indent="  ", **_WHOLE):
            say(line)
        for entry in broken:
            say(shorten(f"  {entry.name} cannot be loaded: {entry.problem}", width, placeholder=" ..."))
    if any(entry.lossless is False for entry in listed):
        say("* lossy: the target's distribution is not kept.")
    say("A line each: draftwood strategies recipes. In full: draftwood strategies NAME")


def _lines(listed: Sequence[Entry]) -> None:
    """Print one line per strategy, as wide as the terminal."""
    width = get_terminal_size().columns
    names = max((len(entry.name) for entry in listed), default=0)
    for entry in listed:
        text = f"cannot be loaded: {entry.problem}" if entry.problem else entry.summary
        text = f"(lossy) {text}" if entry.lossless is False else text
        say(f"{entry.name:<{names}}  {shorten(text, max(width - names - 2, 20), placeholder=' ...')}")


def _in_full(entry: Entry) -> str:
    """All that is known of a strategy, a line each; what does not apply is left out."""
    singular = {"policies": "policy"}.get(entry.kind, entry.kind.removesuffix("s"))
    lines = {
        "cannot be loaded": entry.problem or "",
        "source": entry.source,
        "made of": ", ".join(entry.parts),
        "settings": entry.settings,
        "laws": "any" if Proposal.__name__ in entry.laws else ", ".join(entry.laws),
        "trees": entry.trees,
        "lossless": {None: "", True: "yes", False: "no"}[entry.lossless],
    }
    shown = [f"{entry.name}, a {singular}", *([entry.summary] if entry.summary else [])]
    shown += [f"  {label}: {words}" for label, words in lines.items() if words]
    shown += [
        f"  -o {option}" + (": must be given" if default is None else f"={default}")
        for option, default in entry.options.items()
    ]
    return "\n".join(shown)
