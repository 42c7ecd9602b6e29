"""Tables of speeds by engine, from the texts that `python -m benchmarks engines --output` writes."""

from __future__ import annotations

import csv
import tomllib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np

from draftwood.apps.bench.figures import interval

DATA = Path(__file__).resolve().parents[2] / "benchmarks" / "data"
RUNS = DATA / "engines.toml"
OURS = "draftwood"
ROUNDED = {"int8": "int8", "Q8_0": "int8", "int4": "int4", "Q4_0": "int4"}
ENGINES = {"eager": "torch", "inductor": "torch, compiled", "openvino": "OpenVINO", "gguf": "llama.cpp"}

Lines = list[dict[str, str]]


@attrs.frozen
class Run:
    """One file of texts, and where it is from.

    Attributes:
        target: the model and its precision.
        machine: where it ran, and what was installed.
        command: that made it.
        lines: of the file, one per text.
    """

    target: str
    machine: str
    command: str
    lines: Lines

    def of(self, contender: str) -> Lines:
        """Returns the texts of one contender."""
        return [line for line in self.lines if line["contender"] == contender]

    def title(self, rounded: str) -> str:
        """Returns the target with the rounding of its weights, "" where there is none."""
        return f"{self.target}, {rounded}" if rounded else self.target

    def contenders(self) -> list[str]:
        """Returns the names of all, in the order of the run; the first one is `generate()`."""
        return list(dict.fromkeys(line["contender"] for line in self.lines))


def runs() -> list[Run]:
    """Returns the runs that `benchmarks/data/engines.toml` lists."""
    found = []
    for about in tomllib.loads(RUNS.read_text(encoding="utf-8"))["run"]:
        with (DATA / about.pop("file")).open(newline="", encoding="utf-8") as file:
            found.append(Run(**about, lines=list(csv.DictReader(file))))
    return found


def way_of(contender: str) -> tuple[str, str]:
    """Returns the engine of a contender, and how its weights are rounded ("" where they are not).

    Sizes of trees and lengths of drafts are left out: they are settings of one engine.
    """
    name, *parts = contender.split(", ")
    words = " ".join(parts).split()
    rounded = next((ROUNDED[word] for word in words if word in ROUNDED), "")
    return f"{OURS}, {ENGINES.get(words[0], words[0])}" if name == OURS else name, rounded


def _rate(lines: Lines) -> float:
    return sum(int(line["tokens"]) for line in lines) / sum(float(line["seconds"]) for line in lines)


def _by_prompt(lines: Lines) -> Any:
    """Seconds per token by prompt, medians over repetitions."""
    each: dict[int, list[float]] = {}
    for line in lines:
        each.setdefault(int(line["prompt"]), []).append(float(line["seconds"]) / int(line["tokens"]))
    return np.array([median(each[prompt]) for prompt in sorted(each)])


def _ratio(lines: Lines, others: Lines) -> str:
    """Returns the ratio of speeds with its 95 % interval over prompts."""
    if lines == others:
        return "1"
    sums = {"seconds": _by_prompt(lines), "others": _by_prompt(others)}
    found = interval(sums, lambda sums: sums["others"] / sums["seconds"])
    if found is None or found.low is None or found.high is None:
        return "-"
    return f"{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"


def _best(run: Run, names: Iterable[str]) -> str:
    return min(names, key=lambda name: _by_prompt(run.of(name)).mean())  # as the ratio has it


def _best_by_way(run: Run) -> dict[tuple[str, str], str]:
    """Returns the fastest contender of every engine and rounding."""
    ways = groupby(sorted(run.contenders(), key=way_of), way_of)
    return {way: _best(run, names) for way, names in ways}


def summary() -> str:
    """Returns a table of engines by targets, the fastest setting of each in multiples of `generate()`."""
    columns: dict[str, dict[str, str]] = {}
    order: dict[str, None] = {}
    against: dict[str, str] = {}
    for run in runs():
        base, best = run.of(run.contenders()[0]), _best_by_way(run)
        # Another run of a target adds rounded weights, and engines that the first one leaves out.
        against |= {title: text for title, text in _against(run).items() if title not in against}
        order |= dict.fromkeys(way_of(name)[0] for name in run.contenders())
        for rounded in dict.fromkeys(rounded for _, rounded in best):
            column = columns.setdefault(run.title(rounded), {})
            for way, name in ((way, name) for (way, bits), name in best.items() if bits == rounded):
                column.setdefault(way, _ratio(run.of(name), base))
    rows = [f"| | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    rows += [f"| {way} | {' | '.join(column.get(way, '') for column in columns.values())} |" for way in order]
    return "\n".join([*rows, "", _said(against)])


def _against(run: Run) -> dict[str, str]:
    """Returns, by target, the ratio of draftwood's best to the best of all others, if the run has both."""
    best, found = _best_by_way(run), dict[str, str]()
    for rounded in dict.fromkeys(rounded for _, rounded in best):
        here = {way: name for (way, bits), name in best.items() if bits == rounded}
        sides = [[name for way, name in here.items() if way.startswith(OURS) == own] for own in (True, False)]
        if not all(sides):
            continue
        ours, other = (_best(run, side) for side in sides)
        title = run.title(rounded)
        found[title] = f"{_ratio(run.of(ours), run.of(other))} ({title}, {way_of(other)[0]})"
    return found


def _said(against: dict[str, str]) -> str:
    return f"Best of draftwood over the best of all others: {'; '.join(against.values())}."


def every_run() -> str:
    """Returns the machine, the command and a table with all contenders of every run."""
    parts = []
    for run in runs():
        names = run.contenders()
        first = run.of(names[0])
        prompts, texts = len({line["prompt"] for line in first}), len(first)
        rows = [
            "| | tokens/s | over `generate()` | per CPU second | per target pass | equal |",
            "|---" * 6 + "|",
        ]
        for name in names:
            lines = run.of(name)
            tokens, passes = (sum(int(line[key]) for line in lines) for key in ("tokens", "passes"))
            cpu = sum(float(line["cpu"]) for line in lines)
            equal = sum(line["equal"] == "True" for line in lines)
            turns = dict.fromkeys(line["repetition"] for line in lines)
            rates = [_rate([line for line in lines if line["repetition"] == turn]) for turn in turns]
            cells = (
                name,
                f"{median(rates):.1f}",
                _ratio(lines, first),
                f"{tokens / cpu:.1f}",
                f"{tokens / passes:.2f}" if passes else "",
                f"{equal} of {texts}",
            )
            rows.append(f"| {' | '.join(cells)} |")
        often = "once" if texts == prompts else f"{texts // prompts} times"
        said = f"{prompts} held-out prompts, {first[0]['tokens']} tokens each, {often}"
        parts += [
            f"**{run.target}.** {run.machine}; {said}. `{run.command}`",
            "\n".join(rows),
            _said(_against(run)),
        ]
    return "\n\n".join(parts)
