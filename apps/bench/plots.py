"""The plots of a run, as PNG files; drawn without a display."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.load_plots import load_figures
from draftwood.apps.bench.plan import BINS
from draftwood.apps.bench.plot_parts import (
    COLOURS,
    GREY,
    INK,
    MARKERS,
    STYLE,
    by_contest,
    legend,
    method_name,
    method_styles,
    panel_title,
    panels,
    tree_nodes,
)
from draftwood.apps.terminal.shown import visible
from draftwood.base.whole_files import inner_folder, write_by
from draftwood.decoding.pass_time import PassTime

_PALE = "#DADADA"
_SEEN = 0.5  # tokens that must have been drawn in a bin for it to be shown
_PARTS = (
    ("draft", "draft_seconds", "#E69F00"),
    ("target", "target_seconds", "#0072B2"),
    ("verification", "verify_seconds", "#009E73"),
    ("prompt and the rest", "rest_seconds", "#B8B8B8"),
)


def draw(folder: Path, rows: Sequence[ResultRow], cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Draw every plot that the results allow; returns the names of the files.

    Args:
        folder: where they go; made where it is missing.
        rows: the results.
        cells: everything that was measured; acceptance and passes are read there.
    """
    import matplotlib

    inner_folder(folder)
    names = []
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures([row for row in rows if not row.refused], list(cells.values())):
            write_by(folder / name, partial(figure.savefig, format="png", dpi=150))
            names.append(name)
    return names


def _figures(rows: Sequence[ResultRow], cells: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Any]]:
    yield from load_figures(rows, method_styles(rows))
    rows = [row for row in rows if not row.contest.arrivals]
    styles = method_styles(rows)
    for number, (pair, group) in enumerate(_groups(rows).items(), start=1):
        end = f"-{number}.png" if len(_groups(rows)) > 1 else ".png"
        yield f"speed{end}", _speed(pair, group, styles)
        if len({row.contest.temperature for row in group}) > 1:
            yield f"temperature{end}", _temperature(pair, group, styles)
        yield f"components{end}", _components(pair, group)
    pairs = list(dict.fromkeys(row.contest.pair for row in rows))
    for number, pair in enumerate(pairs, start=1):
        end = f"-{number}.png" if len(pairs) > 1 else ".png"
        agreement = [cell for cell in cells if cell["kind"] == "pair" and cell["pair"] == pair]
        if agreement:
            yield f"acceptance{end}", _acceptance(pair, agreement)
        for cell in cells:
            if cell["key"] == f"passes | {pair}":
                yield f"passes{end}", _passes(pair, cell)


def _groups(rows: Sequence[ResultRow]) -> dict[str, list[ResultRow]]:
    """Rows that go into one figure: of one pair and one choice of lengths."""
    groups: dict[str, list[ResultRow]] = {}
    for row in rows:
        contest = row.contest
        cut = f"prompts cut to {contest.prompt_length} tokens, " if contest.prompt_length else ""
        title = (
            f"{contest.pair.replace(',', ' with ')}, {cut}{contest.new_tokens} new tokens{contest.company}"
        )
        groups.setdefault(title, []).append(row)
    return groups


def _speed(pair: str, rows: Sequence[ResultRow], styles: Mapping[str, dict[str, Any]]) -> Any:
    """Speed against budget; a contender without a budget is a level line."""
    temperatures, names, by = by_contest(rows)
    figure, axes = panels("Speed against budget", pair, len(temperatures), len(names))
    budgets = sorted({size for row in rows if (size := tree_nodes(row))})
    for down, temperature in enumerate(temperatures):
        for across, data in enumerate(names):
            axis, shown = axes[down, across], by.get((temperature, data), [])
            axis.set_title(panel_title(temperature, data))
            axis.axhline(1, color=INK, linewidth=1.2, linestyle=(0, (1, 2)), label="ordinary generate()")
            for index, (method, style) in enumerate(styles.items()):
                at = (index + 1) / (len(styles) + 1)
                _line(axis, method, [row for row in shown if method_name(row) == method], style, at=at)
            if budgets:
                axis.set_xscale("log", base=2)
                axis.set_xticks(budgets, [str(budget) for budget in budgets])
                axis.minorticks_off()
            else:
                axis.set_xticks([])
            if down == len(temperatures) - 1:
                axis.set_xlabel("budget (nodes of a tree)" if budgets else "")
            if across == 0:
                axis.set_ylabel("tokens/s over generate()'s")
    axes[0, 0].set_ylim(bottom=0)  # of all panels, when all is drawn
    legend(figure, axes)
    return figure


def _line(axis: Any, method: str, rows: Sequence[ResultRow], style: Mapping[str, Any], *, at: float) -> None:
    """Draw speeds over the budgets with intervals; without a budget, a level line with its interval.

    Args:
        axis: the panel.
        method: the name of the line.
        rows: its results.
        style: of the line.
        at: a place from 0 to 1 that tells intervals of several methods apart.
    """
    shown = [(row, row.figures["speed_up"]) for row in rows if "speed_up" in row.figures]
    swept = sorted(
        ((size, figure) for row, figure in shown if (size := tree_nodes(row))), key=lambda one: one[0]
    )
    if swept:
        sizes, figures = zip(*swept, strict=True)
        x = [size * 2 ** (0.2 * (at - 0.5)) for size in sizes]
        bars = None
        if all(point.low is not None for point in figures):
            bars = [
                [point.value - point.low for point in figures],
                [point.high - point.value for point in figures],
            ]
        values = [point.value for point in figures]
        axis.errorbar(x, values, bars, capsize=2.5, elinewidth=1.2, label=method, **style)
    for row, figure in shown:
        if tree_nodes(row) is None:
            axis.axhline(figure.value, color=style["color"], linewidth=1.5, linestyle="--", label=method)
            if figure.low is not None:
                across = axis.get_yaxis_transform()  # x from 0 to 1 over the panel
                axis.vlines(at, figure.low, figure.high, style["color"], linewidth=1.2, transform=across)
                ends = [figure.low, figure.high]
                axis.plot([at, at], ends, "_", color=style["color"], markersize=6, transform=across)
                axis.dataLim.update_from_data_y(ends, ignore=False)


def _temperature(pair: str, rows: Sequence[ResultRow], styles: Mapping[str, dict[str, Any]]) -> Any:
    """Tokens per round against temperature; of a method's budgets the largest."""
    temperatures, names, by = by_contest(rows)
    figure, axes = panels("Tokens per round against temperature", pair, 1, len(names), height=3.2)
    for across, data in enumerate(names):
        axis = axes[0, across]
        axis.set_title(visible(data))
        for method, style in styles.items():
            points = []
            for temperature in temperatures:
                of_method = [r for r in by.get((temperature, data), []) if method_name(r) == method]
                best = max(of_method, key=lambda row: tree_nodes(row) or 0, default=None)
                if best is not None and "tokens_per_round" in best.figures:
                    points.append((temperature, best.figures["tokens_per_round"], visible(best.spec.label)))
            if points:
                x, figures, labels = zip(*points, strict=True)
                bars = None
                if all(point.low is not None for point in figures):
                    bars = [
                        [point.value - point.low for point in figures],
                        [point.high - point.value for point in figures],
                    ]
                axis.errorbar(
                    x,
                    [point.value for point in figures],
                    bars,
                    capsize=2,
                    elinewidth=1,
                    label=labels[-1],
                    **style,
                )
        axis.set_xticks(temperatures, [f"{temperature:g}" for temperature in temperatures])
        axis.set_xlabel("temperature")
    axes[0, 0].set_ylim(bottom=0.9)  # of all panels, when all is drawn
    axes[0, 0].set_ylabel("tokens per round")
    legend(figure, axes)
    return figure


def _components(pair: str, rows: Sequence[ResultRow]) -> Any:
    """Time a token by component; transformers' own modes have one bar, as they do not tell."""
    temperatures, names, by = by_contest(rows)
    most = max(len(shown) for shown in by.values())
    height = 0.34 * most + 0.7
    figure, axes = panels("Where the time goes", pair, len(temperatures), len(names), height=height)
    for down, temperature in enumerate(temperatures):
        for across, data in enumerate(names):
            axis, shown = axes[down, across], by.get((temperature, data), [])
            axis.set_title(panel_title(temperature, data))
            axis.grid(False, axis="y")
            for index, row in enumerate(shown):
                _bar(axis, index, row)
            axis.set_yticks(range(len(shown)), [visible(row.spec.label) for row in shown])
            axis.tick_params(axis="y", length=0, labelcolor=INK)
            if down == len(temperatures) - 1:
                axis.set_xlabel("ms per token")
    axes[0, 0].invert_yaxis()
    legend(figure, axes)
    return figure


def _bar(axis: Any, index: int, row: ResultRow) -> None:
    total = (row.value("seconds_per_token") or 0.0) * 1e3
    if "draft_seconds" not in row.figures:
        axis.barh(
            index,
            total,
            color=_PALE,
            height=0.62,
            hatch="////",
            edgecolor="white",
            linewidth=0,
            label="not broken down",
        )
        return
    left = 0.0
    for part, name, colour in _PARTS:
        length = (row.value(name) or 0.0) * 1e3
        if name == "rest_seconds":
            length = total - left  # the prompt's passes belong to it here
        axis.barh(index, length, left=left, color=colour, height=0.62, label=part)
        left += length


def _acceptance(pair: str, cells: Sequence[Mapping[str, Any]]) -> Any:
    """DySpec's figure 2: acceptance, and the target's probability, against the draft's probability."""
    temperatures = sorted({cell["temperature"] for cell in cells})
    figure, axes = panels(
        "Acceptance against draft probability", pair.replace(",", " with "), 1, 2, height=3.4, share=False
    )
    left, right = axes[0]
    right.grid(False)
    middles = (np.arange(BINS) + 0.5) / BINS
    for index, temperature in enumerate(temperatures):
        of_temperature = [cell for cell in cells if cell["temperature"] == temperature]
        drawn, accepted = (
            np.sum([cell[name] for cell in of_temperature], 0) for name in ("drawn", "accepted")
        )
        seen = drawn > _SEEN
        style = {"color": COLOURS[index % len(COLOURS)], "marker": MARKERS[index % len(MARKERS)]}
        left.plot(
            middles[seen],
            accepted[seen] / drawn[seen],
            label=f"temperature {temperature:g}",
            markersize=4,
            **style,
        )
    left.plot([0, 1], [0, 1], color=GREY, linewidth=1, linestyle=":")
    left.set_title("acceptance")
    left.set_xlabel("draft probability of the token")
    left.set_ylabel("chance to be accepted")
    left.set_xlim(0, 1)
    left.set_ylim(0, 1.02)
    shown = max(temperatures)
    density = np.sum([cell["target"] for cell in cells if cell["temperature"] == shown], 0)
    columns = density / np.maximum(density.sum(1, keepdims=True), 1e-12)
    image = right.imshow(
        columns.T, origin="lower", extent=(0, 1, 0, 1), cmap="Blues", vmin=0, vmax=1, aspect="auto"
    )
    right.set_title(f"target probability, temperature {shown:g}")
    right.set_xlabel("draft probability of the token")
    right.set_ylabel("target probability")
    bar = figure.colorbar(image, ax=right, pad=0.02)
    bar.set_label("share of the column", color=INK)
    bar.outline.set_visible(False)
    figure.legend(
        *left.get_legend_handles_labels(), loc="upper right", ncols=min(3, len(temperatures)), fontsize=9
    )
    return figure


def _passes(pair: str, cell: Mapping[str, Any]) -> Any:
    """Time of a pass against its nodes, with the fits of STree's equations 7 and 8."""
    names = [name for name in ("target", "draft") if cell[name] is not None]
    title = "Time of a pass against its nodes"
    figure, axes = panels(title, pair.replace(",", " with "), 1, len(names), height=3.3, share=False)
    for axis, name, colour in zip(axes[0], names, COLOURS, strict=False):
        times = {int(size): taken for size, taken in cell[name]["seconds"].items()}
        fit = PassTime(**cell[name]["fit"])
        for size, taken in times.items():
            axis.scatter([size] * len(taken), [t * 1e3 for t in taken], s=9, color=colour, alpha=0.25, lw=0)
        sizes, medians = list(times), [float(np.median(taken)) * 1e3 for taken in times.values()]
        axis.scatter(sizes, medians, color=colour, zorder=3, label="medians")
        x = np.linspace(1, max(sizes), 200)
        axis.plot(x, [fit(n) * 1e3 for n in x], color=colour)
        axis.set_title(f"{name}: {_formula(fit)}")
        axis.set_xlabel("nodes n")
        axis.set_ylim(bottom=0)
    axes[0, 0].set_ylabel("ms (points: passes and their medians)")
    return figure


def _formula(fit: PassTime) -> str:
    """The fit in milliseconds; without the quadratic part it is equation 7, with it equation 8."""
    parts = [f"{fit.constant * 1e3:.3g}"]
    parts += [f"{fit.linear * 1e3:.2g} n"] if fit.linear else []
    parts += [f"{fit.quadratic * 1e3:.1g} n²"] if fit.quadratic else []
    return " + ".join(parts) + " ms"
