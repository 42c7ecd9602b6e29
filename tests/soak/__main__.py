"""Run the parts and print what was done and found."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator

import torch
from rich.console import Console
from rich.table import Table
from transformers.utils import logging

from tests.soak import (
    ends,
    faults,
    fuzzed_requests,
    hostile,
    interrupts,
    kills,
    long_text,
    rows,
    shared_faults,
    texts,
)
from tests.soak.result import SHOWN, SoakResult

Given = argparse.Namespace


def _faults(given: Given) -> Iterator[SoakResult]:
    yield faults.faults(given.faults, seed=given.seed)


def _interrupts(given: Given) -> Iterator[SoakResult]:
    yield interrupts.interrupts(given.interrupts, seed=given.seed)
    yield interrupts.command_line(given.commands, seed=given.seed)


def _long_texts(given: Given) -> Iterator[SoakResult]:
    for name in long_text.PAIRS:
        yield long_text.long_text(name, given.tokens)


def _kills(given: Given) -> Iterator[SoakResult]:
    for subject in (texts.TEXTS, kills.BENCH):
        yield ends.ends(subject, given.kills, seed=given.seed)
    if (result := kills.small_disk()) is not None:
        yield result


def _rows(given: Given) -> Iterator[SoakResult]:
    yield rows.rows(given.steps, seed=given.seed)


def _shared(given: Given) -> Iterator[SoakResult]:
    yield shared_faults.shared_faults(given.shared_faults, seed=given.seed)


def _files(given: Given) -> Iterator[SoakResult]:
    yield hostile.hostile(given.files, seed=given.seed)


def _requests(given: Given) -> Iterator[SoakResult]:
    yield fuzzed_requests.fuzzed_requests(given.requests, seed=given.seed)


PARTS: dict[str, Callable[[Given], Iterator[SoakResult]]] = {
    "faults": _faults,
    "interrupts": _interrupts,
    "long-texts": _long_texts,
    "kills": _kills,
    "files": _files,
    "rows": _rows,
    "shared": _shared,
    "requests": _requests,
}


def table(results: list[SoakResult]) -> Table:
    """A line for everything that was tried."""
    shown = Table(title="What was tried, and what was survived", title_justify="left")
    shown.add_column("what", overflow="fold")
    for heading in ("tried", "survived", "seconds"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("found", overflow="fold")
    for result in results:
        figures = [f"{name}: {value}" for name, value in result.figures.items()]
        if not figures or len(result.attempts) > 1:
            figures += [", ".join(f"{kind} {count}" for kind, count in result.attempts.most_common(8))]
        shown.add_row(
            result.part,
            str(result.done),
            str(result.survived),
            f"{result.seconds:.0f}",
            "\n".join(figures),
            style="red" if result.failures else None,
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", type=int, default=3000, help="in calls of a decoder's parts")
    parser.add_argument("--interrupts", type=int, default=500, help="Ctrl-C in generate")
    parser.add_argument("--commands", type=int, default=10, help="Ctrl-C on the command line")
    parser.add_argument("--tokens", type=int, default=20_000, help="of each long text")
    parser.add_argument("--kills", type=int, default=120, help="early ends of files of texts, and of benches")
    parser.add_argument("--steps", type=int, default=10_000, help="calls on rows of sessions")
    parser.add_argument("--shared-faults", type=int, default=300, help="in a decoder of eight callers")
    parser.add_argument("--files", type=int, default=2000, help="hostile files")
    parser.add_argument("--requests", type=int, default=1000, help="to the example server, by a fuzzer")
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]!r}; known are {', '.join(PARTS)}")
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    console = Console() if sys.stdout.isatty() else Console(width=150)
    results: list[SoakResult] = []
    for name in given.parts or PARTS:
        for result in PARTS[name](given):
            results.append(result)
            console.print(f"{result.part}: {result.survived} of {result.done} in {result.seconds:.0f} s")
            for failure in result.failures[:SHOWN]:
                console.print(f"  {failure}", style="red", markup=False)
    console.print(table(results))
    sys.exit(any(result.failures or not result.done for result in results))


if __name__ == "__main__":
    main()
