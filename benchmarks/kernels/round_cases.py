"""The end of a round: verification, draws without replacement, and the commit of keys and values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from benchmarks.kernels.cases import Case, Contender
from benchmarks.kernels.host_rule import flows_of_the_device, host_walk
from draftwood import (
    CounterRandomness,
    TapeRandomness,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    draw_children,
)
from draftwood.kernels.kv_commit import dispatch as commits
from draftwood.kernels.kv_commit import reference as plain_commits
from draftwood.kernels.ordered_draws import blocks
from draftwood.kernels.ordered_draws import dispatch as draws
from draftwood.kernels.ordered_draws import reference as plain_draws
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, TreeCase, Walk
from draftwood.kernels.tree_race import dispatch as race
from draftwood.kernels.tree_rejection import dispatch as rejection
from draftwood.kernels.tree_traversal import dispatch as traversal
from draftwood.strategies.verifiers.batched.on_device import tree_case
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal

Answer = tuple[tuple[int, ...], int]
"""The accepted path and the token after it."""


def ragged(device: torch.device) -> list[Case]:
    """Moves that overlap, trees and vocabularies of several sizes."""
    arena = torch.randn(6, 3, 2, 40, 32, generator=torch.Generator().manual_seed(0)).to(device)
    return [
        commit_of(
            [arena],
            rows=[0, 0, 0, 0, 0, 2, 2, 2],
            sources=[4, 5, 6, 9, 30, 20, 22, 39],
            targets=[3, 4, 5, 6, 7, 19, 20, 21],
            size="paths onto themselves",
        ),
        judged(device, rows=3, nodes=9, vocab=50),
        judged(device, rows=2, nodes=30, vocab=5000),
        judged(device, rows=3, nodes=9, vocab=50, leaf_first=True),
        judged(device, rows=2, nodes=12, vocab=5000, leaf_first=True),
        raced(device, rows=3, nodes=9, vocab=50),
        raced(device, rows=2, nodes=12, vocab=9000),
        drawn(device, nodes=2, vocab=11, count=3),
        drawn(device, nodes=3, vocab=5000, count=3),
    ]


def commit(
    device: torch.device,
    *,
    layers: int = 32,
    rows: int = 8,
    kv_heads: int = 8,
    dim: int = 128,
    prefix: int = 1024,
    nodes: int = 64,
    path: int = 8,
) -> Case:
    """A path through a tree in every row, with the layers of Llama 3 8B; no slot is read and written."""
    arena = torch.randn(2 * layers, rows, kv_heads, prefix + nodes, dim, dtype=torch.float16, device=device)
    step = (nodes - path) // path
    numbers = [position for _ in range(rows) for position in range(path)]
    return commit_of(
        [arena],
        rows=[row for row in range(rows) for _ in range(path)],
        sources=[prefix + path + position * step for position in numbers],
        targets=[prefix + position for position in numbers],
        size=f"{path} of {nodes} nodes, {layers} layers, rows: {rows}, {kv_heads} heads of {dim}",
    )


def commit_of(
    arenas: list[Tensor], *, rows: list[int], sources: list[int], targets: list[int], size: str
) -> Case:
    """Moves in `arenas`, which are changed."""
    before = [arena[:, rows, :, sources].clone() for arena in arenas]
    old = [arena[:, rows, :, targets].clone() for arena in arenas]
    places = {"rows": rows, "sources": sources, "targets": targets}

    def reset() -> None:
        for arena, written, read in zip(arenas, old, before, strict=True):
            arena[:, rows, :, targets] = written
            arena[:, rows, :, sources] = read

    def a_copy_a_buffer() -> None:
        for arena in arenas:
            for buffer in arena:
                plain_commits.move(arenas=[buffer[None]], **places)

    def moved(_: None) -> list[bool]:
        return [
            bool(torch.equal(arena[:, rows, :, targets], kept))
            for arena, kept in zip(arenas, before, strict=True)
        ]

    return Case(
        operation="kv_commit",
        size=size,
        expected=lambda: [True] * len(arenas),
        contenders=[
            Contender("kernel", partial(commits.move, arenas=arenas, **places), read=moved, kernel=True),
            Contender("reference", partial(plain_commits.move, arenas=arenas, **places), read=moved),
            Contender("a copy a layer's keys, and values", a_copy_a_buffer, read=moved),
        ],
        bytes=2 * sum(tensor.numel() * tensor.element_size() for tensor in before),
        reset=reset,
    )


def judged(
    device: torch.device,
    *,
    rows: int = 1,
    nodes: int = 64,
    vocab: int = 128_256,
    children: int = 4,
    leaf_first: bool = False,
) -> Case:
    """Trees drawn without replacement; a third of the target's mass is the draft's.

    By rejection from the root down; with `leaf_first` by traversal.
    """
    verifier = Traversal() if leaf_first else RecursiveRejection()
    rule: Any = {"leaf_first": True, "classes": False} if leaf_first else {}
    kernel_walk: Any = traversal.walk if leaf_first else rejection.walk
    grown = [_grown(nodes, vocab, children, seed) for seed in range(rows)]
    tapes = [_tape(nodes + 1, seed) for seed in range(rows)]
    there = [(_moved(tree, device), targets.to(device)) for tree, targets in grown]

    def prepared(pairs: Sequence[tuple[TokenTree, Tensor]]) -> list[TreeCase]:
        made = [tree_case(tree, targets, tape) for (tree, targets), tape in zip(pairs, tapes, strict=True)]
        assert all(row is not None for row in made)
        return [row for row in made if row is not None]

    on_device = prepared(there)
    walks = [walk for row in prepared(grown) if (walk := host_walk(verifier, row)) is not None]

    def plainly() -> list[Answer]:
        outcomes = []
        with kernels_enabled(False):
            for (tree, targets), tape in zip(there, tapes, strict=True):
                outcome = verifier.verify(tree, targets, TapeRandomness(tape))
                outcomes.append((outcome.path, outcome.extra))
        return outcomes

    def launched() -> list[Walk | None]:
        walked: list[Walk | None] = kernel_walk(TreeArrays.of(on_device), **rule)
        return walked

    def answers(outcomes: Sequence[Walk | None]) -> list[Answer | None]:
        return [None if walk is None else (walk.path, walk.extra) for walk in outcomes]

    return Case(
        operation="tree_traversal" if leaf_first else "tree_rejection",
        size=f"{nodes} nodes, {vocab} tokens, rows: {rows}",
        expected=partial(answers, walks),
        contenders=[
            Contender(
                "kernel", lambda: kernel_walk(TreeArrays.of(on_device), **rule), read=answers, kernel=True
            ),
            Contender("plain verifier", plainly),
        ],
        # Going by leaves, a child that fails costs a pass over its law, its target and what is left.
        bytes=12 * vocab * nodes * rows
        if leaf_first
        else sum(4 * vocab * _passes(tree, walk) for (tree, _), walk in zip(grown, walks, strict=True)),
    )


def raced(
    device: torch.device, *, rows: int = 1, nodes: int = 64, vocab: int = 128_256, children: int = 4
) -> Case:
    """Returns the trees judged by race verification, at times that are equal for all contenders but the last.

    That one, the plain verifier, draws its own.
    """
    grown = [_grown(nodes, vocab, children, seed) for seed in range(rows)]
    tapes = [_tape(2 * nodes + 1, seed) for seed in range(rows)]
    there = [(_moved(tree, device), targets.to(device)) for tree, targets in grown]
    waits = np.random.default_rng(0).exponential(size=(rows, nodes, race.MOST + 1))

    def cases(pairs: Sequence[tuple[TokenTree, Tensor]]) -> list[TreeCase]:
        made = [tree_case(tree, targets, tape) for (tree, targets), tape in zip(pairs, tapes, strict=True)]
        return [row for row in made if row is not None]

    def by_host_rule() -> list[Answer | None]:
        with flows_of_the_device():
            judged_rows = zip(cases(grown), torch.from_numpy(waits), strict=True)
            return answers([host_walk(RaceTraversal(), case, of_row) for case, of_row in judged_rows])

    def plainly() -> None:
        with kernels_enabled(False):
            trees, targets = [tree for tree, _ in there], [of_row for _, of_row in there]
            RaceTraversal().verify_rows(trees, targets, [TapeRandomness(tape) for tape in tapes])

    def answers(walks: Sequence[Walk | None]) -> list[Answer | None]:
        return [None if walk is None else (walk.path, walk.extra) for walk in walks]

    inner = sum(len(tree.proposals) for tree, _ in grown)
    on_device = cases(there)
    return Case(
        operation="tree_race",
        size=f"{nodes} nodes, {vocab} tokens, rows: {rows}",
        expected=by_host_rule,
        contenders=[
            Contender(
                "kernel", lambda: race.walk(TreeArrays.of(on_device), waits), read=answers, kernel=True
            ),
            Contender("plain verifier", plainly, judged=False),
        ],
        # kernels/tree_race/README.md, cost.
        bytes=(86 * inner + 24 * rows) * vocab,
    )


def _passes(tree: TokenTree, walk: Walk) -> int:
    """Returns the kernel's number of passes over the vocabulary (kernels/tree_rejection/README.md, cost)."""
    passes = 2
    for node, after in zip(walk.path, [*walk.path[1:], None], strict=True):
        siblings = tree.children(node)
        rejected = len(siblings) if after is None else siblings.index(after)
        passes += bool(siblings) + 3 * rejected + bool(rejected)
    return passes


def drawn(
    device: torch.device, *, nodes: int = 32, vocab: int = 128_256, count: int = 4, sharpness: float = 3.0
) -> Case:
    """Several distinct tokens for every node of a level."""
    generator = torch.Generator().manual_seed(0)
    probs = (torch.randn(nodes, vocab, generator=generator) * sharpness).softmax(-1)
    tape, there = _tape(nodes * count, 1).view(nodes, count).numpy(), probs.to(device)
    arguments: dict[str, Any] = {"limits": np.full(nodes, count), "uniforms": tape}

    def tokens(draw: Any, weights: Tensor) -> list[list[int]]:
        listed: list[list[int]] = draw(probs=weights, **arguments).tokens.tolist()
        return listed

    kept = min(count, vocab)
    return Case(
        operation="ordered_draws",
        size=f"{count} draws of {nodes} nodes, {vocab} tokens",
        expected=partial(tokens, plain_draws.draw, probs),
        contenders=[
            Contender("kernel", partial(tokens, draws.draw, there), kernel=True),
            Contender("blocks", partial(tokens, blocks.draw, there)),
            Contender("torch.multinomial", lambda: there.multinomial(kept).cpu(), judged=False),
        ],
        bytes=4 * probs.numel(),
    )


def _grown(nodes: int, vocab: int, children: int, seed: int) -> tuple[TokenTree, Tensor]:
    """A tree in which every node has `children` as long as there are nodes left, and the target's rows."""
    chance, rng, tree = torch.Generator().manual_seed(seed), CounterRandomness.seeded(seed), TreeBuilder(0)
    targets, node = torch.randn(nodes, vocab, generator=chance).mul_(2).softmax(-1), 0
    while len(tree) < nodes:
        p = torch.randn(1, vocab, generator=chance).mul_(3).softmax(-1)
        (one,) = draw_children(WithoutReplacement, p, count=min(children, nodes - len(tree)), rng=rng)
        tree.add_children(node, one.tokens, one.proposal)
        targets[node] = (p[0] + 2 * targets[node]) / 3
        node += 1
    return tree.finish(), targets


def _moved(tree: TokenTree, device: torch.device) -> TokenTree:
    laws = {node: attrs.evolve(law, p=law.p.to(device)) for node, law in tree.proposals.items()}  # type: ignore[attr-defined,misc]
    return attrs.evolve(tree, proposals=laws)


def _tape(numbers: int, seed: int) -> Tensor:
    return torch.rand(numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
