"""Launches recursive rejection down trees, or says why the kernel does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from draftwood.kernels import switch
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.tree_rejection.reference import LEFT, POINT, WHOLE, Row, Walk

__all__ = ["LEFT", "POINT", "WHOLE", "Row", "Walk", "serves", "walk"]

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


def serves(targets: Tensor) -> bool:
    """Whether the kernel judges rows whose targets are like `targets`; logs each choice once."""
    reason = switch.objection(targets)
    if reason is None and targets.dtype != torch.float32:
        reason = f"its distributions are {targets.dtype}"
    return switch.chosen("tree_rejection", reason)


def walk(rows: Sequence[Row]) -> list[Walk | None]:
    """Judge rows in one launch, with one copy to the device and one back.

    Returns:
        For every row its walk; None where a distribution on the way is none or the uniforms are used up,
        as the plain verifier will say when it judges the row.

    Raises:
        ValueError: distributions of another dtype, device or length than the first row's targets, or that
            are not contiguous; or lists of several lengths.
    """
    if not rows:
        return []
    for row in rows:
        _check(row, rows[0].targets)
    nodes, vocab = max(len(row.tokens) for row in rows), rows[0].targets.shape[-1]
    device = rows[0].targets.device
    configuration = CONFIGURATIONS[vocab > SMALL]
    plan = torch.stack([_plan(row, nodes) for row in rows])
    # A row has the result's five numbers and its path.
    out = torch.empty(len(rows), 5 + nodes, dtype=torch.int32, device=device)
    configuration.launch(
        (len(rows),),
        plan=plan.to(device, non_blocking=True),
        scratch=torch.empty(len(rows), 3, vocab, dtype=torch.float32, device=device),
        out=out,
        nodes=nodes,
        vocab=vocab,
    )
    return [
        None if wrong else Walk(tuple(path[:length]), extra, bool(bonus), used)
        for wrong, used, bonus, extra, length, *path in out.tolist()
    ]


def _plan(row: Row, nodes: int) -> Tensor:
    """int64 `[nodes, 7]`, a line for every node.

    Its token, first child and next sibling (0 for none), way, the addresses of its law and of the target
    after it, and the bits of the uniform that is used after as many others.
    """
    plan = torch.zeros(nodes, 7, dtype=torch.int64)
    first, further = [0] * len(row.tokens), [0] * len(row.tokens)
    for node, children in enumerate(row.children):
        for child, after in pairwise([*children, 0]):
            further[child] = after
        first[node] = children[0] if children else 0
    start, step = row.targets.data_ptr(), row.targets.stride(0) * row.targets.element_size()
    columns = (
        row.tokens,
        first,
        further,
        row.ways,
        [0 if law is None else law.data_ptr() for law in row.laws],
        [start + node * step for node in range(len(row.tokens))],
    )
    plan[: len(row.tokens), :6] = torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int64)
    uniforms = torch.full((nodes,), float("nan"), dtype=torch.float64)
    uniforms[: len(row.uniforms)] = row.uniforms[:nodes]
    plan[:, 6] = uniforms.view(torch.int64)
    return plan


def _check(row: Row, like: Tensor) -> None:
    nodes = len(row.tokens)
    if not nodes == len(row.parents) == len(row.ways) == len(row.laws) <= len(row.targets):
        raise ValueError(
            f"{nodes} tokens, {len(row.parents)} parents, {len(row.ways)} ways, {len(row.laws)} laws and "
            f"{len(row.targets)} targets; give one of each a node."
        )
    for held in (row.targets, *row.laws):
        if held is None:
            continue
        if (held.dtype, held.device, held.shape[-1]) != (torch.float32, like.device, like.shape[-1]):
            raise ValueError(
                f"A distribution of {held.shape[-1]} tokens is {held.dtype} on {held.device}; this launch "
                f"needs {like.shape[-1]} of torch.float32 on {like.device}."
            )
        if held.shape[-1] > 1 and held.stride(-1) != 1:
            raise ValueError(f"A distribution has stride {held.stride(-1)}; make it contiguous.")
