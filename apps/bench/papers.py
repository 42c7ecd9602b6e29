"""The papers' result tables, as data, next to measured results."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.intervals import Figure
from draftwood.apps.bench.specs import ORDINARY, parse
from draftwood.base.errors import UnknownStrategy, nearest

if TYPE_CHECKING:
    from rich.console import Console

_HEADINGS = {
    "speed_up": "Speed over ordinary decoding",
    "tokens_per_round": "Tokens per round",
    "memory_bound_speed_up": "Memory-bound speed-up (MBSU)",
    "acceptance_rate": "Acceptance rate",
    "path_length": "Length of the accepted path",
    "rounds": "Rounds a text",
    "time_to_first_token": "Seconds to the first token",
    "time_per_output_token": "Seconds per output token",
}
_DIGITS = {"rounds": 0, "time_to_first_token": 4, "time_per_output_token": 4}
# Absolute speeds of other machines say nothing here; what is compared is the ratio to ordinary decoding.
_SPEEDS = {"tokens_per_second": 1.0, "seconds_per_token": -1.0}


@attrs.frozen
class Paper:
    """One table of a paper.

    Attributes:
        name: such as `"dyspec-table1"`.
        source: paper and table.
        models: what the paper measured.
        hardware: on what.
        columns: the metrics in `rows`, by bench's names.
        methods: the contender that stands for each of the paper's methods, ordinary decoding among them
            where the table has it.
        rows: data set, temperature, method, and a value for each column; NaN where it cannot be read.
        plan: the paper's setting, as fields of a `BenchPlan`.
        note: what else a reader must know.
    """

    name: str
    source: str
    models: str
    hardware: str
    columns: list[str]
    methods: dict[str, str]
    rows: list[list[Any]]
    plan: dict[str, Any]
    note: str = ""

    def fields(self) -> dict[str, Any]:
        """The fields of the plan that measures this table."""
        strategies = [spec for spec in self.methods.values() if spec != ORDINARY]
        return {**self.plan, "strategies": strategies, "paper": self.name}

    def values(self, metric: str) -> dict[tuple[str, float, str], float]:
        """A metric by data set, temperature and method; `speed_up` is computed if only speeds are given."""
        if metric in self.columns:
            at = self.columns.index(metric)
            by_row = {(d, t, m): float(values[at]) for d, t, m, *values in self.rows}
            return {key: value for key, value in by_row.items() if not math.isnan(value)}
        if metric != "speed_up":
            return {}
        for speed, power in _SPEEDS.items():
            if speed in self.columns:
                speeds = self.values(speed)
                plain = {m for m, spec in self.methods.items() if spec == ORDINARY}
                base = {(d, t): value for (d, t, m), value in speeds.items() if m in plain}
                return {
                    (d, t, m): (value / base[d, t]) ** power
                    for (d, t, m), value in speeds.items()
                    if (d, t) in base
                }
        return {}


@cache
def papers() -> dict[str, Paper]:
    """Every table there is, by name."""
    content = tomllib.loads(files(__package__).joinpath("papers.toml").read_text(encoding="utf-8"))
    return {name: Paper(name=name, **fields) for name, fields in content.items()}


def paper(name: str) -> Paper:
    """The table `name`.

    Raises:
        UnknownStrategy: there is none; the message names the nearest.
    """
    if name not in papers():
        raise UnknownStrategy(f"There is no table {name!r:.80} of a paper{nearest(name, papers())}")
    return papers()[name]


@attrs.frozen
class Comparison:
    """One metric at one temperature: methods down, the paper's data sets and then those here across.

    Attributes:
        theirs: the paper's value by (method, data set).
        ours: the figure by (method, data set with its pair and lengths, where there are several).
    """

    metric: str
    temperature: float
    methods: list[str]
    theirs: dict[tuple[str, str], float]
    ours: dict[tuple[str, str], Figure]


def comparisons(table: Paper, rows: Sequence[ResultRow]) -> list[Comparison]:
    """The paper's values and what was measured, metric by metric and temperature by temperature."""
    contests = list(dict.fromkeys(row.contest for row in rows))
    several = len({attrs.evolve(contest.on_all_data, temperature=0.0) for contest in contests}) > 1
    labels = {method: parse(spec).label for method, spec in table.methods.items()}
    compared = []
    for metric in _HEADINGS:
        values = table.values(metric)
        for temperature in sorted(
            {t for _, t, _ in values} | ({row.contest.temperature for row in rows} if values else set())
        ):
            theirs = {(m, d): value for (d, t, m), value in values.items() if t == temperature}
            ours = {
                (method, row.contest.title if several else row.contest.data): row.figures[metric]
                for row in rows
                for method, label in labels.items()
                if row.spec.label == label
                and row.contest.temperature == temperature
                and metric in row.figures
            }
            if theirs or ours:
                shown = [m for m in labels if any(m == method for method, _ in (*theirs, *ours))]
                compared.append(Comparison(metric, temperature, shown, theirs, ours))
    return compared


def show(table: Paper, rows: Sequence[ResultRow], console: Console) -> None:
    """The paper's numbers and ours, and in words what they may be compared for."""
    from rich import box
    from rich.table import Table

    pairs = dict.fromkeys(row.contest.pair.replace(",", " with ") for row in rows)
    console.print()
    console.print(f"Compared with {table.source}", style="bold")
    console.print(
        f"The paper: {table.models}; {table.hardware}. Here: {', '.join(pairs)}, on the machine above. "
        "Models, text and hardware differ, so compare the order of the methods and how far they lie apart, "
        f"not the values. {table.note}".rstrip(),
        highlight=False,
    )
    for comparison in comparisons(table, rows):
        theirs = list(dict.fromkeys(data for _, data in comparison.theirs))
        ours = list(dict.fromkeys(data for _, data in comparison.ours))
        sheet = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
        sheet.add_column("", overflow="fold", min_width=8)
        for data in theirs:
            sheet.add_column(data, justify="right", overflow="fold")
        for data in ours:
            sheet.add_column(f"here: {data}", justify="right", overflow="fold")
        for method in comparison.methods:
            published = [comparison.theirs.get((method, data)) for data in theirs]
            measured = [comparison.ours.get((method, data)) for data in ours]
            digits = _DIGITS.get(comparison.metric, 2)
            cells = ["-" if value is None else f"{value:.{digits}f}" for value in published]
            sheet.add_row(method, *cells, *(_measured(figure, digits) for figure in measured))
        console.print()
        console.print(f"{_HEADINGS[comparison.metric]}, temperature {comparison.temperature:g}")
        console.print(sheet)


def _measured(figure: Figure | None, digits: int) -> str:
    if figure is None:
        return "-"
    words = f"{figure.value:.{digits}f}"
    if figure.low is None or figure.high is None:
        return words
    return f"{words} ({figure.low:.{digits}f}-{figure.high:.{digits}f})"


def document(table: Paper, rows: Sequence[ResultRow]) -> dict[str, Any]:
    """The comparison for programs."""
    return {
        "name": table.name,
        "source": table.source,
        "models": table.models,
        "hardware": table.hardware,
        "note": table.note,
        "values": [
            {
                "metric": comparison.metric,
                "temperature": comparison.temperature,
                "method": method,
                "contender": table.methods[method],
                "paper": {data: value for (m, data), value in comparison.theirs.items() if m == method},
                "here": {data: attrs.asdict(f) for (m, data), f in comparison.ours.items() if m == method},
            }
            for comparison in comparisons(table, rows)
            for method in comparison.methods
        ],
    }
