"""Every kernel on a GPU against its reference, then its times next to the times of alternatives."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import chain
from pathlib import Path
from statistics import median, quantiles
from typing import Annotated, Any

import torch
import typer

from benchmarks.kernels import attention_cases, replay_cases, round_cases, scan_cases, tree_cases, unrolled
from benchmarks.kernels.cases import Case
from benchmarks.kernels.cuda_timing import Card, Timer, card, event_timer
from draftwood.apps.files.machine import versions
from draftwood.base.errors import DraftwoodError, InvalidInput
from draftwood.kernels import support

HEADINGS = (
    f"{'':<34}{'cache':>5}{'median ms':>11}{'10 %':>11}{'90 %':>11}{'host ms':>9}{'/ kernel':>9}"
    f"{'bandwidth':>11}{'arithmetic':>12}"
)


def ragged(device: torch.device) -> list[Case]:
    """Small cases of every shape, which are judged and not timed."""
    return [
        *attention_cases.ragged(device),
        *scan_cases.ragged(device),
        *tree_cases.ragged(device),
        *replay_cases.ragged(device),
        *round_cases.ragged(device),
    ]


def timed(device: torch.device) -> list[Case]:
    """Returns the timed cases, which take about 10 GB of memory; DySpec's table 5 comes first."""
    return [
        *attention_cases.trees(device),
        *attention_cases.behind_a_prefix(device),
        *scan_cases.scans(device),
        *tree_cases.scans(device),
        *replay_cases.replays(device),
        round_cases.commit(device),
        *(round_cases.judged(device, rows=rows) for rows in (1, 8)),
        round_cases.judged(device, rows=8, leaf_first=True),
        *(round_cases.raced(device, rows=rows) for rows in (1, 8)),
        round_cases.drawn(device),
    ]


def gate(cases: Sequence[Case]) -> tuple[int, dict[tuple[str, str], str]]:
    """Judge every contender of `cases`.

    Returns:
        How many results are right; and, by size and contender, why others cannot be compared.

    Raises:
        DraftwoodError: the result of a kernel of ours is wrong.
    """
    right, wrong, others = 0, [], {}
    for case in cases:
        for contender in case.contenders:
            try:
                complaint = case.complaint(contender)
            except Exception as error:
                if contender.kernel:
                    raise
                # A library that is there may still lack a compiler, or refuse a size.
                complaint = f"{type(error).__name__}: {(str(error).strip() or 'no reason').splitlines()[0]}"
            if complaint is None:
                right += contender.judged
            elif contender.kernel:
                wrong.append(f"{case.operation}, {case.size}: {contender.name} {complaint}")
            else:
                others[case.size, contender.name] = complaint
    if wrong:
        raise DraftwoodError(f"No times, because the gate is red: {'; '.join(wrong)}.")
    return right, others


def measured(
    case: Case, *, timer: Timer, limits: Card, left_out: Mapping[tuple[str, str], str]
) -> list[dict[str, Any]]:
    """A raw row for every contender of `case` that the gate let through, with a cold and a warm cache."""
    rows = []
    for contender in case.contenders:
        if (case.size, contender.name) in left_out:
            continue
        # The making of a mask is no part of the operation, and has no limit.
        bound = 0 if contender.operations == 0 else case.bytes
        operations = case.operations if contender.operations is None else contender.operations
        peak = limits.arithmetic.get(case.arithmetic)
        for cache in ("cold", "warm"):
            times = timer(contender.call, cache == "cold")
            usual, tenths = median(times.gpu), quantiles(times.gpu, n=10)
            rows.append(
                {
                    "operation": case.operation,
                    "size": case.size,
                    "contender": contender.name,
                    "cache": cache,
                    "median_ms": usual,
                    "low_ms": tenths[0],
                    "high_ms": tenths[-1],
                    "host_ms": times.host,
                    "repetitions": len(times.gpu),
                    "bytes": bound or None,
                    "operations": operations or None,
                    "of_bandwidth": bound / usual / limits.bandwidth / 1e6 if bound else None,
                    "of_arithmetic": operations / usual / peak / 1e9 if operations and peak else None,
                }
            )
    return rows


def printed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of one case; its first contender is what the others are compared with."""
    ours = {row["cache"]: row["median_ms"] for row in rows if row["contender"] == rows[0]["contender"]}
    lines = [f"{rows[0]['operation']}: {rows[0]['size']}"]
    for row in rows:
        shares = [
            "" if row[share] is None else f"{row[share]:.1%}" for share in ("of_bandwidth", "of_arithmetic")
        ]
        lines.append(
            f"  {row['contender']:<32}{row['cache']:>5}{row['median_ms']:11.4f}{row['low_ms']:11.4f}"
            f"{row['high_ms']:11.4f}{row['host_ms']:9.3f}{row['median_ms'] / ours[row['cache']]:9.2f}"
            f"{shares[0]:>11}{shares[1]:>12}"
        )
    return lines


def requirements(case: Case, rows: Sequence[Mapping[str, Any]], limits: Card) -> list[str]:
    """Returns a line for each comparison of the kernel of `case` with others, timed with a cold cache."""
    medians = {(row["contender"], row["cache"]): row["median_ms"] for row in rows}
    ours = [medians[case.contenders[0].name, cache] for cache in ("cold", "warm")]
    compared_with = [
        (
            contender.name,
            contender.at_most,
            [medians.get((contender.name, cache)) for cache in ("cold", "warm")],
        )
        for contender in case.contenders
        if contender.at_most is not None
    ]
    if case.bound is not None:
        best = case.bound.bytes / limits.bandwidth / 1e6
        compared_with.append(
            (f"{case.bound.name} at {limits.bandwidth:.0f} GB/s", case.bound.at_most, [best, best])
        )
    lines = []
    for name, most, (cold, warm) in compared_with:
        if cold is None or warm is None:
            verdict = "not measured"
        else:
            parts = ours[0] / cold, ours[1] / warm
            verdict = (
                f"{'met' if parts[0] <= most else 'NOT met'}: {parts[0]:.2f}, by a warm cache {parts[1]:.2f}"
            )
        lines.append(f"  {case.operation}, {case.size}: at most {most:g} of {name}; {verdict}")
    return lines


def compared(
    cases: Sequence[Case],
    *,
    judged: Sequence[Case],
    timer: Timer,
    limits: Card,
    about: Mapping[str, str],
) -> list[dict[str, Any]]:
    """Judge `judged` and `cases`, then time and print `cases`; gives their raw rows.

    Raises:
        DraftwoodError: a kernel is wrong; nothing is printed or timed then.
    """
    right, left_out = gate([*judged, *cases])
    typer.echo(", ".join(f"{name} {value}" for name, value in about.items()))
    typer.echo(f"Gate: {right} results agree with their references.")
    source = "a copy reaches" if limits.measured else "of the data sheet"
    peaks = "".join(f", {peak} TFLOP/s in {kind}" for kind, peak in limits.arithmetic.items())
    typer.echo(f"Limits: {limits.bandwidth:.0f} GB/s, {source}{peaks}.")
    typer.echo(HEADINGS)
    raw_rows: list[dict[str, Any]] = []
    standing: list[str] = []
    for case in cases:
        rows = measured(case, timer=timer, limits=limits, left_out=left_out)
        raw_rows += [row | dict(about) for row in rows]
        standing += requirements(case, rows, limits)
        for line in printed(rows):
            typer.echo(line)
    typer.echo("Required:")
    for line in standing:
        typer.echo(line)
    reasons = (f"{contender} ({size}): {why}" for (size, contender), why in left_out.items())
    for line in chain(unrolled.left_out(), reasons):
        typer.echo(f"Left out: {line}.")
    return raw_rows


def kernels(
    to: Annotated[Path | None, typer.Option("--csv", help="Write the raw rows here.", dir_okay=False)] = None,
) -> None:
    """Kernels against their references on this GPU, then their times next to the times of others.

    No time is printed where a kernel is wrong. Shares are of the card's maximum: the bytes
    that must pass through memory once, and the arithmetic. Times are of the GPU; what the host takes to
    launch is next to them, and counts where a call waits for the GPU or launches for more than 20 ms.
    The last lines compare the kernels with their requirements.

    \b
    Examples:
      python -m benchmarks kernels --csv benchmarks/data/kernels-h100.csv
    """
    if not torch.cuda.is_available():
        raise DraftwoodError("Kernels are timed on a CUDA GPU, and torch finds none here.")
    if support.interpreted():
        raise InvalidInput("TRITON_INTERPRET is set, and the interpreter's times say nothing; unset it.")
    if to is not None and not to.parent.is_dir():
        raise InvalidInput(f"The folder {str(to.parent)!r} of --csv does not exist; create it first.")
    device = torch.device("cuda", torch.cuda.current_device())
    with support.kernels_enabled(True), torch.no_grad():
        if (reason := support.objection_on(device)) is not None:
            raise DraftwoodError(f"No kernel runs here, because {reason}.")
        timer = event_timer(device)
        raw_rows = compared(
            timed(device),
            judged=ragged(device),
            timer=timer,
            limits=card(device, timer),
            about={"gpu": torch.cuda.get_device_name(device), **_versions()},
        )
    if to is not None:
        write(raw_rows, to)


def write(rows: Sequence[Mapping[str, Any]], to: Path) -> None:
    """Raw rows as CSV; what has no limit stays empty."""
    with to.open("w", newline="", encoding="utf-8") as file:
        lines = csv.DictWriter(file, list(rows[0]))
        lines.writeheader()
        lines.writerows(rows)


def _versions() -> dict[str, str]:
    installed: dict[str, str] = versions() | {"cuda": str(torch.version.cuda)}
    for package in ("triton", "mamba_ssm"):
        with suppress(PackageNotFoundError):
            installed[package] = version(package)
    return installed
