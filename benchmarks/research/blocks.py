"""Blocks that attention over a tree computes, in several orders of its nodes, with the paper's counts."""

from __future__ import annotations

import random
from pathlib import Path
from statistics import mean
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.research.growth import Draft
from benchmarks.research.orders import blocks_of, breadth_first, depth_first, heavy_path
from benchmarks.research.prompts import prompts_of
from draftwood import CounterRandomness, SamplingParams, TokenTree, create, zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.strategies.policies.dyspec import DySpec

PAPER: dict[str, dict[int, tuple[float, float]]] = {
    "random": {256: (36, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)},
    "DySpec": {768: (366.12, 218.31), 1024: (580.07, 295.59)},
}
"""DySpec, appendix C: blocks of 32 by nodes, as grown and reordered (table 5; figure 9)."""


def random_tree(nodes: int, chance: random.Random) -> TokenTree:
    """Every node hangs below any earlier one, all equally likely."""
    parents = [-1, *(chance.randrange(node) for node in range(1, nodes))]
    return TokenTree(tokens=torch.zeros(nodes, dtype=torch.int64), parents=torch.tensor(parents))


def counted(tree: TokenTree, *, size: int) -> list[int]:
    """Blocks as grown, breadth-first, depth-first and in heavy-path order."""
    orders = list(range(len(tree))), breadth_first(tree), depth_first(tree), heavy_path(tree)
    return [blocks_of(tree, order, size=size) for order in orders]


def blocks(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 2,
    nodes: Annotated[list[int] | None, typer.Option(help="Of a tree, the root included; repeatable.")] = None,
    trees: Annotated[int, typer.Option(help="Random trees of each size.", min=1)] = 20,
    temperature: Annotated[float, typer.Option(help="Of the draft.")] = 0.6,
    draft: Annotated[str, typer.Option(help="A model of the zoo.")] = models.DRAFT,
    size: Annotated[int, typer.Option(help="Of a block.", min=1)] = 32,
) -> None:
    """Blocks of the mask of random trees and of the draft's own, with and without reordering.

    \b
    Examples:
      python -m benchmarks blocks --prompts 1 --nodes 256 --nodes 768
    """
    models.quiet()
    torch.set_num_threads(1)
    drafter = create("drafters", "model", {"backend": zoo.load(draft)})
    sampling = SamplingParams(temperature=temperature)
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    chance = random.Random(0)
    typer.echo(f"Blocks of {size} by {size}, means; DySpec trees of {draft} at temperature {temperature}.")
    typer.echo(
        f"{'':<8}{'nodes':>6}{'trees':>6}{'grown':>9}{'breadth':>9}{'depth':>9}{'heavy':>9}"
        f"{'grown / depth':>15}{'/ heavy':>9}{'the paper':>26}"
    )
    for count in nodes or (256, 512, 768, 1024, 2048):
        steps = watched(encoded, f"{count} nodes", total=len(encoded), console=Console(stderr=True))
        grown = {
            "random": [random_tree(count, chance) for _ in range(trees)],
            "DySpec": [
                Draft(drafter, prompt, sampling).grow(DySpec(count - 1), CounterRandomness.seeded(seed)).tree
                for seed, prompt in enumerate(steps)
            ],
        }
        for kind, several in grown.items():
            means = [
                mean(column) for column in zip(*(counted(tree, size=size) for tree in several), strict=True)
            ]
            paper = PAPER[kind].get(count) if size == 32 else None
            typer.echo(
                f"{kind:<8}{count:>6}{len(several):>6}"
                + "".join(f"{value:>9.1f}" for value in means)
                + f"{means[0] / means[2]:>15.2f}{means[0] / means[3]:>9.2f}"
                + (f"{f'{paper[0]} / {paper[1]} = {paper[0] / paper[1]:.2f}':>26}" if paper else "")
            )
