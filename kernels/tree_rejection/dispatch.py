"""Launches recursive rejection down trees, or says why the kernel does not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.tree_rejection.reference import FIXED, FULL, REMAINING, RejectionCase, Walk

__all__ = ["FIXED", "FULL", "REMAINING", "RejectionCase", "Walk", "serves", "walk"]

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
    reason = support.objection(targets)
    if reason is None and targets.dtype != torch.float32:
        reason = f"its distributions are {targets.dtype}"
    return support.use_kernel("tree_rejection", reason)


def walk(cases: Sequence[RejectionCase]) -> list[Walk | None]:
    """Judge cases, one a row of the batch, in one launch, with one copy to the device and one back.

    Returns:
        For every case its walk; None where a distribution on the path is none or the uniforms are used
        up, as the plain verifier will say when it judges the row.

    Raises:
        ValueError: distributions of another dtype, device or length than the first case's targets, or that
            are not contiguous; or lists of several lengths.
    """
    if not cases:
        return []
    for case in cases:
        _check(case, cases[0].targets)
    nodes, vocab = max(len(case.tokens) for case in cases), cases[0].targets.shape[-1]
    device = cases[0].targets.device
    configuration = CONFIGURATIONS[vocab > SMALL]
    plan = torch.stack([_plan(case, nodes) for case in cases])
    # A row has the result's five numbers and its path.
    out = torch.empty(len(cases), 5 + nodes, dtype=torch.int32, device=device)
    configuration.launch(
        (len(cases),),
        plan=plan.to(device, non_blocking=True),
        scratch=torch.empty(len(cases), 3, vocab, dtype=torch.float32, device=device),
        out=out,
        nodes=nodes,
        vocab=vocab,
    )
    return [
        None if wrong else Walk(tuple(path[:length]), extra, bool(bonus), used)
        for wrong, used, bonus, extra, length, *path in out.tolist()
    ]


def _plan(case: RejectionCase, nodes: int) -> Tensor:
    """int64 `[nodes, 7]`, a line for every node.

    Its token, first child and next sibling (0 for none), how it was drawn, the addresses of its law and
    of the target after it, and the bits of the uniform that is used after as many others.
    """
    plan = torch.zeros(nodes, 7, dtype=torch.int64)
    first, further = [0] * len(case.tokens), [0] * len(case.tokens)
    for node, children in enumerate(case.children):
        for child, after in pairwise([*children, 0]):
            further[child] = after
        first[node] = children[0] if children else 0
    start, step = case.targets.data_ptr(), case.targets.stride(0) * case.targets.element_size()
    columns = (
        case.tokens,
        first,
        further,
        case.draw_kinds,
        [0 if law is None else law.data_ptr() for law in case.laws],
        [start + node * step for node in range(len(case.tokens))],
    )
    plan[: len(case.tokens), :6] = torch.tensor(list(zip(*columns, strict=True)), dtype=torch.int64)
    uniforms = torch.full((nodes,), float("nan"), dtype=torch.float64)
    uniforms[: len(case.uniforms)] = case.uniforms[:nodes]
    plan[:, 6] = uniforms.view(torch.int64)
    return plan


def _check(case: RejectionCase, like: Tensor) -> None:
    nodes = len(case.tokens)
    if not nodes == len(case.parents) == len(case.draw_kinds) == len(case.laws) <= len(case.targets):
        raise ValueError(
            f"{nodes} tokens, {len(case.parents)} parents, {len(case.draw_kinds)} kinds of draws, "
            f"{len(case.laws)} laws and {len(case.targets)} targets; give one of each a node."
        )
    for probs in (case.targets, *case.laws):
        if probs is None:
            continue
        if (probs.dtype, probs.device, probs.shape[-1]) != (torch.float32, like.device, like.shape[-1]):
            raise ValueError(
                f"A distribution of {probs.shape[-1]} tokens is {probs.dtype} on {probs.device}; this launch "
                f"needs {like.shape[-1]} of torch.float32 on {like.device}."
            )
        if probs.shape[-1] > 1 and probs.stride(-1) != 1:
            raise ValueError(f"A distribution has stride {probs.stride(-1)}; make it contiguous.")
