"""Random trees that kernels and verifiers judge, with their targets and tapes of uniforms."""

from __future__ import annotations

import ctypes
import random

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import (
    CounterRandomness,
    Deterministic,
    PerChild,
    Proposal,
    TokenTree,
    TopThenSample,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, TreeCase

LAWS: list[type[Proposal]] = [WithoutReplacement, WithReplacement, TopThenSample, Deterministic, PerChild]
DRAFTS = ["smooth", "sharp", "sparse", "one-hot"]
TARGETS = ["the draft", "near", "far", "one-hot"]


def distributions(kind: str, count: int, vocab: int, chance: torch.Generator) -> Tensor:
    p = (
        torch.randn(count, vocab, generator=chance)
        .mul({"smooth": 1.0, "far": 2.0}.get(kind, 5.0))
        .softmax(-1)
    )
    if kind == "sparse":
        p = p.masked_fill(torch.rand(count, vocab, generator=chance) < 0.6, 0)
        p[:, int(torch.randint(vocab, (), generator=chance))] += 0.1
    if kind == "one-hot":
        p = torch.zeros(count, vocab).scatter_(1, p.argmax(-1, keepdim=True), 1)
    return p / p.sum(-1, keepdim=True)


def grown(
    nodes: int, vocab: int, *, laws: list[type[Proposal]], draft: str, target: str, seed: int
) -> tuple[TokenTree, Tensor]:
    """A ragged tree of about `nodes` nodes drawn from `draft`, and the target's rows."""
    shape, chance = random.Random(seed), torch.Generator().manual_seed(seed)
    rng, tree, targets, node = CounterRandomness.seeded(seed), TreeBuilder(0), [], 0
    while node < len(tree):
        law, count = (
            shape.choice(laws),
            min(shape.choice([0, 1, 2, 3, 7] if node else [3]), nodes - len(tree)),
        )
        p = distributions(draft, max(count, 1) if law is PerChild else 1, vocab, chance)
        if count:
            # Not by the interpreted kernel, which draws the same and takes a second for a large tree.
            with kernels_enabled(False):
                (drawn,) = draw_children(law, p[None] if law is PerChild else p, count=count, rng=rng)
            tree.add_children(node, drawn.tokens, drawn.proposal)
        other = distributions(target if target in ("far", "one-hot") else "smooth", 1, vocab, chance)[0]
        own = {"the draft": 1.0, "near": 0.7}.get(target, 0.0)
        targets.append(own * p[0] + (1 - own) * other)
        node += 1
    return tree.finish(), torch.stack(targets)


def placed(tree: TokenTree, device: torch.device) -> TokenTree:
    """The tree with its laws on `device`."""
    return attrs.evolve(tree, proposals={node: moved(one, device) for node, one in tree.proposals.items()})


def moved(proposal: Proposal, device: torch.device) -> Proposal:
    if isinstance(proposal, Deterministic):
        return proposal
    if isinstance(proposal, PerChild):
        return PerChild([p.to(device) for p in proposal.ps])
    assert isinstance(proposal, WithoutReplacement | WithReplacement | TopThenSample)
    return attrs.evolve(proposal, p=proposal.p.to(device))


def tape_of(numbers: int, seed: int) -> Tensor:
    return torch.rand(numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def cases_of(trees: TreeArrays) -> list[TreeCase]:
    """The cases that `trees`, of the CPU, were made of."""

    def at(address: int, rows: int = 1) -> Tensor:
        size = rows * trees.vocab
        return torch.from_numpy(
            np.ctypeslib.as_array((ctypes.c_float * size).from_address(address)).reshape(rows, -1)
        )

    cases = []
    for row, count in enumerate(trees.counts.tolist()):
        laws = [None if not address else at(address)[0] for address in trees.laws[row, :count].tolist()]
        targets = torch.cat([at(address) for address in trees.targets[row, :count].tolist()])
        tape = torch.from_numpy(trees.uniforms[row])
        cases.append(
            TreeCase(
                tokens=trees.tokens[row, :count].tolist(),
                parents=trees.parents[row, :count].tolist(),
                draw_kinds=trees.draw_kinds[row, :count].tolist(),
                laws=laws,
                targets=targets,
                uniforms=tape[~tape.isnan()],
            )
        )
    return cases
