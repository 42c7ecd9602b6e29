"""Recursive rejection where the distributions lie, with one small result read back for all rows."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.kernels.tree_rejection.dispatch import LEFT, POINT, WHOLE, Row, serves, walk
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
    found: list[Outcome | None] = [None] * len(trees)
    if len({id(rng) for rng in rngs}) < len(rngs):
        return found  # rows with one stream between them would be judged by the same numbers
    taken: list[tuple[int, UniformRandomness, Row]] = []
    for place, (tree, targets, rng) in enumerate(zip(trees, target_probs, rngs, strict=True)):
        if isinstance(rng, UniformRandomness) and serves(targets) and _alike(targets, target_probs[0]):
            row = row_of(tree, targets, rng.ahead(len(tree)))
            if row is not None:
                taken.append((place, rng, row))
    walks = walk([row for *_, row in taken]) if taken else []
    for (place, rng, _), judged in zip(taken, walks, strict=True):
        if judged is not None:
            rng.uniforms(judged.used)
            found[place] = Outcome.of(trees[place], judged.path, extra=judged.extra, bonus=judged.bonus)
    return found


def row_of(tree: TokenTree, target_probs: Tensor, uniforms: Tensor) -> Row | None:
    """`tree` as the kernel takes it; None for laws that it does not know or cannot read."""
    ways = [WHOLE] * len(tree)
    laws: list[Tensor | None] = [None] * len(tree)
    for node in range(len(tree)):
        for place, child in enumerate(tree.children(node)):
            drawn = _drawn(tree.proposals[node], place)
            if drawn is None or not _readable(drawn[1], target_probs):
                return None
            ways[child], laws[child] = drawn
    return Row(
        tokens=tree.tokens[: tree.size].tolist(),
        parents=tree.parents[: tree.size].tolist(),
        ways=ways,
        laws=laws,
        targets=target_probs,
        uniforms=uniforms,
    )


def _drawn(proposal: Proposal, place: int) -> tuple[int, Tensor | None] | None:
    """How the child at `place` was drawn, and from what."""
    match proposal:
        case Deterministic():
            return POINT, None
        case TopThenSample():
            return POINT if place < len(proposal.top) else LEFT, proposal.p
        case WithoutReplacement():
            return LEFT, proposal.p
        case WithReplacement():
            return WHOLE, proposal.p
        case PerChild():
            return WHOLE, proposal.ps[place]
        case _:
            return None


def _readable(law: Tensor | None, targets: Tensor) -> bool:
    return law is None or (_alike(law, targets) and law.is_contiguous())


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.dtype, one.device, one.shape[-1]) == (other.dtype, other.device, other.shape[-1])
