"""Top-k, top-p and min-p as one loop over the scores of a node."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwood.kernels.machine_code import compiled


@compiled
def keep_largest(
    scores: NDArray[Any],
    nodes: NDArray[np.int64],
    peaks: NDArray[Any],
    totals: NDArray[Any],
    width: int,
    cut: bool,
    temperature: np.floating[Any],
    top_p: float,
    min_p: float,
    out: NDArray[Any],
) -> NDArray[np.bool_]:
    """Writes the softmax of the scores of `nodes` that top-k, top-p and min-p keep.

    Args:
        scores: `[n, vocab]` float32 or float64.
        nodes: `[m]`, the nodes to look at.
        peaks: `[n]`, the largest score of each node; NaN and infinities where it has no softmax.
        totals: `[n]`, sum of `exp((score - peak) / temperature)` over the vocabulary, where not `cut`.
        width: how many of the largest scores are looked at.
        cut: whether top-k keeps `width - 1` of them; otherwise it keeps all tokens.
        temperature: above 0, of the scores' dtype.
        top_p: in (0, 1].
        min_p: in [0, 1].
        out: `[n, vocab]`, written at `nodes`: NaN for a node without a softmax.

    Returns:
        `[m]`, the nodes of which this does not tell: equal scores of which some are kept, or more may be kept
        than were looked at.
    """
    unsure = np.zeros(len(nodes), dtype=np.bool_)
    largest, tokens = np.empty(width, dtype=scores.dtype), np.empty(width, dtype=np.int64)
    weights, vocab = np.empty(width), scores.shape[1]
    most = width - 1 if cut else width
    for index in range(len(nodes)):
        node = nodes[index]
        if not np.isfinite(peaks[node]):
            out[node, :] = np.nan
            continue
        out[node, :] = 0
        # A heap with the smallest of the largest scores at its root; then, from the end on, the smallest is
        # put after all others.
        for step in range(vocab + width - 1):
            if step < width:
                place, score = step, scores[node, step]
                while place > 0 and largest[(place - 1) // 2] > score:
                    above = (place - 1) // 2
                    largest[place], tokens[place] = largest[above], tokens[above]
                    place = above
                largest[place], tokens[place] = score, step
                continue
            if step < vocab:
                size, score, token = width, scores[node, step], step
                if not score > largest[0]:
                    continue
            else:
                size = width - 1 - (step - vocab)
                score, token = largest[size], tokens[size]
                largest[size], tokens[size] = largest[0], tokens[0]
            place = 0
            while 2 * place + 1 < size:
                below = 2 * place + 1
                if below + 1 < size and largest[below + 1] < largest[below]:
                    below += 1
                if not largest[below] < score:
                    break
                largest[place], tokens[place] = largest[below], tokens[below]
                place = below
            largest[place], tokens[place] = score, token
        total = 0.0
        for place in range(width):
            largest[place] = largest[place] / temperature
            weights[place] = np.exp(largest[place] - largest[0])
            if place < most:
                total += weights[place]
        if not cut:
            total = totals[node]
        kept, of_kept = 0, 0.0
        while kept < most:
            if kept > 0 and (weights[kept] < min_p or (top_p < 1 and of_kept >= top_p * total)):
                break
            of_kept += weights[kept]
            kept += 1
        for place in range(kept):
            out[node, tokens[place]] = weights[place] / of_kept
        tied = kept < width and largest[kept] == largest[kept - 1]
        if cut:  # top-k keeps all that are equal to the last
            tied = tied or largest[width - 1] == largest[width - 2]
        unsure[index] = tied or (kept == width and width < vocab)
    return unsure
