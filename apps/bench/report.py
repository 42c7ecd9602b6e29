"""The report of a run on one page: results, plots, definitions, environment and the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.bench import show
from draftwood.apps.bench.figures import ResultRow
from draftwood.apps.bench.page import HtmlPage, MarkdownPage, Page
from draftwood.apps.bench.plan import BenchPlan
from draftwood.base.whole_files import write_text

HTML, MARKDOWN = "report.html", "report.md"

# Options of bench by the fields of a plan; data sets are named by their files.
_OPTIONS = {
    "pairs": "--pair",
    "strategies": "--strategy",
    "temperatures": "--temperature",
    "budgets": "--budget",
    "prompt_lengths": "--prompt-length",
    "new_tokens": "--new-tokens",
    "loads": "--load",
}
_ALT = {
    "throughput": "Tokens a second in all against the speed of a user",
    "goodput": "Goodput and waiting against the load",
    "speed": "Speed against budget, with 95 % intervals",
    "temperature": "Tokens per round against temperature, with 95 % intervals",
    "components": "Time of a token by component",
    "acceptance": "Acceptance against draft probability",
    "passes": "Time of a pass against its nodes",
}


def write(
    folder: Path, rows: Sequence[ResultRow], described: Mapping[str, Any], plots: Sequence[Path]
) -> None:
    """Write the report of the results `rows` into `folder`, as HTML and as Markdown.

    Args:
        folder: the results folder.
        rows: the results.
        described: what `show.document` returns for them.
        plots: files of plots, in a folder inside `folder`.
    """
    title = f"draftwood bench: {', '.join(dict.fromkeys(row.contest.pair for row in rows))}"
    for name, page in ((HTML, HtmlPage(title)), (MARKDOWN, MarkdownPage())):
        _fill(page, title, rows, described, plots)
        write_text(folder / name, page.text())


def _fill(
    page: Page,
    title: str,
    rows: Sequence[ResultRow],
    described: Mapping[str, Any],
    plots: Sequence[Path],
) -> None:
    page.heading(title, 1)
    page.paragraph(show.headline(described))
    page.heading("Results", 2)
    for contest in dict.fromkeys(row.contest for row in rows):
        contest_rows = [row for row in rows if row.contest == contest]
        page.heading(contest.title, 3)
        columns = show.columns(contest_rows)
        page.table(
            ["method", *(heading for heading, _ in columns)],
            [
                [show.label(row), *(cell(row) for _, cell in columns)]
                for row in contest_rows
                if not row.refused
            ],
        )
        for row in contest_rows:
            if row.refused:
                page.paragraph(f"{row.spec.label} did not run: {row.refused}")
    for note in show.notes(rows, described):
        page.paragraph(note)
    if plots:
        page.heading("Plots", 2)
    for file in plots:
        page.image(file, _ALT[file.stem.partition("-")[0]])
    page.heading("Columns", 2)
    shown = {heading for row in rows for heading, _ in show.columns([row])}
    meanings = [(name, words) for name, words in show.MEANINGS.items() if name in shown]
    page.table(["column", "meaning"], meanings, words=True)
    page.heading("Environment", 2)
    page.table(["", "value"], _environment(described), words=True)
    page.heading("Command", 2)
    page.code(command(described["configuration"]))
    if any(described["configuration"]["data"].values()):
        page.paragraph("Data sets are named without their folders and endings.")


def _environment(described: Mapping[str, Any]) -> list[tuple[str, str]]:
    configuration = described["configuration"]
    found = {**described["hardware"], **described["versions"], "measured": str(described.get("created", ""))}
    for name in ("dtype", "engine", "prompts", "repetitions", "seed"):
        if name in configuration:
            found[name] = str(configuration[name])
    lines = list(found.items())
    lines += [
        (f"data set {name}", f"digest {digest}") for name, digest in configuration["data"].items() if digest
    ]
    return lines


def option_of(name: str) -> str:
    """Returns the option of bench that sets a field of the plan."""
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")


def command(configuration: Mapping[str, Any]) -> str:
    """Returns the command line that measures a run with this configuration."""
    default = {field.name: field.default for field in attrs.fields(BenchPlan)}
    words = ["draftwood", "bench"]
    for name, digest in configuration["data"].items():
        words += ["--data", name] if digest else []
    for name, value in configuration.items():
        if name not in default or name == "data":
            continue
        several = isinstance(default[name], tuple)
        if (tuple(value) if several else value) == default[name]:
            continue
        option = option_of(name)
        for one in value if several else [value]:
            words += (
                [option] if value is True else [option, f"{one:g}" if isinstance(one, float) else str(one)]
            )
    return shlex.join(words)
