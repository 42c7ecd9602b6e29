"""Every decoder family of the installed transformers, tiny: its backend, and whether its text is right."""

from __future__ import annotations

import contextlib
import csv
import logging
import multiprocessing
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console

from benchmarks.research.families_check import Finding, check
from benchmarks.research.families_models import VARIANTS
from benchmarks.research.families_models import families as all_families
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import InvalidInput

TABLE = Path(__file__).parents[1] / "data" / "families.csv"


def families(
    names: Annotated[list[str] | None, typer.Argument(help="Families; default: all.")] = None,
    limit: Annotated[float, typer.Option(help="Seconds a family may take.", min=1)] = 180,
    jobs: Annotated[int, typer.Option(help="Processes.", min=1)] = 2,
    engine: Annotated[
        str, typer.Option(help="eager, or openvino: then the families whose trees are one pass.")
    ] = "eager",
    output: Annotated[
        Path | None,
        typer.Option(help="The table; if families are named, only their lines are made anew."),
    ] = None,
) -> None:
    """Build every family tiny and compare trees and texts with transformers' own `generate()`.

    \b
    Examples:
      python -m benchmarks families
      python -m benchmarks families llama gpt_neo zamba2
      python -m benchmarks families --engine openvino
    """
    settle()
    if engine not in ("eager", "openvino"):
        raise InvalidInput(f"--engine is {engine!r}; give eager or openvino.")
    if output is None:
        output = TABLE if engine == "eager" else TABLE.with_name("families-openvino.csv")
    chosen = names or ([*all_families(), *VARIANTS] if engine == "eager" else _of_one_pass())
    if not names:
        output.unlink(missing_ok=True)

    def written() -> Iterator[Finding]:
        # One by one, so that what is there stays there.
        for finding in each(chosen, partial(check, engine=engine), Finding, limit=limit, jobs=jobs):
            write(output, finding)
            yield finding

    checked = watched(written(), "families", total=len(chosen), console=Console(stderr=True))
    findings = sorted(checked, key=lambda finding: chosen.index(finding.family))
    for finding in findings:
        if names or finding.result in ("differs", "refused", "not built"):
            off, one, three = map(_cell, (finding.law_s, finding.one, finding.three))
            typer.echo(
                f"{finding.family:<26}{finding.result:<14}{finding.backend:<20}{off:<9}{one:>2}{three:>2}  "
                f"{finding.reason}"
            )
    counts = Counter(finding.result for finding in findings)
    typer.echo(", ".join(f"{count} {result}" for result, count in counts.most_common()) + ".")


def write(path: Path, finding: Any, *, command: str = "families") -> None:
    """Writes one line per family, in alphabetical order; lines of other families stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    columns = [field.name for field in attrs.fields(type(finding))]
    lines: dict[str, list[str]] = {}
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            heading, *rows = list(csv.reader(file)) or [[]]
        if heading != columns:
            raise InvalidInput(
                f"{str(path)!r} has the columns {', '.join(heading) or 'none'}, not {', '.join(columns)}; "
                f"delete it and run `python -m benchmarks {command}`, which makes all of it anew."
            )
        lines = {row[0]: row for row in rows}
    lines[finding.family] = [_cell(value) for value in attrs.astuple(finding)]
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(columns)
        table.writerows(lines[name] for name in sorted(lines))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.1e}" if isinstance(value, float) else str(value)


def each(
    names: Sequence[str],
    look: Callable[[str], Any],
    finding_of: Callable[..., Any],
    *,
    limit: float,
    jobs: int,
) -> Iterator[Any]:
    """Returns the findings as they come, each from its own process, so that a crash ends only that one.

    Args:
        names: of the families.
        look: makes a finding of a name.
        finding_of: makes one of a name, a result and a reason, for a process that gave none.
        limit: seconds that a family may take.
        jobs: processes.
    """
    # A fork has transformers imported already; this process has no threads, of which a fork keeps the locks.
    fork = multiprocessing.get_context("fork")
    waiting, running = list(reversed(names)), dict[Connection, tuple[str, Any, float]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            ours, theirs = fork.Pipe()
            process = fork.Process(target=_send, args=(theirs, waiting[-1], look), daemon=True)
            process.start()
            theirs.close()
            running[ours] = (waiting.pop(), process, time.monotonic() + limit)
        ready = wait(list(running), timeout=1.0)
        for ours, (name, process, end) in list(running.items()):
            if ours not in ready and time.monotonic() < end:
                continue
            reason = f"it took more than {limit:g} s"
            try:
                finding = ours.recv() if ours in ready else finding_of(name, result="differs", reason=reason)
            except EOFError:
                finding = finding_of(name, result="differs", reason="its process died")
            process.kill()
            process.join()
            del running[ours]
            yield finding


def _send(to: Connection, name: str, look: Callable[[str], Any]) -> None:
    with _silent():
        to.send(look(name))


def _of_one_pass() -> list[str]:
    """The families whose trees are one pass, by the table of eager passes."""
    backends = "TransformerBackend", "SSMBackend", "HybridBackend"
    with TABLE.open(newline="", encoding="utf-8") as file:
        return [row["family"] for row in csv.DictReader(file) if row["backend"] in backends]


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Silences transformers' remarks about tiny configurations."""
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield


def settle() -> None:
    """Silences remarks, and imports and makes what every family needs before the first fork."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    check("llama")
