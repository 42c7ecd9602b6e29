"""The results as a LaTeX table, for the package booktabs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draftwood.apps.bench import show
from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.intervals import Figure
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.terminal.shown import visible

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def table(rows: Sequence[ResultRow], described: Mapping[str, Any]) -> str:
    """Returns a table of speed-up, tokens per round and acceptance, with intervals, a block per contest.

    Where texts were written together, it also has tokens a second in all and of each user; of requests that
    arrive, the goodput too.
    """
    columns = {**_COLUMNS}
    if any(row.contest.rows > 1 or row.contest.arrivals for row in rows):
        columns |= {"Tokens/s": _rate("tokens_per_second"), "Of a user": _rate("user_speed")}
    if any("goodput" in row.figures for row in rows):
        columns["Goodput"] = _rate("goodput")
    lines = [
        "% Needs \\usepackage{booktabs}.",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{escaped(_caption(rows, described))}}}",
        "  \\label{tab:draftwood-bench}",
        f"  \\begin{{tabular}}{{l{'r' * len(columns)}}}",
        "    \\toprule",
        f"    {' & '.join(('Method', *columns))} \\\\",
    ]
    for contest in dict.fromkeys(row.contest for row in rows):
        title = escaped(contest.title)
        lines += ["    \\midrule", f"    \\multicolumn{{{1 + len(columns)}}}{{l}}{{{title}}} \\\\"]
        for row in rows:
            if row.contest == contest and not row.refused:
                cells = (escaped(show.label(row)), *(of(row) for of in columns.values()))
                lines.append(f"    {' & '.join(cells)} \\\\")
    return "\n".join((*lines, "    \\bottomrule", "  \\end{tabular}", "\\end{table}", ""))


def escaped(text: str) -> str:
    """Returns `text` with every sign that means something to LaTeX made plain."""
    return "".join(_SPECIAL.get(sign, sign) for sign in visible(text))


def _caption(rows: Sequence[ResultRow], described: Mapping[str, Any]) -> str:
    prompts = sorted({row.prompts for row in rows if not row.refused})
    counted = f"{prompts[0]}" if len(prompts) == 1 else f"{prompts[0]} to {prompts[-1]}"
    return (
        f"Tokens per second divided by the rate of generate(), {counted} prompts per block, with 95 % "
        "intervals bootstrapped over prompts. Tokens per round leave out a token from the prompt's pass. "
        f"{show.headline(described)}."
    )


def _figure(row: ResultRow, name: str) -> str:
    figure: Figure | None = row.figures.get(name)
    if figure is None:
        return "--"
    if figure.low is None or figure.high is None:
        return f"{figure.value:.2f}"
    return f"{figure.value:.2f} [{figure.low:.2f}, {figure.high:.2f}]"


def _share(row: ResultRow) -> str:
    value = row.value("acceptance_rate")
    return "--" if value is None else f"{value:.0%}".replace("%", "\\%")


def _speed_up(row: ResultRow) -> str:
    return "1" if row.spec.name == ORDINARY else _figure(row, "speed_up")


def _rate(name: str) -> Callable[[ResultRow], str]:
    def cell(row: ResultRow) -> str:
        value = row.value(name)
        return "--" if value is None else f"{value:.1f}"

    return cell


_COLUMNS: Mapping[str, Callable[[ResultRow], str]] = {
    "Speed-up": _speed_up,
    "Tokens per round": lambda row: _figure(row, "tokens_per_round"),
    "Accepted": _share,
}
