"""Plots of many users: throughput against the speed of one of them, and what keeps up with arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.plan import Contest
from draftwood.apps.bench.plot_parts import INK, by_contest, legend, panel_title, panels
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.terminal.shown import visible

_PLAIN: dict[str, Any] = {"color": INK, "marker": "", "linestyle": (0, (1, 2))}
_TIMES = (("first_token_p95", "until the first token, p95, s"), ("gap_p95", "between pieces, p95, s"))


def load_figures(
    rows: Sequence[ResultRow], styles: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, Any]]:
    """Returns the plots of batches of several sizes and of arrivals, with the names of their files.

    Args:
        rows: the results.
        styles: of lines, by method; here each contender has one.
    """
    looks = list(styles.values()) or [_PLAIN]
    batches = [row for row in rows if not row.contest.arrivals]
    if any(row.contest.rows > 1 for row in batches):
        groups = _groups(batches, lambda contest: attrs.evolve(contest, rows=1))
        for name, title, group in _named("throughput", groups):
            yield name, _throughput(title, group, looks)
    arriving = [row for row in rows if row.contest.load]
    groups = _groups(arriving, lambda contest: attrs.evolve(contest, load=0.0))
    for name, title, group in _named("goodput", groups):
        yield name, _by_load(title, group, looks)


def _groups(rows: Sequence[ResultRow], shared: Callable[[Contest], Contest]) -> dict[str, list[ResultRow]]:
    """Returns the rows of each figure by its title; data sets and temperatures are panels."""
    groups: dict[str, list[ResultRow]] = {}
    for row in rows:
        contest = shared(row.contest)
        cut = f"prompts cut to {contest.prompt_length} tokens, " if contest.prompt_length else ""
        pair = contest.pair.replace(",", " with ")
        title = f"{pair}, {cut}{contest.new_tokens} new tokens{contest.company}"
        groups.setdefault(title, []).append(row)
    return groups


def _named(name: str, groups: Mapping[str, list[ResultRow]]) -> Iterator[tuple[str, str, list[ResultRow]]]:
    for number, (title, group) in enumerate(groups.items(), start=1):
        end = f"-{number}.png" if len(groups) > 1 else ".png"
        yield name + end, title, group


def _lines(rows: Sequence[ResultRow], looks: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Returns the line of every contender by its label; `generate()` is dotted."""
    drafted = dict.fromkeys(row.spec.label for row in rows if row.spec.name != ORDINARY)
    lines = {label: looks[number % len(looks)] for number, label in enumerate(drafted)}
    # More contenders than methods, as with several budgets: the same colours again, in dashes.
    dashes = ["-", "--", ":", "-."]
    return {
        ORDINARY: _PLAIN,
        **{
            label: {**look, "linestyle": dashes[number // len(looks) % len(dashes)]}
            for number, (label, look) in enumerate(lines.items())
        },
    }


def _throughput(title: str, rows: Sequence[ResultRow], looks: Sequence[dict[str, Any]]) -> Any:
    """Tokens a second of all rows against the speed of one row; a line goes through the sizes of batches."""
    temperatures, names, by = by_contest(rows)
    figure, axes = panels("Throughput against the speed of a user", title, len(temperatures), len(names))
    for down, temperature in enumerate(temperatures):
        for across, data in enumerate(names):
            axis, shown = axes[down, across], by.get((temperature, data), [])
            axis.set_title(panel_title(temperature, data))
            for label, look in _lines(rows, looks).items():
                of_label = sorted(
                    (row for row in shown if row.spec.label == label and "user_speed" in row.figures),
                    key=lambda row: row.contest.rows,
                )
                if not of_label:
                    continue
                users = [row.figures["user_speed"].value for row in of_label]
                totals = [row.figures["tokens_per_second"].value for row in of_label]
                axis.plot(users, totals, label=visible(label), markersize=4, **look)
                for row, x, y in zip(of_label, users, totals, strict=True):
                    axis.annotate(
                        f"{row.contest.rows}", (x, y), fontsize=7, xytext=(3, 3), textcoords="offset points"
                    )
            if down == len(temperatures) - 1:
                axis.set_xlabel("tokens/s of a user (numbers: rows)")
            if across == 0:
                axis.set_ylabel("tokens/s in all")
    axes[0, 0].set_xlim(left=0)
    axes[0, 0].set_ylim(bottom=0)
    legend(figure, axes)
    return figure


def _by_load(title: str, rows: Sequence[ResultRow], looks: Sequence[dict[str, Any]]) -> Any:
    """Goodput, where a speed was promised, and the times that users wait, against the load."""
    first = ("goodput", "goodput, tokens/s") if any("goodput" in row.figures for row in rows) else None
    shown = (*([first] if first else [("user_speed", "tokens/s of a user")]), *_TIMES)
    temperatures, names, by = by_contest(rows)
    places = [(temperature, data) for temperature in temperatures for data in names]
    figure, axes = panels("What keeps up with arrivals", title, len(places), len(shown), share=False)
    for down, place in enumerate(places):
        for across, (name, words) in enumerate(shown):
            axis = axes[down, across]
            axis.set_title(panel_title(*place) if across == 0 else "")
            for label, look in _lines(rows, looks).items():
                of_label = [row for row in by.get(place, []) if row.spec.label == label]
                points = [
                    (row.contest.load, row.figures[name].value) for row in of_label if name in row.figures
                ]
                if points:
                    axis.plot(*zip(*sorted(points), strict=True), label=visible(label), markersize=4, **look)
            axis.set_ylim(bottom=0)
            axis.set_ylabel(words)
            if down == len(places) - 1:
                axis.set_xlabel("requests over what ordinary decoding finishes")
    legend(figure, axes)
    return figure
