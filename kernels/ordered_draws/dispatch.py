"""Chooses between the kernel and blocks on the CPU for draws without replacement."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.ordered_draws import blocks
from draftwood.kernels.ordered_draws.reference import Draws, unsound
from draftwood.kernels.tensor_checks import scalar_layout_objection
from draftwood.kernels.transfer import sent

CONFIGURATIONS = tuple(
    Configuration(
        name=f"up to {block * blocks} tokens",
        kernel="draftwood.kernels.ordered_draws.kernel:draw",
        types={
            **{"probs": "*fp32", "uniforms": "*fp64", "limits": "*i64", "floors": "*fp64", "out": "*i32"},
            **dict.fromkeys(("stride", "vocab", "count"), "i32"),
        },
        constants={"BLOCK": block, "BLOCKS": blocks},
        warps=warps,
    )
    for block, blocks, warps in ((512, 8, 4), (2048, 256, 8))
)


def draw(*, probs: Tensor, limits: NDArray[np.int64], uniforms: NDArray[np.float64]) -> Draws:
    """Draw up to `limits[i]` distinct tokens for every node i; see `reference.draw`."""
    one = draw_on_device if serves(probs) else blocks.draw
    return one(probs=probs, limits=limits, uniforms=uniforms)


def serves(probs: Tensor) -> bool:
    """Returns whether the kernel draws from `probs` `[nodes, vocab]`; logs each choice once."""
    reason = support.objection_on(probs.device)
    if reason is None and probs.dtype != torch.float32:
        reason = f"its distributions are {probs.dtype}"
    if reason is None and probs.shape[1] > (limit := _most(CONFIGURATIONS[-1])):
        reason = f"its vocabulary has {probs.shape[1]} tokens, and the kernel holds {limit}"
    return support.use_kernel("ordered_draws", reason or scalar_layout_objection(probabilities=probs))


def draw_on_device(
    *,
    probs: Tensor,
    limits: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    floors: NDArray[np.float64] | None = None,
) -> Draws:
    """Draws as `reference.draw`, in one launch with one result read back.

    Of `left` the kernel keeps float32.

    Args:
        probs: fp32 `[nodes, vocab]` on a device, weights that need not be normalised.
        limits: `[nodes]`, draws of each node; a node below 0 is not looked at.
        uniforms: float64 in [0, 1), `[nodes, draws]`.
        floors: float64 `[nodes]`; a node that has no more weight left than this draws no more. None: 0.

    Raises:
        ValueError: a node's weights sum to NaN or infinity.
    """
    (nodes, count), vocab = uniforms.shape, probs.shape[1]
    configuration = next(choice for choice in CONFIGURATIONS if vocab <= _most(choice))
    # One copy: all travel as bits.
    lowest = np.zeros(nodes) if floors is None else floors.astype(np.float64)
    staged = np.concatenate(
        [uniforms.reshape(-1).view(np.int64), limits.astype(np.int64), lowest.view(np.int64)]
    )
    numbers = sent(staged, probs.device)
    out = torch.empty(nodes, count + 1, 3, dtype=torch.int32, device=probs.device)
    configuration.launch(
        (nodes,),
        probs=probs,
        uniforms=numbers[: nodes * count].view(torch.float64),
        limits=numbers[nodes * count : nodes * (count + 1)],
        floors=numbers[nodes * (count + 1) :].view(torch.float64),
        out=out,
        stride=probs.stride(0),
        vocab=vocab,
        count=count,
    )
    tokens, chances, left = out.cpu().numpy().transpose(2, 0, 1)
    # What was not drawn was not written either.
    drawn = np.arange(count) < limits[:, None]
    tokens = np.where(drawn, tokens[:, :count], -1).astype(np.int64)
    left = np.ascontiguousarray(left).view(np.float32).astype(np.float64)
    seen = limits >= 0
    if (tokens == -2).any() or not np.isfinite(left[seen, 0]).all():
        raise unsound(float(left[seen, 0][~np.isfinite(left[seen, 0])][0]))
    live = tokens >= 0
    chances = np.ascontiguousarray(chances[:, :count]).view(np.float32).astype(np.float64)
    return Draws(tokens, np.where(live, chances, 0.0), np.where(seen[:, None], left, 0.0))


def _most(configuration: Configuration) -> int:
    return int(configuration.constants["BLOCK"] * configuration.constants["BLOCKS"])
