"""Trees of all rows judged where their distributions lie, with one small result read back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, TreeBatch, Verifier
from draftwood.kernels import support
from draftwood.kernels.tree_plan.arrays import (
    FIXED,
    FULL,
    REMAINING,
    Floats,
    Ints,
    TreeArrays,
    TreeCase,
    Walk,
    row_addresses,
)
from draftwood.laws.proposals import (
    Deterministic,
    PerChild,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.laws.randomness import UniformRandomness, ahead_of_rows

DRAWN_ALIKE: dict[type[Proposal], int] = {
    Deterministic: FIXED,
    WithReplacement: FULL,
    WithoutReplacement: REMAINING,
}
"""How children are drawn, by the laws that draw all children of a node alike, from one distribution."""


@attrs.frozen
class DeviceForm:
    """A kernel that judges the trees of all rows.

    Attributes:
        operation: its name.
        walk: it.
        uniforms: how many numbers of a row's stream it may use for a tree of so many nodes.
    """

    operation: str
    walk: Callable[[TreeArrays], list[Walk | None]]
    uniforms: Callable[[int], int]


def judges_as(verifier: Verifier, known: type[Verifier]) -> bool:
    """Whether `verifier` judges a row by the methods of `known`; False for a subclass that overrides one.

    They are `verify`, and `judge` where a verifier has it (see `NodeWise`).
    """
    own = type(verifier)
    return own.verify is known.verify and getattr(own, "judge", None) is getattr(known, "judge", None)


def judged_on_device(
    trees: Sequence[TokenTree],
    target_probs: Sequence[Tensor],
    rngs: Sequence[Randomness],
    *,
    form: DeviceForm,
) -> list[Outcome | None]:
    """Judges every row's tree by a kernel, decided by the same numbers of its stream.

    Returns:
        For every row its outcome; or None, with its stream as it was, where no kernel judges the tree, or
        where there is something to complain of.
    """
    outcomes: list[Outcome | None] = [None] * len(rngs)
    if not outcomes or not _runs(form.operation, target_probs[0]):
        return outcomes
    if len({id(rng) for rng in rngs}) < len(rngs):
        return outcomes  # rows with one stream between them would be judged by the same numbers
    streams = [rng for rng in rngs if isinstance(rng, UniformRandomness)]
    together: object = target_probs  # a tensor iterates as a sequence of rows
    if isinstance(trees, TreeBatch) and isinstance(together, Tensor) and len(streams) == len(rngs):
        uniforms = ahead_of_rows(streams, form.uniforms(trees.tokens.shape[1]), past_end=np.nan)
        arrays = batch_arrays(trees, together, uniforms)
        if arrays is not None:
            rows = zip(form.walk(arrays), trees.tokens, trees.counts.tolist(), streams, strict=True)
            return [_outcome(walk, tokens, nodes, rng) for walk, tokens, nodes, rng in rows]
    served: list[tuple[int, UniformRandomness, TreeCase]] = []
    for row, (tree, targets, rng) in enumerate(zip(trees, target_probs, rngs, strict=True)):
        if isinstance(rng, UniformRandomness) and _alike(targets, target_probs[0]):
            case = tree_case(tree, targets, rng.ahead(form.uniforms(len(tree))))
            if case is not None:
                served.append((row, rng, case))
    walks = form.walk(TreeArrays.of([case for *_, case in served])) if served else []
    for (row, stream, case), walk in zip(served, walks, strict=True):
        outcomes[row] = _outcome(walk, case.tokens, len(case.tokens), stream)
    return outcomes


def _runs(operation: str, targets: Tensor) -> bool:
    """Whether the kernel judges rows whose targets are like `targets`; logs each choice once."""
    reason = support.objection_on(targets.device)
    if reason is None and targets.dtype != torch.float32:
        reason = f"its distributions are {targets.dtype}"
    return support.use_kernel(operation, reason)


def _outcome(
    walk: Walk | None, tokens: Sequence[int] | Ints, nodes: int, rng: UniformRandomness
) -> Outcome | None:
    """Returns the outcome of a walk through a tree of these tokens; takes its numbers from `rng`."""
    if walk is None:
        return None
    rng.skip(walk.used)
    return Outcome(
        path=walk.path,
        tokens=[int(tokens[node]) for node in walk.path],
        extra=walk.extra,
        bonus=walk.bonus,
        drafted=nodes - 1,
    )


def tree_case(tree: TokenTree, target_probs: Tensor, uniforms: Tensor) -> TreeCase | None:
    """`tree` as kernels take it; None for laws that they do not know or cannot read."""
    draw_kinds = [FULL] * len(tree)
    laws: list[Tensor | None] = [None] * len(tree)
    for node in range(len(tree)):
        for index, child in enumerate(tree.children(node)):
            drawn = _drawn(tree.proposals[node], index)
            if drawn is None or not _readable(drawn[1], target_probs):
                return None
            draw_kinds[child], laws[child] = drawn
    return TreeCase(
        tokens=tree.tokens[: tree.size].tolist(),
        parents=tree.parents[: tree.size].tolist(),
        draw_kinds=draw_kinds,
        laws=laws,
        targets=target_probs,
        uniforms=uniforms,
    )


def batch_arrays(trees: TreeBatch, targets: Tensor, uniforms: Floats) -> TreeArrays | None:
    """Returns the arrays that kernels read of trees grown side by side, without a look at any single node.

    Args:
        trees: of all rows.
        targets: the target's distributions `[rows, nodes, vocab]`.
        uniforms: of every row's stream, `[rows, numbers]`, NaN after its end.

    Returns:
        None for laws that need a look at the nodes, and for distributions that no kernel can read.
    """
    readable = all(_alike(probs, targets) and probs.stride(-1) == 1 for probs in trees.levels)
    if trees.law not in DRAWN_ALIKE or not readable or targets.stride(-1) != 1:
        return None
    laws = np.zeros_like(trees.tokens)
    if trees.levels and trees.law is not Deterministic:
        sizes = [probs.element_size() for probs in trees.levels]
        starts, by_row, by_node = (
            np.array(numbers, dtype=np.int64)
            for numbers in (
                [probs.data_ptr() for probs in trees.levels],
                [size * probs.stride(0) for size, probs in zip(sizes, trees.levels, strict=True)],
                [size * probs.stride(1) for size, probs in zip(sizes, trees.levels, strict=True)],
            )
        )
        rows, above = np.arange(len(trees))[:, None], trees.parents.clip(min=0)
        level, column = trees.asked[rows, above, 0], trees.asked[rows, above, 1]
        addresses = starts[level] + by_row[level] * rows + by_node[level] * column
        laws = np.where(trees.parents >= 0, addresses, 0)
    return TreeArrays(
        tokens=trees.tokens,
        parents=trees.parents,
        counts=trees.counts,
        draw_kinds=np.full_like(trees.tokens, DRAWN_ALIKE[trees.law]),
        laws=laws,
        targets=row_addresses(targets, trees.tokens.shape[1]),
        uniforms=uniforms,
        vocab=targets.shape[-1],
        device=targets.device,
    )


def _drawn(proposal: Proposal, index: int) -> tuple[int, Tensor | None] | None:
    """Returns how the child at `index` was drawn, and from what."""
    match proposal:
        case Deterministic():
            return FIXED, None
        case TopThenSample():
            return FIXED if index < len(proposal.top) else REMAINING, proposal.p
        case WithoutReplacement():
            return REMAINING, proposal.p
        case WithReplacement():
            return FULL, proposal.p
        case PerChild():
            return FULL, proposal.ps[index]
        case _:
            return None


def _readable(law: Tensor | None, targets: Tensor) -> bool:
    return law is None or (_alike(law, targets) and law.is_contiguous())


def _alike(tensor: Tensor, other: Tensor) -> bool:
    return (tensor.dtype, tensor.device, tensor.shape[-1]) == (other.dtype, other.device, other.shape[-1])
