"""Parts that all plots of a run share: colours, panels below a title, one legend, lines by method.

Colours are from Okabe and Ito, which colour-blind people tell apart; markers differ too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.terminal.shown import visible

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5C00", "#000000")
MARKERS = "osD^vP*X"
_SIZES = ("budget", "length")  # options that set the nodes of a tree
GREY, INK = "#6B6B6B", "#222222"
STYLE: Any = {
    "font.size": 10,
    "text.parse_math": False,  # a name may hold dollar signs
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ECECEC",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "legend.frameon": False,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "lines.linewidth": 1.8,
    "lines.markersize": 6,
}


def tree_nodes(row: ResultRow) -> int | None:
    """Returns the nodes of the contender's trees, swept or given as an option."""
    if row.spec.budget is not None:
        return row.spec.budget
    given = [word.partition("=") for word in row.spec.options]
    return next((int(value) for name, _, value in given if name in _SIZES and value.isdecimal()), None)


def method_name(row: ResultRow) -> str:
    """Returns the contender without its size: the name of one line of a plot."""
    if tree_nodes(row) is None:
        return visible(row.spec.label)
    kept = [word for word in row.spec.options if word.partition("=")[0] not in _SIZES]
    return visible(attrs.evolve(row.spec, options=tuple(kept)).label)


def method_styles(rows: Sequence[ResultRow]) -> dict[str, dict[str, Any]]:
    """One colour and marker a method, the same in all plots."""
    methods = dict.fromkeys(method_name(row) for row in rows if row.spec.name != ORDINARY)
    return {
        method: {"color": COLOURS[i % len(COLOURS)], "marker": MARKERS[i % len(MARKERS)]}
        for i, method in enumerate(methods)
    }


def panels(
    title: str, subtitle: str, down: int, across: int, *, height: float = 2.9, share: bool = True
) -> tuple[Any, Any]:
    """A figure of panels with shared axes below a title, room for a legend on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    tall = height * down + 1.0
    below = ConstrainedLayoutEngine(rect=(0, 0, 1, 1 - 0.7 / tall))
    figure = Figure(figsize=(max(7.2, 3.1 * across + 2.4), tall), layout=below)
    FigureCanvasAgg(figure)
    axes = figure.subplots(down, across, squeeze=False, sharex=True, sharey=share)
    figure.text(0.01, 1 - 0.12 / tall, visible(title), fontsize=13, fontweight="bold", color=INK, va="top")
    figure.text(0.01, 1 - 0.42 / tall, visible(subtitle), color=GREY, fontsize=9, va="top")
    return figure, axes


def legend(figure: Any, axes: Any) -> None:
    """One legend for all panels, outside of them."""
    handles: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        figure.legend(handles.values(), handles.keys(), loc="outside right upper", fontsize=9)


def by_contest(
    rows: Sequence[ResultRow],
) -> tuple[list[float], list[str], dict[tuple[float, str], list[ResultRow]]]:
    """Temperatures, data sets, and the rows of each pair of them."""
    by: dict[tuple[float, str], list[ResultRow]] = {}
    for row in rows:
        by.setdefault((row.contest.temperature, row.contest.data), []).append(row)
    return sorted({temperature for temperature, _ in by}), list(dict.fromkeys(data for _, data in by)), by


def panel_title(temperature: float, data: str) -> str:
    return f"{visible(data)}, temperature {temperature:g}"
