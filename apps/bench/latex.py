"""The results as a LaTeX table, for the package booktabs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.apps.bench import show
from draftwood.apps.bench.figures import Figure, ResultRow
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.terminal.shown import visible

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}


def table(rows: Sequence[ResultRow], described: Mapping[str, Any]) -> str:
    """Returns a table of speed-up, tokens per round and acceptance, with intervals, a block per contest."""
    lines = [
        "% Needs \\usepackage{booktabs}.",
        "\\begin{table}",
        "  \\centering",
        f"  \\caption{{{escaped(_caption(rows, described))}}}",
        "  \\label{tab:draftwood-bench}",
        "  \\begin{tabular}{lrrr}",
        "    \\toprule",
        "    Method & Speed-up & Tokens per round & Accepted \\\\",
    ]
    for contest in dict.fromkeys(row.contest for row in rows):
        lines += ["    \\midrule", f"    \\multicolumn{{4}}{{l}}{{{escaped(contest.title)}}} \\\\"]
        for row in rows:
            if row.contest == contest and not row.refused:
                speed = "1" if row.spec.name == ORDINARY else _figure(row, "speed_up")
                cells = (escaped(show.label(row)), speed, _figure(row, "tokens_per_round"), _share(row))
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
