"""Results for people and programs: tables in the terminal, JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.apps.bench.arrival_figures import PERCENTILES, UNITS
from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.plan import Contest
from draftwood.apps.bench.specs import ORDINARY, OURS
from draftwood.base.whole_files import write_text
from draftwood.decoding.metrics import METRICS

if TYPE_CHECKING:
    from rich.console import Console

Column = tuple[str, Callable[[ResultRow], str]]


def _figure(
    name: str, *, scale: float = 1, digits: int = 2, interval: bool = True, unit: str = ""
) -> Callable[[ResultRow], str]:
    def cell(row: ResultRow) -> str:
        if name not in row.figures:
            return "-"
        figure = row.figures[name]
        words = f"{figure.value * scale:.{digits}f}{unit}"
        if interval and figure.low is not None and figure.high is not None:
            words += f" ({figure.low * scale:.{digits}f}-{figure.high * scale:.{digits}f})"
        return words

    return cell


def _speed_up(row: ResultRow) -> str:
    return "1" if row.spec.name == ORDINARY else _figure("speed_up")(row)


def _text(row: ResultRow) -> str:
    """Returns the result of the comparison with the text of `generate`, in words."""
    check = row.check
    if row.spec.name == (OURS if row.contest.arrivals else ORDINARY):
        return "-"
    if check.agreement is not None:
        return "equal" if check.agreement == 1 else f"{check.agreement:.1%} equal"
    return "-" if check.p_value is None else f"p {check.p_value:.2f}"


# Two tables a contest: each fits into 80 columns.
_SPEED: tuple[Column, ...] = (
    ("tokens/s", _figure("tokens_per_second", digits=1, interval=False)),
    ("speed-up", _speed_up),
    ("first ms", _figure("time_to_first_token", scale=1e3, digits=0, interval=False)),
    ("ms/token", _figure("time_per_output_token", scale=1e3, digits=1, interval=False)),
    ("MB", lambda row: f"{row.peak_memory / 1e6:.0f}"),
    ("text", _text),
)
_DRAFTS: tuple[Column, ...] = (
    ("tokens/round", _figure("tokens_per_round")),
    ("accepted", _figure("acceptance_rate", scale=100, digits=0, interval=False, unit="%")),
    ("path", _figure("path_length", interval=False)),
    ("nodes", _figure("tree_size", digits=1, interval=False)),
    ("rounds", _figure("rounds", digits=1, interval=False)),
    ("MBSU", _figure("memory_bound_speed_up", interval=False)),
)
_USER: Column = ("a user", _figure("user_speed", digits=1, interval=False))
# Of requests that arrive, the figures of the first table and of the second.
_ARRIVED: tuple[Column, ...] = (
    _SPEED[0],
    ("goodput", _figure("goodput", digits=1, interval=False)),
    _USER,
    ("requests/s", _figure("request_rate", interval=False)),
    ("tokens/round", _figure("tokens_per_round", interval=False)),
    ("text", _text),
)
_WAITED: tuple[Column, ...] = tuple(
    (f"{heading} {share}", _figure(f"{name}_p{share}", scale=1e3, digits=0, interval=False))
    for heading, name in (("first", "first_token"), ("gap", "gap"))
    for share in PERCENTILES
)
_EFFICIENCY: Column = ("block efficiency", _figure("block_efficiency"))
_SCORE: Column = ("right", _figure("score", scale=100, digits=0, interval=False, unit="%"))


MEANINGS = {
    "tokens/s": "new tokens over wall time, the prompt included",
    "a user": "new tokens over the time until a text was there, waiting included; mean of all texts",
    "goodput": "tokens/s of the texts whose user had the promised speed, waiting included",
    "requests/s": "requests that arrived",
    "first 50": "ms from a request's arrival until its first token, median; 95 and 99: percentiles",
    "gap 50": "ms between two pieces of a text, each of one round's tokens, median; 95 and 99 likewise",
    "speed-up": "tokens/s divided by the rate of generate() on the same prompts",
    "first ms": "time until the first token is known",
    "ms/token": "time after the first token, per further token",
    "MB": "the largest memory while a text was written",
    "text": "comparison with the text of generate(): equal, the share of equal tokens, or a p-value",
    "tokens/round": "new tokens of the rounds, over rounds; a token from the prompt's pass is left out",
    "block efficiency": "all new tokens over rounds; a token that came with the prompt's pass is counted, as "
    "where papers divide a text's length by its target calls",
    "accepted": "accepted draft tokens over drafted ones",
    "path": "accepted draft tokens over rounds",
    "nodes": "drafted tokens over rounds",
    "rounds": "rounds per text",
    "MBSU": "memory-bound speed-up: the speed-up if a pass cost the bytes of its weights",
    "right": "right answers over scored ones",
}
"""The meaning of every column."""


def columns(rows: Sequence[ResultRow]) -> tuple[Column, ...]:
    """Returns all columns of a contest's results."""
    if rows and rows[0].contest.arrivals:
        return (*_ARRIVED, *_WAITED)
    score = (_SCORE,) if any("score" in row.figures for row in rows) else ()
    first, *rest = _DRAFTS
    return (*_speeds(rows), first, _EFFICIENCY, *rest, *score)


def _speeds(rows: Sequence[ResultRow]) -> tuple[Column, ...]:
    """Returns the columns of the first table; in a batch they say what one of the users has."""
    if rows[0].contest.rows == 1:
        return _SPEED
    return tuple(_USER if column[0] == "ms/token" else column for column in _SPEED)


def label(row: ResultRow) -> str:
    """Returns the name of a contender, marked if it is lossy."""
    return row.spec.label if row.lossless else f"{row.spec.label} (lossy)"


def tables(rows: Sequence[ResultRow], described: Mapping[str, Any], console: Console) -> None:
    """Two tables a contest of a `document`: how fast, and how well drafted; they fit into 80 columns."""
    console.print(headline(described), soft_wrap=False)
    for contest in dict.fromkeys(row.contest for row in rows):
        contest_rows = [row for row in rows if row.contest == contest]
        drafts = (*_DRAFTS, _SCORE) if any("score" in row.figures for row in contest_rows) else _DRAFTS
        first, second = _speeds(contest_rows), drafts
        if contest.arrivals:
            first, second = _ARRIVED, _WAITED
        console.print()
        console.print(contest.title, style="bold")
        _table(contest_rows, first, console)
        _table(contest_rows, second, console)
        for row in contest_rows:
            if row.refused:
                console.print(f"{row.spec.label} did not run: {row.refused}")
    console.print()
    console.print(" ".join(notes(rows, described)))


def _table(rows: Sequence[ResultRow], columns: Sequence[Column], console: Console) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("", overflow="fold", min_width=10)
    for heading, _ in columns:
        table.add_column(heading, justify="right", no_wrap=console.width >= 60)
    for row in rows:
        if not row.refused:
            table.add_row(label(row), *(cell(row) for _, cell in columns))
    console.print(table)


def notes(rows: Sequence[ResultRow], described: Mapping[str, Any]) -> list[str]:
    """Returns the notes below the tables, each a sentence or two."""
    words = ["In brackets: 95 % intervals, bootstrapped over prompts."]
    least = min((row.prompts for row in rows if not row.refused), default=0)
    if 0 < least < 10:
        words.append(f"Some rest on only {least} prompt{'s' if least > 1 else ''}; take them for a hint.")
    precisions = {row.check.precision for row in rows if row.check.precision}
    if precisions:
        words.append(f"Texts at temperature 0 were compared with generate()'s in {precisions.pop()}.")
        if any(row.check.agreement not in (None, 1) for row in rows):
            words.append("In half precision they may differ where two tokens are nearly equal.")
    if any((row.check.p_value, row.check.p_together) != (None, None) for row in rows):
        words.append(
            "p: how often texts of generate()'s own distribution differ from its texts as much as these."
        )
    together = {
        (row.contest.on_all_data, row.spec.label): (
            f"{row.spec.label} at {row.contest.temperature:g} {row.check.p_together:.2f}"
        )
        for row in rows
        if row.check.p_together is not None
    }
    if together:
        words.append(f"p of all data sets together: {', '.join(together.values())}.")
    slower = [
        row.spec.label
        for row in rows
        if row.spec.name != OURS
        and (figure := row.figures.get("speed_up"))
        and figure.high is not None
        and figure.high < 1
    ]
    if any(not row.lossless for row in rows):
        words.append("Lossy: its texts are not distributed as the target's own.")
    for pair, cell in described["passes"].items():
        if known := cell.get("shared_tokens"):
            words.append(
                f"{pair.replace(',', ' with ')}: the draft has another tokenizer and proposes "
                f"{known['shared']} of the target's {known['target']} tokens; of the prompts they are "
                f"{known['coverage']:.1%}."
            )
    if slower:
        names = ", ".join(dict.fromkeys(slower))
        words.append(f"Slower here than ordinary decoding: {names}.")
    return [*words, *_notes_on_load(rows, described)]


def _notes_on_load(rows: Sequence[ResultRow], described: Mapping[str, Any]) -> list[str]:
    words, configuration = [], described["configuration"]
    prompts = configuration.get("prompts", 0)
    if any(row.contest.rows > prompts for row in rows if not row.contest.arrivals):
        words.append(f"Batches of more than {prompts} rows repeat their prompts; give more --prompts.")
    if any(row.contest.arrivals for row in rows):
        words.append("Texts of requests are compared with the texts of ordinary decoding.")
        promise = configuration.get("promise", 0)
        words.append(
            f"Goodput: of the texts with {promise:g} tokens/s or more, waiting included."
            if promise
            else "Goodput needs a promised speed; give --promise."
        )
    return words


def headline(run: Mapping[str, Any]) -> str:
    """Versions and hardware in one line, and whether the target's weights are streamed."""
    v, streamed = run["versions"], run["configuration"].get("offload")
    return (
        f"draftwood {v['draftwood']}, torch {v['torch']}, transformers {v['transformers']}; "
        f"{run['hardware']['device']}{'; targets streamed from the disk' if streamed else ''}"
    )


def document(
    rows: Sequence[ResultRow], run: Mapping[str, Any], cells: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that was found, for programs; the texts' own lines stay in `cells.jsonl`."""
    units = {metric.name: metric.unit for metric in METRICS}
    return {
        **run,
        "units": {**units, **UNITS, "peak_memory": "bytes"},
        "results": [
            {
                **attrs.asdict(row.contest),
                "contender": row.spec.label,
                "budget": row.spec.budget,
                "prompts": row.prompts,
                "prompt_tokens": row.prompt_tokens,
                "refused": row.refused,
                "lossless": row.lossless,
                "peak_memory": row.peak_memory,
                "check": attrs.asdict(row.check),
                "figures": {name: attrs.asdict(figure) for name, figure in row.figures.items()},
            }
            for row in rows
        ],
        "passes": {cell["key"].split(" | ")[1]: cell for cell in cells.values() if cell["kind"] == "passes"},
    }


def write_csv(file: Path, rows: Sequence[ResultRow], run: Mapping[str, Any]) -> None:
    """One line a contender and contest; every metric with the ends of its interval; versions and hardware."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    where = [field.name for field in attrs.fields(Contest)]
    names = [metric.name for metric in METRICS]
    names += list(UNITS) if any(row.contest.arrivals for row in rows) else []
    figures = [name + end for name in names for end in ("", "_low", "_high")]
    kept = {**run["versions"], **run["hardware"]}
    named = ["contender", "budget", "prompts", "prompt_tokens"]
    checks = ["peak_memory", "agreement", "precision", "p_value", "p_together", "refused", "lossless"]
    lines.writerow([*where, *named, *figures, *checks, *kept])
    for row in rows:
        values: list[Any] = []
        for name in names:
            figure = row.figures.get(name)
            values += [figure.value, figure.low, figure.high] if figure else [None] * 3
        check = list(attrs.astuple(row.check))
        lines.writerow(
            [
                *attrs.astuple(row.contest),
                *(row.spec.label, row.spec.budget, row.prompts, row.prompt_tokens),
                *values,
                *(row.peak_memory, *check, row.refused, row.lossless),
                *kept.values(),
            ]
        )
    write_text(file, out.getvalue())
