"""Top-k, top-p and min-p on a CPU: the distributions of transformers' warpers, from the largest scores only.

Transformers sorts the vocabulary for every node. The tokens that stay are few, so looking at the largest
scores gives the same distribution in a tenth of the time.
"""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

LOOKED_AT = (256, 2048)
"""Largest scores that top-p looks at, and how many where these are too few."""


def filtered(
    scores: Float[Tensor, "n vocab"],
    *,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    out: Float[Tensor, "n vocab"],
) -> Int[np.ndarray, " left"]:
    """Write the softmax of the cooled scores that top-k, then top-p, then min-p keep to `out`.

    Equal to transformers' `TopKLogitsWarper`, `TopPLogitsWarper` and `MinPLogitsWarper` in this order, up to
    rounding. As with a softmax, NaN comes of a node whose scores hold NaN or +inf, or are -inf throughout.

    Args:
        scores: after processors, on a CPU.
        temperature: above 0; scores are divided by it.
        top_k: how many are kept; None keeps all.
        top_p: probability that is kept, in (0, 1]; None keeps all.
        min_p: share of the largest probability below which a token is dropped; None drops none.
        out: other memory than that of `scores`.

    Returns:
        The nodes of which only a sort can tell: of equal scores some are kept, or the distribution is flat.
        What `out` holds of them means nothing.
    """
    # The kernels import nothing of ours, so this arrow points down.
    from draftwood.kernels.largest_scores import keep_largest

    values, nodes = scores.numpy(), np.arange(len(scores))
    vocab, cut = scores.shape[-1], top_k is not None and top_k < scores.shape[-1]
    peaks = scores.amax(-1)
    totals = torch.ones_like(peaks) if cut else ((scores - peaks[:, None]) / temperature).exp_().sum(-1)
    for width in (top_k + 1,) if cut and top_k is not None else LOOKED_AT:
        unsure = keep_largest(
            values,
            nodes,
            peaks.numpy(),
            totals.numpy(),
            min(width, vocab),
            cut,
            values.dtype.type(temperature),
            1.0 if top_p is None else float(top_p),
            float(min_p or 0),
            out.numpy(),
        )
        nodes = nodes[unsure]
        if not len(nodes):
            break
    return nodes
