"""Overlap of a draft with the target, by the temperature at which the draft is drawn from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.research.calibration import pair, split
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.methods.draft_temperature import (
    FACTORS,
    ByFactor,
    measured_likelihoods,
    measured_overlaps,
)


def overlaps(
    data: Annotated[Path, typer.Option(help="Folder with the prompts of the five data sets.")],
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", help="Repeatable.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=2)] = 32,
    prompts: Annotated[int, typer.Option(help="Prompts a domain that `recipes` decodes.", min=1)] = 20,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
) -> None:
    """Measures the acceptance of a single drawn token, by the draft's temperature, on calibration prompts.

    At temperature 0 it is the likelihood of the target's choice that is measured, in nats.

    \b
    Examples:
      python -m benchmarks overlaps --data data/ --draft llama-draft
    """
    torch.set_num_threads(1)
    _, texts = split(data, prompts)
    target, model = pair(draft)
    typer.echo(f"{device_name()}: {models.TARGET} with {draft}, {len(texts)} texts of {tokens} tokens")
    for temperature in temperatures or (0.6, 1.0):
        found: ByFactor
        if temperature:
            found = measured_overlaps(target, model, texts, temperature=temperature, tokens=tokens)
        else:
            found = measured_likelihoods(target, model, texts, tokens=tokens)
        drawn_at = temperature or 1.0
        typer.echo(f"\ntemperature {temperature:g}: best at {drawn_at * found.best:.2f}")
        for factor, worth in zip(FACTORS, found.means.tolist(), strict=True):
            typer.echo(f"{drawn_at * factor:6.2f} {worth:.3f}")
