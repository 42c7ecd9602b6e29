"""Chooses between the kernel and the reference of draws without replacement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.ordered_draws import reference
from draftwood.kernels.ordered_draws.reference import Draws
from draftwood.kernels.tensor_checks import scalar_layout_objection

CONFIGURATIONS = tuple(
    Configuration(
        name=f"up to {block * blocks} tokens",
        kernel="draftwood.kernels.ordered_draws.kernel:draw",
        types={
            **{"probs": "*fp32", "uniforms": "*fp64", "begins": "*i64", "counts": "*i64", "out": "*i32"},
            **dict.fromkeys(("stride", "vocab", "count"), "i32"),
        },
        constants={"BLOCK": block, "BLOCKS": blocks},
        warps=warps,
    )
    for block, blocks, warps in ((512, 8, 4), (2048, 256, 8))
)


def serving(probs: Tensor) -> Callable[..., list[Draws]] | None:
    """`draw` where the kernel serves `probs` `[nodes, vocab]`, else None; logs each choice once."""
    return draw if support.use_kernel("ordered_draws", _objection(probs)) else None


def draw(
    *, probs: Tensor, count: int | Sequence[int], uniforms: Tensor, total: int | None = None
) -> list[Draws]:
    """Draw up to `count` distinct tokens for every node; fewer where fewer have a probability above 0.

    The kernel needs one result read back, whatever its arguments.

    Args:
        probs: `[nodes, vocab]`, which need not be normalised; a row that holds NaN draws nothing.
        count: at least 0, one number or one for each node.
        uniforms: float64 in [0, 1) on the CPU, as many as may be drawn; used are as many as tokens come
            back, from the first on, node after node.
        total: how many altogether: the nodes behind the last of them draw nothing. None: no limit.

    Raises:
        ValueError: too few uniforms, or a row that holds infinity.
    """
    nodes, vocab = probs.shape
    limits = [count] * nodes if isinstance(count, int) else list(count)
    most, needed = max(limits, default=0), sum(limits)
    needed = needed if total is None else min(needed, total)
    if len(uniforms) < needed:
        raise ValueError(f"{len(uniforms)} uniforms for {needed} draws of {nodes} nodes; give one a draw.")
    if not needed:
        return [([], []) for _ in range(nodes)]
    if serving(probs) is None:
        return reference.draw(probs=probs, count=limits, uniforms=uniforms, total=total)
    configuration = next(choice for choice in CONFIGURATIONS if vocab <= _most(choice))
    # How many a node draws is known before any draw, and so is where its uniforms begin.
    most_of_each = torch.tensor(limits).to(probs.device, non_blocking=True)
    counts = (probs > 0).sum(-1).minimum(most_of_each).masked_fill(probs.isnan().any(-1), 0)
    begins = counts.cumsum(0) - counts
    if total is not None:
        counts = counts.minimum((total - begins).clamp(min=0))
    out = torch.full((nodes, 2, most), -1, dtype=torch.int32, device=probs.device)
    configuration.launch(
        (nodes,),
        probs=probs,
        uniforms=uniforms.to(probs.device, non_blocking=True),
        begins=begins,
        counts=counts,
        out=out,
        stride=probs.stride(0),
        vocab=vocab,
        count=most,
    )
    drawn = out.cpu()
    rows = zip(drawn[:, 0].tolist(), drawn[:, 1].view(torch.float32).tolist(), strict=True)
    draws = [([token for token in tokens if token != -1], chances) for tokens, chances in rows]
    if any(-2 in tokens for tokens, _ in draws):
        raise ValueError("A row of weights sums to infinity; check the logits for infinity.")
    return [(tokens, chances[: len(tokens)]) for tokens, chances in draws]


def _most(configuration: Configuration) -> int:
    return int(configuration.constants["BLOCK"] * configuration.constants["BLOCKS"])


def _objection(probs: Tensor) -> str | None:
    if (reason := support.objection(probs)) is not None:
        return reason
    if probs.dtype != torch.float32:
        return f"its distributions are {probs.dtype}"
    if probs.shape[1] > (limit := _most(CONFIGURATIONS[-1])):
        return f"its vocabulary has {probs.shape[1]} tokens, and the kernel holds {limit}"
    return scalar_layout_objection(probabilities=probs)
