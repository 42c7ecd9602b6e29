"""Launches recursive rejection down trees, or says why the kernel does not."""

from __future__ import annotations

import torch

from draftwood.kernels.configuration import Configuration
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk, walks_of

SMALL = 4096
"""Tokens of a vocabulary that few threads judge faster than many."""

CONFIGURATIONS = tuple(
    Configuration(
        name=name,
        kernel="draftwood.kernels.tree_rejection.kernel:walk",
        types={"plan": "*i64", "scratch": "*fp32", "out": "*i32", "nodes": "i32", "vocab": "i32"},
        constants={"BLOCK": block},
        warps=warps,
    )
    for name, block, warps in ((f"up to {SMALL} tokens", 1024, 4), ("more tokens", 2048, 16))
)


def walk(trees: TreeArrays) -> list[Walk | None]:
    """Judge all rows in one launch, with one copy to the device and one back.

    Returns:
        For every row its walk; None where a distribution on the path is none or the uniforms are used up, as
        the plain verifier will say when it judges the row.
    """
    rows, lines = len(trees.counts), trees.lines
    # A row has the result's five numbers and its path.
    out = torch.empty(rows, 5 + lines, dtype=torch.int32, device=trees.device)
    CONFIGURATIONS[trees.vocab > SMALL].launch(
        (rows,),
        plan=sent(trees.plan(), trees.device),
        scratch=torch.empty(rows, 3, trees.vocab, dtype=torch.float32, device=trees.device),
        out=out,
        nodes=lines,
        vocab=trees.vocab,
    )
    return walks_of(out)
