"""Tables of the site, made from the code (methods, strategies, what the errors say) and from results."""

from __future__ import annotations

import ast
import csv
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from draftwood.apps.strategies import entries
from draftwood.base import errors
from draftwood.protocols import registry

ROOT = Path(__file__).resolve().parents[2]
RESULTS = tuple(ROOT / "docs" / "results" / name / "results.csv" for name in ("greedy", "sampled"))
FAMILIES = ROOT / "benchmarks" / "data" / "families.csv"
LAYERS = ("framework", "apps", "backends", "strategies")
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
                    text = _text(node.args[0])
                    if len(text.replace(GAP, "").strip()) > 10:
                        yield node.func.id, text  # type: ignore[attr-defined]


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
    every = list(messages())
    parts = []
    for name, kind in CLASSES.items():
        texts = sorted({text for of, text in every if of == name}, key=_alphabetical)
        if texts:
            lines = "\n".join(f"- `{' '.join(text.split()).replace('`', chr(39))}`" for text in texts)
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
        summary = (registry.get("recipes", entry.name).__doc__ or "").strip().split("\n\n")[0]
        policy, verifier, drafter = entry.parts
        chosen = "".join(
            f" -o {name}={value}" for name, value in entry.options.items() if value and " " not in value
        )
        parts.append(
            f"### {entry.name}\n\n{' '.join(summary.split())}\n\n"
            f"| source | {entry.source} |\n|---|---|\n"
            f"| law | {', '.join(entry.laws)} |\n"
            f"| made of | `{policy}` with `{verifier}`, drafter `{drafter}` |\n"
            f"| lossless | {'yes' if entry.lossless else 'no'} |\n"
            f"| settings | {entry.settings} |\n"
            f"| run | `draftwood generate --recipe {entry.name}{chosen}` |\n"
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


def _results() -> list[dict[str, str]]:
    lines = []
    for name in RESULTS:
        with name.open(newline="", encoding="utf-8") as file:
            lines += csv.DictReader(file)
    return lines


def results(cell: Callable[[Mapping[str, str]], str]) -> str:
    """What `cell` says of every line of the results: a table a temperature, contenders by data sets."""
    lines = _results()
    parts = []
    for temperature in dict.fromkeys(line["temperature"] for line in lines):
        at_temperature = [line for line in lines if line["temperature"] == temperature]
        shown = {(line["contender"], line["data"]): cell(line) for line in at_temperature}
        names = list(dict.fromkeys(line["data"] for line in at_temperature))
        rows = [
            f"| temperature {float(temperature):g} | {' | '.join(names)} |",
            "|---" * (1 + len(names)) + "|",
        ]
        for contender in dict.fromkeys(line["contender"] for line in at_temperature):
            cells = (shown.get((contender, name), "-") for name in names)
            rows.append(f"| `{contender}` | {' | '.join(cells)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def figure(name: str) -> Callable[[Mapping[str, str]], str]:
    """The metric `name` of a line with its interval."""

    def cell(line: Mapping[str, str]) -> str:
        value, low, high = (line[name + end] for end in ("", "_low", "_high"))
        between = f" ({float(low):.2f}-{float(high):.2f})" if low and line["contender"] != "generate" else ""
        return f"{float(value):.2f}{between}" if value else "-"

    return cell


def texts(line: Mapping[str, str]) -> str:
    """How a line's texts compare with those of `generate`."""
    if line["agreement"]:
        share = float(line["agreement"])
        return "equal" if share == 1 else f"{share:.1%} equal"
    return f"p {float(line['p_value']):.2f}" if line["p_value"] else "-"


def together() -> str:
    """Above temperature 0, the p-value of every contender's texts over all data sets."""
    lines = [line for line in _results() if line["p_together"]]
    p_values = {(line["temperature"], line["contender"]): float(line["p_together"]) for line in lines}
    rows = [f"| {float(temperature):g} | `{name}` | {p:.2f} |" for (temperature, name), p in p_values.items()]
    return "\n".join(["| temperature | contender | p over all data sets |", "|---|---|---|", *rows])


def machine() -> str:
    """What the results were measured on."""
    said = (
        f"{line['device']}; Python {line['python']}, draftwood {line['draftwood']}, torch {line['torch']}, "
        f"transformers {line['transformers']}"
        for line in _results()
    )
    return " and ".join(dict.fromkeys(said))


def _families(*results: str) -> list[dict[str, str]]:
    with FAMILIES.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if not results or line["result"] in results]


def families() -> str:
    """One row a family that is served, or differs."""
    rows = [
        f"| `{line['family']}` | {line['backend']} | {line['law_s']} | {line['one']} of 3 | "
        f"{line['three']} of 3 |"
        for line in _families("served", "differs")
    ]
    return "\n".join(["| family | backend | law S | texts, 1 row | 3 rows |", "|---|---|---|---|---|", *rows])


def families_refused() -> str:
    """One row a family that is not served, with what `load` or transformers says."""
    rows = [
        f"| `{line['family']}` | {line['result']} | {line['reason'].replace('|', '/').replace('<', '(')} |"
        for line in _families("refused", "no text alone", "encoder-decoder", "not built")
    ]
    return "\n".join(["| family | | what is said |", "|---|---|---|", *rows])


def families_counts() -> str:
    """How many families came out how."""
    counts = Counter(line["result"] for line in _families())
    rows = [f"| {result} | {count} |" for result, count in counts.most_common()]
    return "\n".join(["| | families |", "|---|---|", *rows])


TABLES: dict[str, Callable[[], str]] = {
    "messages": all_messages,
    "recipes": recipes,
    "policies": lambda: strategies("policies"),
    "verifiers": lambda: strategies("verifiers"),
    "drafters": lambda: strategies("drafters"),
    "results_machine": machine,
    "results_speed": lambda: results(figure("speed_up")),
    "results_rounds": lambda: results(figure("tokens_per_round")),
    "results_texts": lambda: results(texts),
    "results_together": together,
    "families": families,
    "families_refused": families_refused,
    "families_counts": families_counts,
}
