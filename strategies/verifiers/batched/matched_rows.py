"""Sample and match for all rows at once, where their distributions lie."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import Outcome, Randomness
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_plan.arrays import Floats, Ints
from draftwood.laws.randomness import UniformRandomness
from draftwood.strategies.verifiers.batched.targets import Targets, stacked
from draftwood.strategies.verifiers.batched.tree_rows import TreeRows


def matched_rows(trees: TreeRows, target_probs: Targets, rngs: Sequence[Randomness]) -> list[Outcome | None]:
    """Returns the outcomes of sample and match for every row, with one wait for all, by its own uniforms.

    A node of the path takes two uniforms, so that every node's are known by its depth, and all nodes
    are judged side by side before any is known to be on the path.

    Returns:
        For every row its outcome; or None, with its stream as it was, where there is something to complain
        of, or where the row's chance is no separate stream.
    """
    rows, nodes = trees.tokens.shape
    streams = [rng if isinstance(rng, UniformRandomness) else None for rng in rngs]
    if len({id(rng) for rng in rngs}) < rows or not any(streams):
        return [None] * rows
    siblings = Siblings.of(trees)
    tapes = np.full((rows, 2 * nodes), np.nan)
    for row, stream in enumerate(streams):
        if stream is not None:
            tape = stream.ahead(2 * (int(siblings.depths[row].max()) + 1)).numpy()
            tapes[row, : len(tape)] = tape
    target = stacked(target_probs, nodes)
    judged: list[list[int]] = _judged(siblings, tapes, target).tolist()
    outcomes: list[Outcome | None] = []
    for row, (stream, (*step, last, extra, used, wrong)) in enumerate(zip(streams, judged, strict=True)):
        if stream is None or wrong:
            outcomes.append(None)
            continue
        path = [0]
        while path[-1] != last:
            path.append(step[path[-1]])
        stream.uniforms(used)
        outcomes.append(trees.outcome(row, path, extra))
    return outcomes


@attrs.frozen(eq=False)
class Siblings:
    """The children of every node as padded lists.

    Attributes:
        children: `[rows, nodes, width]`; 0 after the last, and where an earlier one has the same token.
        tokens: theirs, `[rows, nodes, width]`; after the last the first one's.
        depths: of every node, `[rows, nodes]`.
    """

    children: Ints
    tokens: Ints
    depths: Ints

    @classmethod
    def of(cls, trees: TreeRows) -> Siblings:
        rows = len(trees.tokens)
        child = trees.first_child
        columns = [child]
        while (child := np.take_along_axis(trees.next_sibling, child, 1)).any():
            columns.append(child)
        children = np.stack(columns, 2)
        tokens = np.take_along_axis(trees.tokens, children.reshape(rows, -1), 1).reshape(children.shape)
        tokens = np.where(children > 0, tokens, tokens[..., :1])
        repeated = np.tril(tokens[..., :, None] == tokens[..., None, :], -1).any(-1)
        depths, above = np.zeros_like(trees.parents), trees.parents
        while (above >= 0).any():
            depths += above >= 0
            above = np.where(above >= 0, np.take_along_axis(trees.parents, above.clip(min=0), 1), above)
        return cls(np.where(repeated, 0, children), tokens, depths)


def _judged(siblings: Siblings, tapes: Floats, target: Tensor) -> Tensor:
    """int64 `[rows, nodes + 4]` where `target` `[rows, nodes, vocab]` lies.

    The child that every node goes on to, 0 for none; the last node of the path, the token after it, how many
    uniforms were used, and whether something is wrong.
    """
    rows, nodes = target.shape[:2]
    width = siblings.children.shape[2]
    # Of every node: whether its children are hit, and which one.
    coins = [np.take_along_axis(tapes, 2 * siblings.depths + one, 1).view(np.int64) for one in (0, 1)]
    columns = [siblings.children, siblings.tokens, np.stack([siblings.depths, *coins], 2)]
    plan = sent(np.concatenate(columns, 2), target.device)
    children, tokens, (depths, *bits) = plan[..., :width], plan[..., width:-3], plan[..., -3:].unbind(2)
    hit_coin, child_coin = (one.contiguous().view(torch.float64) for one in bits)

    chances = torch.where(children > 0, target.gather(2, tokens), 0).double()
    heights = chances.cumsum(2)
    hit, total = heights[..., -1:].contiguous(), target.sum(2, dtype=torch.float64, keepdim=True)
    goes_on = (hit > 0) & (hit_coin[..., None] < hit / (hit + (total - hit).clamp(min=0)))
    step = torch.where(goes_on, children.gather(2, _at(heights, child_coin[..., None])), 0)[..., 0]

    jump = torch.where(step > 0, step, torch.arange(nodes, device=step.device))
    for _ in range(int(siblings.depths.max()).bit_length()):
        jump = jump.gather(1, jump)
    last = jump[:, :1]

    def at_last(values: Tensor) -> Tensor:
        """Returns the `values` `[rows, nodes, n]` of the last node, `[rows, n]`."""
        return values.gather(1, last[..., None].expand(rows, 1, values.shape[2]))[:, 0]

    left, its_tokens, parent = at_last(target).double(), at_last(tokens), at_last(children[..., :1]) > 0
    left = left.scatter(1, its_tokens, torch.where(parent, 0, left.gather(1, its_tokens)))
    tried = at_last(hit) > 0
    u = torch.where(tried, child_coin.gather(1, last), hit_coin.gather(1, last))
    heights = left.cumsum(1)
    weight = heights[:, -1:]
    wrong = ~((weight > 0) & (weight < torch.inf) & (u >= 0) & (left >= 0).all(1, keepdim=True))
    used = 2 * depths.gather(1, last) + 1 + tried
    return torch.cat([step, last, _at(heights, u), used, wrong], 1)


def _at(heights: Tensor, u: Tensor) -> Tensor:
    """The first indices `[..., 1]` whose `heights` `[..., n]` exceed `u` `[..., 1]` times the last one."""
    total = heights[..., -1:].contiguous()
    above = torch.searchsorted(heights, (u * total).contiguous(), right=True)
    # The product may have been rounded up to the total: the last index with any weight is meant.
    above = torch.minimum(above, torch.searchsorted(heights, total))
    return above.clamp(max=heights.shape[-1] - 1)  # beyond the end where the heights are NaN
