"""Exact expected tokens a round of every lossless verifier on the same trees, against the optimum.

Random pairs of toy models, the draft a mixture of its target (0, 30 or 60 %, in turns) and noise. Every
tree that a policy may draw is visited with its exact weight, as far as a verifier looks at it, and so is
every outcome of the verifier (level by level where trees allow it: `level_trees`); the optimum is the flow
problem of `draftwood.testing.optimal_tokens`.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console

from benchmarks.research.expected_tokens import by_shape, expected_tokens
from benchmarks.research.level_trees import LevelTrees
from benchmarks.research.verifiers import BASELINE
from draftwood import IncompatibleStrategy, TreePolicy, Verifier, create
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import UnknownStrategy, nearest
from draftwood.protocols import registry
from draftwood.protocols.compatibility import check_strategy_fits
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyModel, drawn_trees, optimal_tokens
from draftwood.testing.models.small_strategies import toy_drafter

MIXES = (0.0, 0.3, 0.6)


@attrs.frozen
class Shape:
    """Trees of one kind over a toy vocabulary."""

    vocab: int
    policy: str
    options: Mapping[str, Any]

    def create(self) -> TreePolicy:
        return create("policies", self.policy, self.options)  # type: ignore[no-any-return]

    def level_trees(self, draft: ToyModel) -> LevelTrees | None:
        """Its trees by `draft` as what is worked out level by level; None for others than those."""
        if self.policy != "fixed-tree" or self.options["law"] != "without-replacement":
            return None
        return LevelTrees(draft, self.options["branching"])


def levels(vocab: int, *branching: int, law: str = "without-replacement") -> Shape:
    """A static tree with so many children a node, level by level."""
    return Shape(vocab, "fixed-tree", {"depth": len(branching), "branching": branching, "law": law})


SHAPES: dict[str, Shape] = {
    "chain of 4": Shape(3, "chain", {"length": 4}),
    "i.i.d. 3 x 3": levels(2, 3, 1, 1, law="with-replacement"),
    "[2,2,1]": levels(3, 2, 2, 1),
    "DySpec, 5 nodes": Shape(3, "dyspec", {"budget": 5}),
    "[2]": levels(6, 2),
    "[2,1]": levels(3, 2, 1),
    "[2,2]": levels(3, 2, 2),
    "[2,1,1]": levels(3, 2, 1, 1),
    "[3,1]": levels(4, 3, 1),
    "[4,1]": levels(5, 4, 1),
}


def contenders(policy: TreePolicy) -> dict[str, Verifier]:
    """Every registered lossless verifier that judges the trees of `policy`, the baseline first."""
    every: dict[str, Verifier] = {name: create("verifiers", name) for name in registry.names("verifiers")}
    judges = {BASELINE: every.pop(BASELINE)}
    for label, verifier in every.items():
        if not verifier.lossless or verifier.greedy:
            continue
        try:
            check_strategy_fits(policy, verifier)
        except IncompatibleStrategy:
            continue
        judges[label] = verifier
    return judges


def optimum(
    trees: Annotated[list[str] | None, typer.Argument(help="Kinds of tree; default: all.")] = None,
    models: Annotated[int, typer.Option(help="Random pairs of models a kind.", min=1)] = 3,
    only: Annotated[list[str] | None, typer.Option(help="Only these verifiers, by label.")] = None,
    first: Annotated[int, typer.Option(help="Number of the first pair of models.", min=0)] = 0,
    to: Annotated[
        Path | None, typer.Option("--csv", help="Append every pair's figures here, as they come.")
    ] = None,
) -> None:
    """Exact expected tokens of every verifier on the same trees, and the share of the gap it closes.

    The gap lies between recursive rejection (0 %) and the optimum (100 %).

    \b
    Examples:
      python -m benchmarks optimum "[2,1]" --models 100
      python -m benchmarks optimum "chain of 4" "DySpec, 5 nodes"
    """
    for tree in trees or SHAPES:
        if tree not in SHAPES:
            raise UnknownStrategy(f"There is no tree {tree!r}{nearest(tree, SHAPES)}")
        shape = SHAPES[tree]
        policy = shape.create()
        judges = {
            label: judge
            for label, judge in contenders(policy).items()
            if not only or label in only or label == BASELINE
        }
        totals = dict.fromkeys([*judges, "optimum"], 0.0)
        seeds = range(first, first + models)
        for seed in watched(seeds, tree, total=models, console=Console(stderr=True)):
            expected, trees_drawn = _figures(shape, policy, judges, seed)
            for label, tokens in expected.items():
                totals[label] += tokens
            if to is not None:
                with to.open("a", newline="") as file:
                    csv.writer(file).writerows(
                        (tree, seed, label, value) for label, value in expected.items()
                    )
        gap = totals["optimum"] - totals[BASELINE]
        typer.echo(f"{tree}: {shape.vocab} tokens, {models} models, {trees_drawn} different trees")
        for label, total in totals.items():
            closed = f"{(total - totals[BASELINE]) / gap:8.1%}" if gap > 1e-12 else ""
            typer.echo(f"  {label:<36}{total / models:9.4f}{closed:>9}")


def _figures(
    shape: Shape, policy: TreePolicy, judges: Mapping[str, Verifier], seed: int
) -> tuple[dict[str, float], int]:
    """Every contender's expected tokens and the optimum on one pair of models, and how many trees it has."""
    target = ToyModel(shape.vocab, seed=2 * seed + 1, sharpness=1.0)
    mix = MIXES[seed % len(MIXES)]
    draft = ToyModel(shape.vocab, seed=2 * seed + 2, sharpness=1.0, near=target, mix=mix)
    by_level = shape.level_trees(draft)
    # What does not try siblings in an order does not ask in which they were drawn.
    drawn = by_level.sets() if by_level else drawn_trees(policy, toy_drafter(policy, draft))
    shapes = by_shape(drawn)
    expected = {
        label: by_level.expected_tokens(judge, target)
        if by_level and isinstance(judge, TreeWalk)
        else expected_tokens(shapes, judge, target=target)
        for label, judge in judges.items()
    }
    return {**expected, "optimum": optimal_tokens(drawn, target=target)}, len(drawn)
