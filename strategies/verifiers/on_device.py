"""Recursive rejection where the distributions lie, with one small result read back for all rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.kernels.tree_rejection.dispatch import (
    FIXED,
    FULL,
    REMAINING,
    RejectionCase,
    serves,
    walk,
)
from draftwood.proposals import (
    Deterministic,
    PerChild,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.randomness import UniformRandomness


def verify_on_device(
    trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
) -> list[Outcome | None]:
    """What recursive rejection makes of every row's tree, decided by the same numbers of its stream.

    Returns:
        For every row its outcome; or None, with its stream as it was, where no kernel judges the tree, or
        where there is something to complain of.
    """
    outcomes: list[Outcome | None] = [None] * len(trees)
    if len({id(rng) for rng in rngs}) < len(rngs):
        return outcomes  # rows with one stream between them would be judged by the same numbers
    served: list[tuple[int, UniformRandomness, RejectionCase]] = []
    for row, (tree, targets, rng) in enumerate(zip(trees, target_probs, rngs, strict=True)):
        if isinstance(rng, UniformRandomness) and serves(targets) and _alike(targets, target_probs[0]):
            case = rejection_case(tree, targets, rng.ahead(len(tree)))
            if case is not None:
                served.append((row, rng, case))
    walks = walk([case for *_, case in served]) if served else []
    for (row, rng, _), result in zip(served, walks, strict=True):
        if result is not None:
            rng.uniforms(result.used)
            outcomes[row] = Outcome.of(trees[row], result.path, extra=result.extra, bonus=result.bonus)
    return outcomes


def rejection_case(tree: TokenTree, target_probs: Tensor, uniforms: Tensor) -> RejectionCase | None:
    """`tree` as the kernel takes it; None for laws that it does not know or cannot read."""
    draw_kinds = [FULL] * len(tree)
    laws: list[Tensor | None] = [None] * len(tree)
    for node in range(len(tree)):
        for index, child in enumerate(tree.children(node)):
            drawn = _drawn(tree.proposals[node], index)
            if drawn is None or not _readable(drawn[1], target_probs):
                return None
            draw_kinds[child], laws[child] = drawn
    return RejectionCase(
        tokens=tree.tokens[: tree.size].tolist(),
        parents=tree.parents[: tree.size].tolist(),
        draw_kinds=draw_kinds,
        laws=laws,
        targets=target_probs,
        uniforms=uniforms,
    )


def _drawn(proposal: Proposal, index: int) -> tuple[int, Tensor | None] | None:
    """How the child at `index` was drawn, and from what."""
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
