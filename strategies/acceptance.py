"""Acceptance vectors: how likely the first, second, ... child of a node is to be the accepted one."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import InvalidInput, Proposal, Randomness, WithoutReplacement, draw_children
from draftwood.decoding.round_records import RowRecord
from draftwood.strategies.verifiers.orders.sibling_order import DrawnTries
from draftwood.strategies.verifiers.residual import Residual


@attrs.frozen(eq=False)
class ChildAcceptance:
    """Expected outcomes of recursive rejection on children drawn for a text; nothing is drawn to accept them.

    Where a law runs out of tokens, all three are 0.

    Attributes:
        reached: the chance of every child to be tried, `[positions, rank]` float64.
        accepted: its chance to be accepted once it is tried.
        certainty: the draft's probability of its token without its earlier siblings.
    """

    reached: Float[Tensor, "positions rank"]
    accepted: Float[Tensor, "positions rank"]
    certainty: Float[Tensor, "positions rank"]


def child_acceptance(
    target: Float[Tensor, "positions vocab"],
    draft: Float[Tensor, "positions vocab"],
    *,
    width: int,
    rng: Randomness,
    law: type[Proposal] = WithoutReplacement,
) -> ChildAcceptance:
    """`width` children drawn at every position of a text; see `acceptance_vector`."""
    _check_width(width)
    if target.shape != draft.shape or target.dim() != 2 or not len(target):
        raise InvalidInput(
            f"target and draft are {list(target.shape)} and {list(draft.shape)}; give both as "
            "[positions, vocab] for at least one position."
        )
    figures = torch.zeros(3, len(target), width, dtype=torch.float64)
    children = draw_children(law, draft, count=width, rng=rng)
    for position, (probs, drawn) in enumerate(zip(target, children, strict=True)):
        residual, tries = Residual.of(probs), DrawnTries(drawn.tokens, drawn.proposal)
        reached = 1.0
        for rank in range(len(drawn.tokens)):
            candidate = tries.next(residual)
            assert candidate is not None
            chance = residual.chance(candidate)
            child = [reached, chance, candidate.law[candidate.token]]
            figures[:, position, rank] = torch.tensor(child, dtype=torch.float64)
            reached *= 1 - chance
            residual.reject(candidate)
    return ChildAcceptance(*figures)


def acceptance_vector(
    target: Float[Tensor, "positions vocab"],
    draft: Float[Tensor, "positions vocab"],
    *,
    width: int,
    rng: Randomness,
    law: type[Proposal] = WithoutReplacement,
) -> list[float]:
    """The vector by recursive rejection, from the models' distributions on a text.

    At every position `width` children are drawn, and the chance of each to be accepted is worked out
    rather than drawn, so that some thousand positions suffice.

    Args:
        target: the target's probabilities `[positions, vocab]`, at the temperature of decoding.
        draft: the draft's `[positions, vocab]`, likewise.
        width: length of the vector.
        rng: draws the children.
        law: how they are drawn.

    Returns:
        For every rank the mean over positions; where a law runs out of tokens, that rank counts 0 there.

    Raises:
        InvalidInput: `width` below 1, no position, or shapes that differ.

    Source: Sequoia, section 3.1 (arXiv 2402.12374).
    """
    children = child_acceptance(target, draft, width=width, rng=rng, law=law)
    return (children.reached * children.accepted).mean(0).tolist()


def acceptance_of_rounds(records: Iterable[RowRecord], *, width: int) -> list[float]:
    """The vector from traced rounds: of the nodes that were judged and have a child of that rank, the share
    in which it was accepted.

    Args:
        records: rows of rounds with their trees; siblings must have been judged in drawn order.
        width: length of the vector.

    Returns:
        For every rank its share; 0 where no judged node had so many children.

    Raises:
        InvalidInput: `width` below 1, or a record without a tree.
    """
    _check_width(width)
    judged, accepted = [0] * width, [0] * width
    for record in records:
        if record.tree is None:
            raise InvalidInput("A record has no tree; trace the rounds.")
        path = record.outcome.path
        for node, after in zip(path, (*path[1:], None), strict=True):
            children = [child for child, parent in enumerate(record.tree.parents) if parent == node]
            for rank, child in enumerate(children[:width]):
                judged[rank] += 1
                accepted[rank] += child == after
    return [hit / tried if tried else 0.0 for hit, tried in zip(accepted, judged, strict=True)]


def _check_width(width: int) -> None:
    if width < 1:
        raise InvalidInput(f"width is {width}; give an integer >= 1.")
