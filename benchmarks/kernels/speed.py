"""The time of one verification at a real vocabulary, over synthetic trees and distributions.

Draft and target are softmaxes of correlated Gaussian logits; all verifiers judge the same trees in turns.
"""

from __future__ import annotations

from statistics import median, quantiles
from time import perf_counter
from typing import Annotated

import torch
import typer
from torch import Tensor

from benchmarks.research.verifiers import BASELINE, CONTENDERS
from draftwood import CounterRandomness, TokenTree, create
from draftwood.apps.files.machine import device_name
from draftwood.trees.growth import by_distributions


def synthetic(
    nodes: int, vocab: int, *, branching: int, spread: float, correlation: float, seed: int
) -> tuple[TokenTree, Tensor]:
    """A tree of `nodes` nodes and a root, drawn without replacement, and the target's rows, float32.

    Args:
        nodes: the tree's size.
        vocab: size of the vocabulary.
        branching: children of a node.
        spread: standard deviation of the logits.
        correlation: of the draft's logits with the target's.
        seed: of everything.
    """
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(2, nodes + 1, vocab, generator=generator)
    target = spread * noise[0]
    draft = (correlation * target + (1 - correlation**2) ** 0.5 * spread * noise[1]).softmax(-1)
    depth = 1
    while sum(branching**level for level in range(1, depth + 1)) < nodes:
        depth += 1
    policy = create("policies", "fixed-tree", {"depth": depth, "branching": branching, "budget": nodes})
    rng = CounterRandomness.seeded(seed)
    growing = by_distributions(policy.grow(0, rng), rng)
    request, asked = next(growing), 0
    try:
        while True:
            asked += len(request)
            request = growing.send(draft[asked - len(request) : asked])
    except StopIteration as finished:
        return finished.value, target.softmax(-1)


def speed(
    nodes: Annotated[int, typer.Option(help="Nodes without the root.", min=1)] = 64,
    vocab: Annotated[int, typer.Option(help="Size of the vocabulary.", min=8)] = 32_000,
    branching: Annotated[int, typer.Option(help="Children of a node.", min=2)] = 2,
    spread: Annotated[float, typer.Option(help="Standard deviation of the logits.")] = 3.0,
    correlation: Annotated[float, typer.Option(help="Of the draft's logits with the target's.")] = 0.9,
    trees: Annotated[int, typer.Option(help="Different trees.", min=1)] = 12,
    repetitions: Annotated[int, typer.Option(help="Times that each is judged.", min=2)] = 20,
) -> None:
    """Milliseconds of one verification, median and 90th percentile, and the tokens it emits.

    \b
    Examples:
      python -m benchmarks speed
      python -m benchmarks speed --nodes 256 --vocab 128000 --trees 2
    """
    cases = [
        synthetic(nodes, vocab, branching=branching, spread=spread, correlation=correlation, seed=seed)
        for seed in range(trees)
    ]
    judges = {BASELINE: create("verifiers", BASELINE)}
    judges |= {name: create("verifiers", name) for name in CONTENDERS}
    seconds: dict[str, list[float]] = {label: [] for label in judges}
    emitted = dict.fromkeys(judges, 0)
    for repetition in range(-1, repetitions):  # the first turn warms up
        for number, (tree, rows) in enumerate(cases):
            for label, judge in judges.items():
                chance = CounterRandomness.seeded(repetition * trees + number + trees)
                started = perf_counter()
                outcome = judge.verify(tree, rows, chance)
                if repetition >= 0:
                    seconds[label].append(perf_counter() - started)
                    emitted[label] += len(outcome.emitted)
    typer.echo(
        f"{device_name()}: trees of {nodes} nodes, {branching} children a node, {vocab} tokens, logits of "
        f"spread {spread} and correlation {correlation}"
    )
    typer.echo(f"{'':26}{'ms, median':>12}{'90 %':>8}{'tokens/round':>14}")
    for label, times in seconds.items():
        slow = quantiles(times, n=10)[-1]
        typer.echo(
            f"{label:<26}{median(times) * 1e3:12.2f}{slow * 1e3:8.2f}{emitted[label] / len(times):14.2f}"
        )
