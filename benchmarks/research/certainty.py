"""Acceptance of drawn children by the draft's probability of them (DySpec's Figure 2).

And which exponent of `DySpec(acceptance=...)` describes it best, on texts that no other benchmark decodes.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Annotated

import torch
import typer
from scipy.optimize import minimize_scalar
from torch import Tensor

from benchmarks.research.calibration import split, written
from draftwood import CounterRandomness
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.strategies.acceptance import ChildAcceptance, child_acceptance

RANKS = 8
BINS = (0.0, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0)
EXPONENTS = (1, 2, 4, 8, 16, 32, 64, 128)


def by_certainty(judged: ChildAcceptance, rank: int) -> list[tuple[float, float]]:
    """For every bin of the draft's probability the share accepted, and how many children were judged."""
    accepted, reached, certainty = (
        ranks[:, rank] for ranks in (judged.accepted, judged.reached, judged.certainty)
    )
    shares = []
    for low, high in pairwise(BINS):
        weight = torch.where((certainty > low) & (certainty <= high), reached, 0.0)
        count = float(weight.sum())
        shares.append((float((weight * accepted).sum()) / count if count else 0.0, count))
    return shares


def surprise(judged: ChildAcceptance, exponent: float) -> float:
    """Nats a position by which c + (1 - c) p**exponent is surprised, with the best c for every rank."""
    total = 0.0
    for rank in range(judged.reached.shape[1]):
        sure, accepted, reached = (
            one[:, rank] for one in (judged.certainty, judged.accepted, judged.reached)
        )

        def loss(c: float, sure: Tensor = sure, hit: Tensor = accepted, weight: Tensor = reached) -> float:
            chance = (c + (1 - c) * sure**exponent).clamp(1e-6, 1 - 1e-6)
            return float(-(weight * (hit * chance.log() + (1 - hit) * (1 - chance).log())).mean())

        total += float(minimize_scalar(loss, bounds=(0.0, 1.0), method="bounded").fun)
    return total


def certainty(
    data: Annotated[Path, typer.Option(help="Folder with the prompts of the five data sets.")],
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", help="Repeatable.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts a domain that `recipes` decodes.", min=1)] = 20,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
) -> None:
    """Acceptance by draft probability on the calibration texts of `recipes`, and the likeliest exponent.

    \b
    Examples:
      python -m benchmarks certainty --data data/ --temperature 0.6
    """
    torch.set_num_threads(1)
    _, texts = split(data, prompts)
    typer.echo(f"{device_name()}: {models.TARGET} with {draft}, {len(texts)} texts of {tokens} tokens")
    for temperature in temperatures or (0.6, 1.0):
        both = written(texts, temperature=temperature, tokens=tokens, draft=draft)
        judged = child_acceptance(*both, width=RANKS, rng=CounterRandomness.seeded(0))
        typer.echo(f"\ntemperature {temperature}: accepted of those judged, by draft probability up to")
        typer.echo(f"{'child':>6}" + "".join(f"{high:>12}" for high in BINS[1:]))
        for rank in range(RANKS):
            cells = [f"{share:.2f} ({count:.0f})" for share, count in by_certainty(judged, rank)]
            typer.echo(f"{rank + 1:>6}" + "".join(f"{cell:>12}" for cell in cells))
        nats = {exponent: surprise(judged, exponent) for exponent in EXPONENTS}
        typer.echo("nats a position, by exponent: " + ", ".join(f"{e}: {v:.4f}" for e, v in nats.items()))
