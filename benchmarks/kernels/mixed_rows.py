"""Throughput of rows of which one has its own filters, next to as many equal rows."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer

from benchmarks.kernels.table_models import TableBackend, TableDraft, tables
from draftwood import SamplingParams, SpeculativeDecoder, create, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.strategies.drafters.model import ModelDrafter

EQUAL = SamplingParams(temperature=0.8)
FILTERED = SamplingParams(temperature=0.8, top_k=50, top_p=0.95, min_p=0.02)
SEVERAL = [SamplingParams(temperature=0.5 + 0.1 * row) for row in range(8)]

CONTENDERS: dict[str, list[SamplingParams]] = {
    "equal rows": [EQUAL] * 8,
    "one row with filters": [*[EQUAL] * 3, FILTERED, *[EQUAL] * 4],
    "a temperature for each row": SEVERAL,
    "filters in every second row": [EQUAL, FILTERED] * 4,
}


@attrs.define
class Tally:
    """Sums over sessions, and the median milliseconds of a round in each."""

    tokens: int = 0
    seconds: float = 0.0
    rounds: list[float] = attrs.field(factory=list)


def write(decoder: SpeculativeDecoder, sampling: list[SamplingParams], *, tokens: int, seed: int) -> Tally:
    """One session of these rows."""
    tally = Tally()
    with decoder.session(max_new_tokens=tokens, eos_token_id=[]) as session:
        for row, of_row in enumerate(sampling):
            session.add([5 + row, 17 + 3 * row, 40], sampling=of_row, seed=100 * seed + row)
        started = perf_counter()
        while session.running == len(sampling) or not session.statistics.history:
            session.run()  # until a text ends, so that all rounds have all rows
        tally.seconds = perf_counter() - started
        tally.tokens = session.statistics.new_tokens
        tally.rounds = [median(1e3 * one.seconds for one in session.statistics.rounds)]
    return tally


def decoder_of(models: str, budget: int) -> SpeculativeDecoder:
    strategy = (
        create("policies", "layered-dyspec", {"budget": budget}),
        create("verifiers", "recursive-rejection"),
    )
    if models == "zoo":
        target, draft = (load(zoo.path(name), dtype=torch.float32) for name in ("llama-7m", "llama-draft"))
        return SpeculativeDecoder(target, ModelDrafter(draft), *strategy)
    made = tables(int(models), spread=3.0, correlation=0.9, seed=0)
    return SpeculativeDecoder(TableBackend(made[0]), TableDraft(made[1]), *strategy)


def mixed_rows(
    models: Annotated[str, typer.Option(help="zoo, or the vocabulary of models that cost nothing.")] = "zoo",
    budget: Annotated[int, typer.Option(help="Nodes of a tree.", min=1)] = 16,
    tokens: Annotated[int, typer.Option(help="Of every text.", min=2)] = 64,
    repeats: Annotated[int, typer.Option(help="Sessions of each kind, in turns.", min=1)] = 20,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
) -> None:
    """Compare eight rows of different sampling with eight equal ones.

    \b
    Examples:
      python -m benchmarks mixed-rows
      python -m benchmarks mixed-rows --models 32000 --budget 64
    """
    torch.set_num_threads(threads)
    decoder = decoder_of(models, budget)
    tallies: dict[str, Tally] = {name: Tally() for name in CONTENDERS}
    for seed in range(-1, repeats):
        for name, sampling in CONTENDERS.items():
            one = write(decoder, sampling, tokens=tokens, seed=seed + 1)
            if seed >= 0:  # the first ones warm up
                tally = tallies[name]
                tally.tokens += one.tokens
                tally.seconds += one.seconds
                tally.rounds += one.rounds
    speeds: dict[str, Any] = {name: tally.tokens / tally.seconds for name, tally in tallies.items()}
    typer.echo(
        f"{device_name()}, {threads} thread(s), models {models}, trees of {budget}, {repeats} sessions"
    )
    typer.echo(f"{'eight rows':<30}{'tokens/s':>10}{'ratio':>8}{'ms a round':>12}{'ratio':>8}")
    first = median(tallies["equal rows"].rounds)
    for name, tally in tallies.items():
        once = median(tally.rounds)
        typer.echo(
            f"{name:<30}{speeds[name]:10.1f}{speeds[name] / speeds['equal rows']:8.3f}{once:12.2f}"
            f"{first / once:8.3f}"
        )
