"""Tables of the pages, made from the code (methods, strategies, messages of errors) and from results."""

from __future__ import annotations

import ast
import csv
import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import engine_tables

from draftwood import Proposal
from draftwood.apps.bench.papers import papers as result_tables
from draftwood.apps.strategies import entries
from draftwood.base import errors
from draftwood.protocols import registry

ROOT = Path(__file__).resolve().parents[2]
RESULTS = tuple(ROOT / "docs" / "results" / name / "results.csv" for name in ("greedy", "sampled"))
DATA = ROOT / "benchmarks" / "data"
FAMILIES = DATA / "families.csv"
LAYERS = ("framework", "apps", "backends", "strategies")
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.DraftwoodError)
}
GAP = "…"  # in place of each value of a message


def messages() -> Iterator[tuple[str, str]]:
    """Yields the class of every error in the code and its message, with `…` for each value."""
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
    """Returns all messages of errors, by class, with the docstring of each class."""
    every = list(messages())
    parts = []
    for name, kind in CLASSES.items():
        texts = sorted({text for of, text in every if of == name}, key=_alphabetical)
        if texts:
            lines = "\n".join(f"- `{' '.join(text.split()).replace('`', chr(39))}`" for text in texts)
            parts.append(f"## {name}\n\n{(kind.__doc__ or '').strip()}\n\n{lines}\n")
    return "\n".join(parts)


def _alphabetical(text: str) -> str:
    return text.lstrip(f"{GAP} ").lower()


def recipes() -> str:
    """Returns a section for every method: its parts, its law, and the command that runs it."""
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
    """Returns a table that describes every strategy of a kind: its laws, and the trees that it judges."""
    columns = ["name", "description", *{"policies": ["laws"], "verifiers": ["laws", "trees"]}.get(kind, [])]
    rows = []
    for entry in (entry for entry in entries() if entry.kind == kind):
        first = (inspect.getdoc(registry.get(kind, entry.name)) or "").partition("\n")[0]
        words = f"**Lossy.** {first}" if entry.lossless is False else first
        laws = sorted(
            entry.laws, key=lambda law: law != Proposal.__name__
        )  # the class of all laws comes first
        named = ", ".join(laws).replace(Proposal.__name__, "all")
        rows.append(f"| {' | '.join((f'`{entry.name}`', words, named, entry.trees)[: len(columns)])} |")
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows])


def options(kind: str) -> str:
    """Returns a table with the options, their defaults and the source of every strategy of a kind."""
    rows = []
    for entry in (entry for entry in entries() if entry.kind == kind):
        chosen = (f"`{name}={value}`" if value else f"`{name}`" for name, value in entry.options.items())
        rows.append(f"| `{entry.name}` | {', '.join(chosen)} | {entry.source} |")
    return "\n".join(["| name | options | source |", "|---|---|---|", *rows])


def _results() -> list[dict[str, str]]:
    lines = []
    for name in RESULTS:
        with name.open(newline="", encoding="utf-8") as file:
            lines += csv.DictReader(file)
    return lines


def results(cell: Callable[[Mapping[str, str]], str]) -> str:
    """Returns a table for every temperature: contenders by data sets, with `cell` of each line."""
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
    """Returns a function that gives the metric `name` of a line with its interval."""

    def cell(line: Mapping[str, str]) -> str:
        value, low, high = (line[name + end] for end in ("", "_low", "_high"))
        between = f" ({float(low):.2f}-{float(high):.2f})" if low and line["contender"] != "generate" else ""
        return f"{float(value):.2f}{between}" if value else "-"

    return cell


def texts(line: Mapping[str, str]) -> str:
    """Returns the comparison of a line's texts with the texts of `generate`."""
    if line["agreement"]:
        share = float(line["agreement"])
        return "equal" if share == 1 else f"{share:.1%} equal"
    return f"p {float(line['p_value']):.2f}" if line["p_value"] else "-"


def together() -> str:
    """Returns the p-value of every contender's texts over all data sets, above temperature 0."""
    lines = [line for line in _results() if line["p_together"]]
    p_values = {(line["temperature"], line["contender"]): float(line["p_together"]) for line in lines}
    rows = [f"| {float(temperature):g} | `{name}` | {p:.2f} |" for (temperature, name), p in p_values.items()]
    return "\n".join(["| temperature | contender | p over all data sets |", "|---|---|---|", *rows])


def machine() -> str:
    """Returns one sentence with the machine and the versions of the results."""
    said = (
        f"{line['device']}; Python {line['python']}, draftwood {line['draftwood']}, torch {line['torch']}, "
        f"transformers {line['transformers']}"
        for line in _results()
    )
    return f"Measured on {' and '.join(dict.fromkeys(said))}."


def _families(*results: str) -> list[dict[str, str]]:
    with FAMILIES.open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if not results or line["result"] in results]


def families() -> str:
    """Returns a table with one row for every family that is supported, or differs."""
    rows = [
        f"| `{line['family']}` | {line['backend']} | {line['law_s']} | {line['one']} of 3 | "
        f"{line['three']} of 3 |"
        for line in _families("served", "differs")
    ]
    return "\n".join(["| family | backend | law S | texts, 1 row | 3 rows |", "|---|---|---|---|---|", *rows])


def families_refused() -> str:
    """Returns a table with one row for every refused family, with the message of `load` or transformers."""
    return _messages(_families("refused", "no text alone", "not built"))


def prompts_refused(name: str) -> str:
    """Returns a table with one row for every family of a file that is not supported, with its message."""
    return _messages([line for line in _rows(name) if line["result"] != "served" and line["reason"]])


def _messages(lines: Iterable[Mapping[str, str]]) -> str:
    rows = [
        f"| `{line['family']}` | {line['result']} | {line['reason'].replace('|', '/').replace('<', '(')} |"
        for line in lines
    ]
    return "\n".join(["| family | | message |", "|---|---|---|", *rows])


def families_counts() -> str:
    """Returns the number of families for every kind of result."""
    counts = Counter(line["result"] for line in _families())
    rows = [f"| {result} | {count} |" for result, count in counts.most_common()]
    return "\n".join(["| | families |", "|---|---|", *rows])


def families_images() -> str:
    """Returns a table with one row for every family that reads images or sound, and was tried."""
    lines = [
        line for line in _rows("families-images.csv") if line["result"] in ("served", "refused", "differs")
    ]
    rows = [
        f"| `{line['family']}` | {line['result']} | {line['backend']} | {line['rows']} of 2 | "
        f"{line['reads'].replace('_', ' ') or line['reason']} | {line['built']} |"
        for line in lines
    ]
    heading = "| family | | backend | texts | reads | prompt |"
    return "\n".join([heading, "|---|---|---|---|---|---|", *rows])


def families_videos() -> str:
    """Returns a table with one row for every family that takes videos."""
    rows = [
        f"| `{line['family']}` | {line['result']} | {line['backend']} | {line['rows'] or 0} of 2 | "
        f"{'matters' if line['matters'] == 'True' else 'the same'} | {line['reads'].replace('_', ' ')} |"
        for line in _rows("families-videos.csv")
    ]
    counts = Counter(line["result"] for line in _rows("families-videos.csv"))
    total = ", ".join(f"{count} {result}" for result, count in counts.most_common())
    heading = "| family | | backend | texts | other video | reads |"
    return "\n".join([f"{total}.", "", heading, "|---|---|---|---|---|---|", *rows])


def families_images_counts() -> str:
    """Returns the number of families that read images or sound for every kind of result."""
    counts = Counter(line["result"] for line in _rows("families-images.csv"))
    rows = [f"| {result} | {count} |" for result, count in counts.most_common()]
    return "\n".join(["| | families |", "|---|---|", *rows])


def families_encoder_decoders() -> str:
    """Returns a table with one row for every encoder-decoder that was tried."""
    rows = [
        f"| `{line['family']}` | {line['result']} | {line['law_s']} | {line['rows'] or 0} of 2 | "
        f"{line['one'] or 0} of 2 | {line['reads'].replace('_', ' ')} |"
        for line in _rows("families-encoder-decoders.csv")
    ]
    return "\n".join(
        ["| family | | law S | texts, 2 rows | 1 row | reads |", "|---|---|---|---|---|---|", *rows]
    )


def families_encoder_decoders_counts() -> str:
    """Returns the number of encoder-decoders for every kind of result."""
    counts = Counter(line["result"] for line in _rows("families-encoder-decoders.csv"))
    rows = [f"| {result} | {count} |" for result, count in counts.most_common()]
    return "\n".join(["| | families |", "|---|---|", *rows])


def transformers_tests() -> str:
    """Returns the number of calls of `generate()` in transformers' own tests for every kind of result."""
    lines = _rows("transformers-tests.csv")
    names = {
        "equal": "greedy, equal",
        "sampled": "sampled, as many rows",
        "raises": "raise in both",
        "refused": "refused",
        "wrong": "differ",
        "raw": "raise another error",
    }
    rows = [f"| {name} | {sum(int(line[key]) for line in lines)} |" for key, name in names.items()]
    return "\n".join([f"| {len(lines)} families | calls |", "|---|---|", *rows])


def _rows(name: str, **wanted: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return [line for line in csv.DictReader(file) if all(line[key] == wanted[key] for key in wanted)]


def _best(lines: Iterable[Mapping[str, str]], *keys: str) -> dict[tuple[str, ...], Mapping[str, str]]:
    """Returns the line with the most tokens per round for every combination of the `keys`."""
    chosen: dict[tuple[str, ...], Mapping[str, str]] = {}
    for line in lines:
        key = tuple(line[name] for name in keys)
        if key not in chosen or float(line["tokens_per_round"]) > float(chosen[key]["tokens_per_round"]):
            chosen[key] = line
    return chosen


def _cell(line: Mapping[str, str] | None) -> str:
    if line is None:
        return ""
    mean, low, high = (float(line[name]) for name in ("tokens_per_round", "low", "high"))
    return f"{mean:.2f} ({low:.2f} to {high:.2f})"


def methods(name: str) -> str:
    """Returns a table for every temperature: recipes by budgets, the best shape of each, from a file."""
    lines = _rows(name)
    best = _best(lines, "temperature", "recipe", "budget")
    parts = []
    for temperature in sorted({line["temperature"] for line in lines}, key=float):
        here = [line for line in lines if line["temperature"] == temperature]
        budgets = sorted({line["budget"] for line in here}, key=int)
        named = dict.fromkeys(line["recipe"] for line in here)
        rows = [f"| temperature {float(temperature):g} | {' | '.join(f'{size} nodes' for size in budgets)} |"]
        rows.append("|---" * (1 + len(budgets)) + "|")
        for recipe in named:
            cells = (_cell(best.get((temperature, recipe, budget))) for budget in budgets)
            rows.append(f"| {recipe} | {' | '.join(cells)} |")
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def longer_texts() -> str:
    """Returns a table of Sequoia's trees, class order and race on texts of 64 and 256 tokens, by draft."""
    recipes = ("sequoia", "class-ordered-sequoia", "race")
    columns = [(heat, budget) for heat in ("0.6", "1.0") for budget in ("14", "64")]
    shown = ", ".join(f"{float(heat):g}, {budget} nodes" for heat, budget in columns).replace(
        " nodes, ", " nodes | "
    )
    rows = [f"| tokens | draft | method | {shown} |", "|---" * (3 + len(columns)) + "|"]
    for tokens in (64, 256):
        lines = _rows(f"recipes-{tokens}-tokens.csv")
        best = _best(lines, "draft", "recipe", "temperature", "budget")
        for draft in dict.fromkeys(line["draft"] for line in lines):
            for recipe in recipes:
                cells = [_cell(best.get((draft, recipe, *column))) for column in columns]
                if any(cells):
                    rows.append(f"| {tokens} | {draft} | {recipe} | {' | '.join(cells)} |")
    return "\n".join(rows)


def papers() -> str:
    """Returns a table with one row for every table of a paper that `bench --paper` knows."""
    rows = [f"| `{name}` | {table.source} | {table.models} |" for name, table in result_tables().items()]
    return "\n".join(["| name | table | models |", "|---|---|---|", *rows])


def recorded(name: str) -> str:
    """Returns a table with the columns and lines of a file of measurements, as they are."""
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        heads, *lines = csv.reader(file)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *lines))


TABLES: dict[str, Callable[[], str]] = {
    "messages": all_messages,
    "recipes": recipes,
    "policies": lambda: strategies("policies"),
    "verifiers": lambda: strategies("verifiers"),
    "drafters": lambda: strategies("drafters"),
    "policies_options": lambda: options("policies"),
    "verifiers_options": lambda: options("verifiers"),
    "drafters_options": lambda: options("drafters"),
    "results_machine": machine,
    "results_speed": lambda: results(figure("speed_up")),
    "results_rounds": lambda: results(figure("tokens_per_round")),
    "results_texts": lambda: results(texts),
    "results_together": together,
    "methods_greedy_draft": lambda: methods("recipes.csv"),
    "methods_sampled_draft": lambda: methods("recipes-deep-draft.csv"),
    "methods_longer_texts": longer_texts,
    "engines_summary": engine_tables.summary,
    "engines_runs": engine_tables.every_run,
    "papers": papers,
    "verifiers_toy": lambda: recorded("verifiers-toy.csv"),
    "verifiers_trees": lambda: recorded("verifiers-trees.csv"),
    "packed_trees": lambda: recorded("packed-trees.csv"),
    "distilled": lambda: recorded("distilled.csv"),
    "rollouts": lambda: recorded("rollouts.csv"),
    "methods_2026": lambda: recorded("methods-2026.csv"),
    "families": families,
    "families_refused": families_refused,
    "families_counts": families_counts,
    "families_images": families_images,
    "families_images_counts": families_images_counts,
    "families_videos": families_videos,
    "families_images_refused": lambda: prompts_refused("families-images.csv"),
    "families_encoder_decoders_refused": lambda: prompts_refused("families-encoder-decoders.csv"),
    "families_encoder_decoders": families_encoder_decoders,
    "families_encoder_decoders_counts": families_encoder_decoders_counts,
    "transformers_tests": transformers_tests,
}
