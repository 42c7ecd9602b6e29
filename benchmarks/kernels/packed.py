"""A packed tree against its unrolled paths on the same backend, as in STree's Figure 3 and Table 1.

And against the other ways with recurrent states: a snapshot for every node, and running the path again.
"""

from __future__ import annotations

from functools import partial
from statistics import median, quantiles
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer
from torch import Tensor

from draftwood import StateBackend, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.backends.kinds.ssm import RecurrentBackend
from draftwood.backends.kinds.state_cost import METHODS, allocations, backend_for
from draftwood.base.errors import DraftwoodError

CLOSE = 1e-3
"""Largest difference of logits that may pass between the two, in single precision."""


@attrs.frozen
class Scoring:
    """One way of scoring a full binary tree, and what it gave.

    Attributes:
        name: as printed.
        backend: with its rows, all of one text.
        tokens: `[rows, nodes]`.
        parents: `[rows, nodes]`.
        path: what every row commits.
        states: how many of every recurrent layer are kept at a time.
        row_bytes: bytes that the rows take after their prefill.
        seconds: of every round.
    """

    name: str
    backend: StateBackend
    tokens: Tensor
    parents: Tensor
    path: list[int]
    states: int
    row_bytes: int
    seconds: list[float] = attrs.field(factory=list)

    def score(self) -> Tensor:
        """Logits `[rows, nodes, vocab]`, and one node committed, so that every round is like the first."""
        logits = self.backend.extend(self.tokens, self.parents)
        self.backend.commit([self.path[:1]] * len(self.tokens))
        return logits


def binary(depth: int) -> list[int]:
    """Parents of a full binary tree of `depth` levels, level by level."""
    return [(node + 1) // 2 - 1 for node in range(2**depth - 1)]


def scorings(model: Any, depth: int, context: int) -> tuple[list[Scoring], list[list[int]]]:
    """The tree packed in one row, its paths in a row each, and the nodes of every path.

    Between them, for recurrent layers, the packed tree with the other ways of keeping their states.
    """
    parents = binary(depth)
    tokens = [(7 * node + 3) % model.config.vocab_size for node in range(len(parents))]
    paths = []
    for leaf in range(len(parents) // 2, len(parents)):
        path = [leaf]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        paths.append(path[::-1])
    backends = {"packed": load(model), "unrolled": load(model)}
    if isinstance(backends["packed"], RecurrentBackend):
        others = {scoring: backend_for(model, scoring) for scoring in METHODS if scoring != "replay"}
        backends = {"packed": backends["packed"], **others, "unrolled": backends["unrolled"]}
    made = []
    for name, backend in backends.items():
        apart = name == "unrolled"
        rows = [[tokens[node] for node in path] for path in paths] if apart else [tokens]
        above = list(range(-1, depth - 1)) if apart else parents
        texts = [torch.arange(context) % model.config.vocab_size] * len(rows)
        row_bytes, _ = allocations(partial(backend.prefill, texts))
        states = len(tokens) + 1 if name == "snapshots" else len(rows)
        tree_rows = torch.tensor(rows), torch.tensor([above] * len(rows))
        made.append(Scoring(name, backend, *tree_rows, [0], states, row_bytes))
    return made, paths


def packed(
    target: Annotated[
        str, typer.Option(help="A model of the zoo, with recurrent layers or without.")
    ] = "mamba2-5m",
    shallowest: Annotated[int, typer.Option(help="Levels of the smallest tree.", min=1)] = 4,
    deepest: Annotated[int, typer.Option(help="Levels of the largest tree.", min=1)] = 6,
    context: Annotated[int, typer.Option(help="Tokens before the tree.", min=1)] = 128,
    repetitions: Annotated[int, typer.Option(help="Timed rounds, in turns.", min=2)] = 20,
) -> None:
    """Full binary trees in one packed row and with a row for every path: tokens, states, memory and time.

    Memory is what the rows hold after their prefill and the most that a round takes besides.

    \b
    Examples:
      python -m benchmarks packed
      python -m benchmarks packed --target bamba-6m --deepest 5
    """
    model = zoo.load(target)
    typer.echo(f"{device_name()}: {target}, {context} tokens of context, full binary trees")
    typer.echo(f"{'':19}{'tokens':>8}{'states':>8}{'MB':>9}{'ms, median':>12}{'90 %':>9}")
    for depth in range(shallowest, deepest + 1):
        scored, paths = scorings(model, depth, context)
        together, *others = [scoring.score() for scoring in scored]
        expected = [together] * (len(others) - 1) + [torch.stack([together[0, path] for path in paths])]
        off = max(float((a - b).abs().max()) for a, b in zip(others, expected, strict=True))
        if not off <= CLOSE:
            raise DraftwoodError(
                f"Packed and unrolled logits of {target} differ by {off:.2g}, more than {CLOSE}."
            )
        for _ in range(repetitions):
            for scoring in scored:
                started = perf_counter()
                scoring.score()
                scoring.seconds.append(perf_counter() - started)
        sizes, times = [], []
        for scoring in scored:
            _, most = allocations(scoring.score)
            sizes.append(scoring.row_bytes + most)
            times.append(median(scoring.seconds))
            slow = quantiles(scoring.seconds, n=10)[-1]
            typer.echo(
                f"depth {depth}, {scoring.name:<10}{scoring.tokens.numel():8}{scoring.states:8}"
                f"{sizes[-1] / 1e6:9.2f}{times[-1] * 1e3:12.2f}{slow * 1e3:9.2f}"
            )
        typer.echo(f"{'unrolled / packed':<35}{sizes[-1] / sizes[0]:8.2f}x{times[-1] / times[0]:11.2f}x")
