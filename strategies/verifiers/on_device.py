"""Recursive rejection where the distributions lie, with one small result read back."""

from __future__ import annotations

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


def verify_on_device(tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome | None:
    """What recursive rejection makes of `tree`, decided by the same numbers of `rng`.

    Returns:
        The outcome; or None, with `rng` as it was, where no kernel judges the tree, or where there is
        something to complain of.
    """
    if not isinstance(rng, UniformRandomness) or not serves(target_probs):
        return None
    row = row_of(tree, target_probs, rng.ahead(len(tree)))
    found = walk([row])[0] if row is not None else None
    if found is None:
        return None
    rng.uniforms(found.used)
    return Outcome.of(tree, found.path, extra=found.extra, bonus=found.bonus)


def row_of(tree: TokenTree, target_probs: Tensor, uniforms: Tensor) -> Row | None:
    """`tree` as the kernel takes it; None for laws that it does not know or cannot read."""
    ways = [WHOLE] * len(tree)
    laws: list[Tensor | None] = [None] * len(tree)
    for node in range(len(tree)):
        for place, child in enumerate(tree.children(node)):
            drawn = _drawn(tree.proposals[node], place)
            if drawn is None or not _alike(drawn[1], target_probs):
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


def _alike(law: Tensor | None, targets: Tensor) -> bool:
    return law is None or (
        (law.dtype, law.device, law.shape[-1]) == (targets.dtype, targets.device, targets.shape[-1])
        and law.is_contiguous()
    )
