"""Tables of the site that are made from the code: methods, strategies, and what the errors say."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

from draftwood import errors, registry
from draftwood.apps.strategies import entries

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("framework", "backends", "strategies")
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.DraftwoodError)
}
GAP = "…"  # stands for what a message fills in


def messages() -> Iterator[tuple[str, str]]:
    """The class of an error and what it says, `…` for each value, in the order of the files."""
    for layer in LAYERS:
        for path in sorted((ROOT / layer).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Call) and node.args and getattr(node.func, "id", "") in CLASSES:
                    said = _text(node.args[0])
                    if len(said.replace(GAP, "").strip()) > 10:
                        yield node.func.id, said  # type: ignore[attr-defined]


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value) for value in node.values)
    if isinstance(node, ast.BinOp):
        return _text(node.left) + _text(node.right)
    return GAP


def all_messages() -> str:
    """What the errors say, by class, with what the class means."""
    found = list(messages())
    parts = []
    for name, kind in CLASSES.items():
        said = sorted({text for of, text in found if of == name}, key=_alphabetical)
        if said:
            lines = "\n".join(f"- `{' '.join(text.split()).replace('`', chr(39))}`" for text in said)
            parts.append(f"### {name}\n\n{(kind.__doc__ or '').strip()}\n\n{lines}\n")
    return "\n".join(parts)


def _alphabetical(text: str) -> str:
    return text.lstrip(f"{GAP} ").lower()


def recipes() -> str:
    """The methods: what each is made of, its law, and how to run it, from the registry."""
    parts = []
    for entry in entries():
        if entry.kind != "recipes":
            continue
        if entry.problem:
            raise ValueError(f"the recipe {entry.name} cannot be loaded: {entry.problem}")
        said = (registry.get("recipes", entry.name).__doc__ or "").strip().split("\n\n")[0]
        policy, verifier, drafter = entry.parts
        given = "".join(
            f" -o {name}={value}" for name, value in entry.options.items() if value and " " not in value
        )
        parts.append(
            f"### {entry.name}\n\n{' '.join(said.split())}\n\n"
            f"| source | {entry.source} |\n|---|---|\n"
            f"| law | {', '.join(entry.laws)} |\n"
            f"| made of | `{policy}` with `{verifier}`, drafter `{drafter}` |\n"
            f"| lossless | {'yes' if entry.lossless else 'no'} |\n"
            f"| settings | {entry.settings} |\n"
            f"| run | `draftwood generate --recipe {entry.name}{given}` |\n"
        )
    return "\n".join(parts)


def strategies(kind: str) -> str:
    """One row a registered strategy of a kind."""
    rows = []
    for entry in entries():
        if entry.kind == kind:
            options = [f"`{name}={value}`" if value else f"`{name}`" for name, value in entry.options.items()]
            cells = (f"`{entry.name}`", ", ".join(entry.laws) or "-", ", ".join(options), entry.source)
            rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(["| name | laws | options | source |", "|---|---|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "messages": all_messages,
    "recipes": recipes,
    "policies": lambda: strategies("policies"),
    "verifiers": lambda: strategies("verifiers"),
    "drafters": lambda: strategies("drafters"),
}
