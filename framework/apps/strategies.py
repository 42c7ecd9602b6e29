"""`draftwood strategies`: everything that is registered, one row each."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Annotated, Any

import attrs
import typer

from draftwood import (
    Deterministic,
    PerChild,
    Proposal,
    Recipe,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
    registry,
)
from draftwood.apps.failures import one_line

_LAWS: tuple[type[Proposal], ...] = (
    Deterministic,
    WithReplacement,
    WithoutReplacement,
    TopThenSample,
    PerChild,
)


@attrs.frozen
class Entry:
    """One registered strategy.

    Attributes:
        laws: names of the proposal laws it proposes or verifies; with its defaults first.
        lossless: whether a verifier keeps the target's law; None where the question does not arise.
        trees: which trees a verifier judges with its defaults: "any", "not adaptive", "chains".
        parts: what a recipe is made of: policy, verifier and drafter.
        settings: those of a recipe's paper.
        options: option names and their defaults as text; None where one must be given.
        problem: why it cannot be loaded, or None.
    """

    kind: str
    name: str
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
        return Entry(kind, name, problem=f"{type(error).__name__}: {one_line(error)}")
    if kind == "recipes":
        return _recipe(name, strategy, parameters)
    lossless = getattr(strategy, "lossless", None)
    return Entry(
        kind,
        name,
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
        return Entry("recipes", name, problem=f"{type(error).__name__}: {one_line(error)}")
    return Entry(
        "recipes",
        name,
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
    found = dict.fromkeys(_laws_with(strategy))
    if "law" in parameters:
        for law in _LAWS:
            found |= dict.fromkeys(_laws_with(strategy, law=law))
    return tuple(found)


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
        return "chains" if not verifier.branches else "any" if verifier.adaptive else "not adaptive"
    except Exception:  # needs options, or a third party's class fails
        return ""


def _source(strategy: Any) -> str:
    source = getattr(strategy, "source", "")
    return source if isinstance(source, str) else ""


def _said(strategy: Any, what: str) -> str:
    """The line of a docstring that begins with `what`, without it; empty where there is none."""
    lines = (inspect.getdoc(strategy) or "").splitlines()
    return next((line.removeprefix(what) for line in lines if line.startswith(what)), "")


def _default(parameter: inspect.Parameter) -> str | None:
    if parameter.default is parameter.empty:
        return None
    default = parameter.default
    return default.__name__ if isinstance(default, type) else str(default)


def strategies(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """List every drafter, policy, verifier and recipe that is installed.

    \b
    Examples:
      draftwood strategies
      draftwood strategies --json
    """
    found = entries()
    if as_json:
        typer.echo(json.dumps([attrs.asdict(entry) for entry in found], indent=1))
    else:
        _show(found)


def _show(found: list[Entry]) -> None:
    """One table a kind; a column that nothing in it fills is left out."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    for kind in registry.KINDS:
        rows = [entry for entry in found if entry.kind == kind]
        columns = {heading: [str(cell(entry)) for entry in rows] for heading, cell in _CELLS.items()}
        columns = {heading: cells for heading, cells in columns.items() if any(cells)}
        table = Table(title=kind, title_justify="left", title_style="bold", show_lines=True)
        for heading in columns:
            table.add_column(heading, overflow="fold", no_wrap=heading in ("name", "laws"))
        for entry, cells in zip(rows, zip(*columns.values(), strict=True), strict=True):
            table.add_row(*map(Text, cells), style="red" if entry.problem else None)
        if rows:
            console.print(table)


def _options(entry: Entry) -> list[str]:
    """Indented below the name: a column of their own would leave the source too little room."""
    return [
        f"  {option}" if default is None else f"  {option}={shorten(default, _WIDEST, placeholder=' ...')}"
        for option, default in entry.options.items()
    ]


_WIDEST = 24  # of a default in the table; JSON has it whole
_CELLS: dict[str, Callable[[Entry], str]] = {
    "name": lambda entry: "\n".join((entry.name, *_options(entry))),
    "laws": lambda entry: "\n".join(
        ["all"] if set(entry.laws) == {law.__name__ for law in _LAWS} else entry.laws
    ),
    "trees": lambda entry: entry.trees,
    "policy, verifier, drafter": lambda entry: "\n".join(entry.parts),
    "lossless": lambda entry: {None: "", True: "yes", False: "no"}[entry.lossless],
    "source": lambda entry: f"cannot be loaded: {entry.problem}" if entry.problem else entry.source,
    "settings": lambda entry: entry.settings,
}
