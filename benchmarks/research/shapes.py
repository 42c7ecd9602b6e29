"""The best sorted static trees for race verification on a pair, by shares measured on calibration prompts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from benchmarks.research import held_out
from draftwood import SamplingParams, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.strategies.policies.shapes import Shape, as_text
from draftwood.strategies.shape_search import (
    SiblingShares,
    best_sorted_shape,
    measured_shares,
    probe_shapes,
)
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.zoo.train import load_model

DEPTH = 16


def described(shape: Shape) -> str:
    """Nodes level by level, and the children of the root's children."""
    levels = Counter(len(path) for path in shape)
    below = Counter(path[0] for path in shape)
    return (
        f"levels {[levels[depth] for depth in sorted(levels)]}, nodes below the root's children "
        f"{[below[rank] for rank in sorted(below)]}"
    )


def shapes(
    data: Annotated[Path, typer.Option(help="Folder with the prompts of the five data sets.")],
    target: Annotated[str, typer.Option(help="A model of the zoo, or a folder.")] = models.TARGET,
    draft: Annotated[str, typer.Option(help="A model of the zoo, or a folder.")] = models.DRAFT,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Of the target; of several, shares are taken together. Default: 1."),
    ] = None,
    draft_temperature: Annotated[
        float | None, typer.Option(help="Of the draft at all of these; default: the target's.", min=0.01)
    ] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Repeatable. Default: 16, 64.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts of calibration a domain.", min=1)] = 10,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 32,
    turns: Annotated[int, typer.Option(help="Searches, each measuring what the last one found.")] = 2,
    to: Annotated[Path | None, typer.Option("--to", help="Write the shapes here, as JSON of texts.")] = None,
) -> None:
    """The best shape of each budget, and the tokens a round that its shares promise.

    What is promised is measured on the prompts that chose, for rounds that no text's end cuts: `python -m
    benchmarks recipes` measures on others, whole texts.
    """
    budgets, temperatures = budget or [16, 64], temperature or [1.0]
    models.quiet()
    tokenizer = zoo.tokenizer()
    rows = held_out.prompts(
        data, tokenizer, count=prompts, domains=held_out.DOMAINS, calibration=True
    ).values()
    encoded = [row.tolist() for by_domain in rows for row in by_domain]
    large, small = (load(load_model(name, dtype="float32")) for name in (target, draft))
    shares = SiblingShares()

    def measure(tried: list[Shape], *, seed: int) -> None:
        for one in temperatures:
            measured_shares(
                large,
                small,
                encoded,
                shapes=watched(tried, f"at {one:g}", total=len(tried), console=Console(stderr=True)),
                verifier=RaceTraversal(),
                sampling=SamplingParams(temperature=one),
                draft_sampling=SamplingParams(temperature=draft_temperature or one),
                tokens=tokens,
                seed=seed,
                shares=shares,
            )

    measure(probe_shapes(max(budgets)), seed=0)
    for turn in range(turns):
        found = [best_sorted_shape(shares, budget=size, depth=DEPTH)[0] for size in budgets]
        measure(found, seed=1000 * (turn + 1))
    words = " and ".join(f"{one:g}" for one in temperatures)
    typer.echo(f"{device_name()}: {target} with {draft}, temperature {words}, {len(encoded)} prompts")
    by_budget = {}
    for size in budgets:
        shape, expected = best_sorted_shape(shares, budget=size, depth=DEPTH)
        typer.echo(f"{size:5} nodes: {expected:.3f} tokens a round promised; {described(shape)}")
        by_budget[size] = as_text(shape)
    if to is not None:
        to.write_text(json.dumps(by_budget) + "\n", encoding="utf-8")
