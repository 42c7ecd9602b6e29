"""The host time of a round, without its passes, at real sizes, in softmaxes over the tree's logits."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from itertools import islice, product
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer
from torch import Tensor

from benchmarks.kernels.cuda_timing import synchronize
from benchmarks.kernels.table_models import TableBackend, TableDraft, tables
from draftwood import SamplingParams, SpeculativeDecoder, create
from draftwood.apps.files.machine import device_name

PAIRS = {
    "layered, rejection": ("layered-dyspec", "recursive-rejection"),
    "sequoia, rejection": ("sequoia", "recursive-rejection"),
    "sequoia, traversal": ("sequoia", "traversal"),
    "sequoia, class order": ("sequoia", "class-ordered-traversal"),
    "sequoia, race": ("sequoia", "race-traversal"),
}


@attrs.frozen
class Size:
    """The size of a timed round.

    Attributes:
        vocab: tokens.
        nodes: of a tree, without the root.
        rows: batch rows.
        text: tokens of every prompt.
    """

    vocab: int
    nodes: int
    rows: int
    text: int


USUAL = Size(vocab=32_000, nodes=64, rows=1, text=1_000)
"""What the plots vary in one number."""

VARIED: dict[str, Sequence[int]] = {
    "vocab": (4_000, 32_000, 128_000),
    "nodes": (16, 64, 256, 768),
    "rows": (1, 8, 32),
    "text": (1_000, 8_000, 32_000),
}
BLOCKS = 8
"""Parts of the timed rounds; between them softmaxes are timed, as a machine's speed changes meanwhile."""

SHAPES_UP_TO = 64
"""Nodes up to which Sequoia's shape is searched; larger ones take minutes."""


def softmax_time(logits: Tensor, *, repetitions: int = 5) -> float:
    """The median milliseconds of a softmax over `logits` into fresh memory."""
    times = []
    for _ in range(repetitions):
        synchronize(logits.device)
        started = perf_counter()
        logits.softmax(-1)
        synchronize(logits.device)
        times.append(1e3 * (perf_counter() - started))
    return median(times)


def beside_passes(
    decoder: SpeculativeDecoder, size: Size, *, temperature: float, rounds: int, seed: int = 1
) -> list[float]:
    """Milliseconds of every round that no pass takes."""
    prompts = [
        [(5 + row + 3 * position) % size.vocab for position in range(size.text)] for row in range(size.rows)
    ]
    running = decoder.stream(
        prompts,
        max_new_tokens=100 * rounds,
        sampling=SamplingParams(temperature=temperature),
        seed=seed,
        eos_token_id=[],
    )
    taken = list(islice(running, 2, rounds + 2))  # two rounds warm up
    running.close()
    return [1e3 * (one.seconds - one.draft_seconds - one.target_seconds) for one in taken]


def measured(
    sizes: Sequence[Size], pairs: Sequence[str], *, temperature: float, rounds: int, device: str
) -> list[dict[str, Any]]:
    """A row for every size and pair, printed as it is there; tables are made once a vocabulary."""
    rows: list[dict[str, Any]] = []
    held: tuple[Any, Any] = (None, None)
    vocab = 0
    for size in sorted(set(sizes), key=lambda one: one.vocab):
        if size.vocab != vocab:
            vocab = size.vocab
            held = tables(vocab, spread=3.0, correlation=0.9, seed=0, device=device)
        target, draft = held
        logits = torch.randn(size.rows, size.nodes, vocab, device=device)
        for name in pairs:
            policy, verifier = PAIRS[name]
            if policy == "sequoia" and size.nodes > SHAPES_UP_TO:
                continue
            decoder = SpeculativeDecoder(
                TableBackend(target),
                TableDraft(draft),
                create("policies", policy, {"budget": size.nodes}),
                create("verifiers", verifier),
            )
            times, softmaxes = list[float](), [softmax_time(logits)]
            for seed in range(min(BLOCKS, rounds)):
                some = len(range(seed, rounds, BLOCKS))
                times += beside_passes(decoder, size, temperature=temperature, rounds=some, seed=seed)
                softmaxes.append(softmax_time(logits))
            taken, once = median(times), median(softmaxes)
            rows.append({"pair": name, **attrs.asdict(size), "ms": taken, "softmax_ms": once})
            typer.echo(
                f"{name:<22}{vocab:>8}{size.nodes:>7}{size.rows:>6}{size.text:>8}{taken:9.2f}"
                f"{taken / once:11.2f}{once:19.2f}"
            )
    return rows


def draw(rows: Sequence[dict[str, Any]], folder: Path, *, title: str) -> None:
    """One plot for every number that varies, the others as usual."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    for number in VARIED:
        others = [name for name in VARIED if name != number]
        shown = [row for row in rows if all(row[name] == getattr(USUAL, name) for name in others)]
        if len({row[number] for row in shown}) < 2:
            continue
        figure, axes = pyplot.subplots(figsize=(6.4, 4))
        for name in PAIRS:
            line = sorted((row[number], row["ms"]) for row in shown if row["pair"] == name)
            if line:
                axes.plot(*zip(*line, strict=True), marker="o", label=name)
        axes.set(xscale="log", yscale="log", xlabel=number, ylabel="ms without passes", title=title)
        axes.legend(frameon=False)
        figure.savefig(folder / f"round-{number}.png", dpi=120, bbox_inches="tight")
        pyplot.close(figure)


def round_times(
    vocab: Annotated[list[int] | None, typer.Option(help="Tokens; repeatable.")] = None,
    nodes: Annotated[list[int] | None, typer.Option(help="Nodes without the root; repeatable.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="Rows; repeatable.")] = None,
    text: Annotated[list[int] | None, typer.Option(help="Tokens of a prompt; repeatable.")] = None,
    pair: Annotated[list[str] | None, typer.Option(help=f"Of {', '.join(PAIRS)}; repeatable.")] = None,
    temperature: Annotated[float, typer.Option(help="Of target and draft.")] = 0.6,
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=3)] = 20,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
    device: Annotated[str, typer.Option(help="Where the tables are.")] = "cpu",
    to: Annotated[
        Path | None, typer.Option(help="A folder for round.csv and a plot of every number.", file_okay=False)
    ] = None,
) -> None:
    """Time the host's and the vocabulary's part of a round; the models are tables and cost nothing.

    Numbers that are given are combined; without any, each is varied by itself.

    \b
    Examples:
      python -m benchmarks round --to round
      python -m benchmarks round --vocab 32000 --nodes 64 --rows 1 --rows 8
    """
    torch.set_num_threads(threads)
    given: dict[str, list[int] | None] = {"vocab": vocab, "nodes": nodes, "rows": rows, "text": text}
    if any(given.values()):
        values = [given[name] or [getattr(USUAL, name)] for name in VARIED]
        sizes = [Size(*numbers) for numbers in product(*values)]
    else:
        sizes = [attrs.evolve(USUAL, **{name: one}) for name, several in VARIED.items() for one in several]
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
    about = f"{device_name()}, {threads} thread(s), temperature {temperature}"
    typer.echo(f"{about}; medians of {rounds} rounds")
    typer.echo(
        f"{'pair':<22}{'vocab':>8}{'nodes':>7}{'rows':>6}{'text':>8}{'ms':>9}{'softmaxes':>11}"
        f"{'fresh softmax, ms':>19}"
    )
    found = measured(sizes, pair or list(PAIRS), temperature=temperature, rounds=rounds, device=device)
    if to is not None:
        with (to / "round.csv").open("w", newline="", encoding="utf-8") as file:
            lines = csv.DictWriter(file, found[0])
            lines.writeheader()
            lines.writerows(found)
        draw(found, to, title=about)
