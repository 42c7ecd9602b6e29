"""The time of a round beside its passes, at real sizes, in softmaxes over the tree's logits."""

from __future__ import annotations

from itertools import islice
from statistics import median
from time import perf_counter
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.kernels.table_models import TableBackend, TableDraft, tables
from draftwood import SamplingParams, SpeculativeDecoder, create
from draftwood.apps.machine import device_name

PAIRS = {
    "layered, rejection": ("layered-dyspec", "recursive-rejection"),
    "sequoia, rejection": ("sequoia", "recursive-rejection"),
    "sequoia, traversal": ("sequoia", "traversal"),
    "sequoia, class order": ("sequoia", "class-ordered-traversal"),
    "sequoia, race": ("sequoia", "race-traversal"),
}


def softmax_time(logits: Tensor, *, repetitions: int = 5) -> float:
    """The median milliseconds of a softmax over `logits` into fresh memory."""
    times = []
    for _ in range(repetitions):
        started = perf_counter()
        logits.softmax(-1)
        times.append(1e3 * (perf_counter() - started))
    return median(times)


def beside_passes(decoder: SpeculativeDecoder, rows: int, *, temperature: float, rounds: int) -> list[float]:
    """Milliseconds of every round that no pass takes."""
    prompts = [[5 + row, 7 + row] for row in range(rows)]
    running = decoder.stream(
        prompts,
        max_new_tokens=100 * rounds,
        sampling=SamplingParams(temperature=temperature),
        seed=1,
        eos_token_id=[],
    )
    taken = list(islice(running, 2, rounds + 2))  # two rounds warm up
    running.close()
    return [1e3 * (one.seconds - one.draft_seconds - one.target_seconds) for one in taken]


def round_times(
    vocab: Annotated[list[int] | None, typer.Option(help="Tokens; repeatable.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="Nodes beside the root; repeatable.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Rows; repeatable.")] = None,
    pair: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PAIRS)}; repeatable.")] = None,
    temperature: Annotated[float, typer.Option(help="Of target and draft.")] = 0.6,
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=3)] = 20,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
) -> None:
    """Time the host's and the vocabulary's part of a round; the models are tables and cost nothing.

    \b
    Examples:
      python -m benchmarks round
      python -m benchmarks round --vocab 32000 --nodes 64 --rows 1 --rows 8
    """
    torch.set_num_threads(threads)
    typer.echo(f"{device_name()}, {threads} thread(s), temperature {temperature}; medians of {rounds} rounds")
    typer.echo(
        f"{'pair':<22}{'vocab':>8}{'nodes':>7}{'rows':>6}{'ms':>9}{'softmaxes':>11}{'fresh softmax, ms':>19}"
    )
    for tokens in vocab or (4_000, 32_000, 128_000):
        target, draft = tables(tokens, spread=3.0, correlation=0.9, seed=0)
        for size in nodes or (16, 64):
            for count in rows or (1, 8):
                logits = torch.randn(count, size, tokens)
                for name in pair or PAIRS:
                    policy, verifier = PAIRS[name]
                    decoder = SpeculativeDecoder(
                        TableBackend(target),
                        TableDraft(draft),
                        create("policies", policy, {"budget": size}),
                        create("verifiers", verifier),
                    )
                    once = softmax_time(logits)  # in turns with what it is the measure of
                    taken = median(beside_passes(decoder, count, temperature=temperature, rounds=rounds))
                    once = median([once, softmax_time(logits)])
                    typer.echo(
                        f"{name:<22}{tokens:>8}{size:>7}{count:>6}{taken:9.2f}"
                        f"{taken / once:11.2f}{once:19.2f}"
                    )
