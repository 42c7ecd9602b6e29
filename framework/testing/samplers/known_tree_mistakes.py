"""Known mistakes of samplers of trees: each is recursive rejection that is wrong in one place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.laws.proposals import Deterministic, Proposal, WithoutReplacement, WithReplacement
from draftwood.laws.randomness import Randomness
from draftwood.testing.samplers.sampler_cases import Draft


@attrs.frozen(eq=False)
class TreeStep:
    """One test of a sibling.

    Attributes:
        draft: the draft that is judged.
        row: the target's row of the siblings' parent.
        children: the siblings in the order in which they are tested, by index of the drafted token.
        rank: of the tested one among them.
    """

    draft: Draft
    row: int
    children: Sequence[int]
    rank: int = 0

    @property
    def tokens(self) -> list[int]:
        """The tokens of the siblings."""
        return [self.token_of(child) for child in self.children]

    @property
    def token(self) -> int:
        return self.tokens[self.rank]

    @property
    def earlier(self) -> list[int]:
        """The tokens of the siblings that were rejected."""
        return self.tokens[: self.rank]

    @property
    def targets(self) -> Tensor:
        """The target's rows, float64 `[rows, vocab]`."""
        return self.draft.target_probs.double()

    @property
    def parent(self) -> int:
        """The row that this row's token follows; row 0 itself for the root."""
        return int(self.draft.case.parents[self.row - 1]) if self.row else 0

    def token_of(self, child: int) -> int:
        return int(self.draft.case.draft_tokens[child])

    def undrawn(self) -> Tensor:
        """The draft's distribution at the row, without regard to earlier siblings."""
        return self.draft.case.draft_probs[self.children[0]].double()

    def drawn(self) -> Tensor:
        """The distribution that the tested sibling was drawn from, given those before it."""
        law = self.draft.tree.proposals[self.row]
        return law.conditional(self.rank, tuple(self.earlier)).double()


def _normed(weights: Tensor, otherwise: Tensor) -> Tensor:
    total = weights.sum()
    return weights / total if total > 0 else otherwise


def _residual(left: Tensor, drawn: Tensor) -> Tensor:
    return _normed((left - drawn).clamp(min=0), left)


def _undivided(left: Tensor, drawn: Tensor) -> Tensor:
    rest = (left - drawn).clamp(min=0)
    return rest if rest.any() else left


def _without(weights: Tensor, tokens: Sequence[int]) -> Tensor:
    kept = weights.clone()
    kept[list(tokens)] = 0
    return _normed(kept, weights)


def _chance(left: Tensor, drawn: Tensor, step: TreeStep) -> float:
    proposed = float(drawn[step.token])
    return min(float(left[step.token]) / proposed, 1.0) if proposed else float(left[step.token] > 0)


def _next_child(step: TreeStep) -> int:
    """The row of the tested sibling itself."""
    return step.children[step.rank] + 1


@attrs.frozen(eq=False)
class TreeMistake:
    """A sampler for trees that is wrong in one place.

    Attributes:
        says: the mistake and its remedy, in a sentence.
        laws: the proposal laws where it is one.
        order: of the siblings of a row, in which they are tested.
        target: the target's row by which the siblings are tested.
        drawn: of a step, the distribution that the tested sibling is taken to be drawn from.
        chance: of what is left, that distribution and the step, the chance that the sibling is accepted.
        after: of what is left, that distribution and the step, what is left after a rejection.
        extra: of what is left after all siblings and the last step, the weights of the token that follows.
        bonus: of the row of an accepted leaf, the weights of the token that follows.
        shared: whether one coin tests all siblings of a row.
    """

    says: str
    laws: tuple[type[Proposal], ...] = (WithReplacement, WithoutReplacement, Deterministic)
    order: Callable[[TreeStep], Sequence[int]] = lambda step: step.children
    target: Callable[[TreeStep], Tensor] = lambda step: step.targets[step.row]
    drawn: Callable[[TreeStep], Tensor] = TreeStep.drawn
    chance: Callable[[Tensor, Tensor, TreeStep], float] = _chance
    after: Callable[[Tensor, Tensor, TreeStep], Tensor] = lambda left, drawn, step: _residual(left, drawn)
    extra: Callable[[Tensor, TreeStep], Tensor] = lambda left, step: left
    bonus: Callable[[TreeStep], Tensor] = lambda step: step.targets[step.row]
    shared: bool = False

    def emitted(self, draft: Draft, rng: Randomness) -> tuple[int, ...]:
        """Returns the tokens of one run."""
        out: list[int] = []
        row = 0
        while True:
            step = TreeStep(draft, row, draft.case.children(row))
            if not step.children:
                return (*out, rng.choose(self.bonus(step)))
            step = attrs.evolve(step, children=self.order(step))
            left, lowest = self.target(step), 0.0
            for rank in range(len(step.children)):
                step = attrs.evolve(step, rank=rank)
                drawn = self.drawn(step)
                chance = min(max(self.chance(left, drawn, step), 0.0), 1.0)
                if self.shared:
                    # Rejected so far: the coin is uniform between the largest chance so far and 1.
                    conditional = max(chance - lowest, 0.0) / (1 - lowest) if lowest < 1 else 0.0
                    chance, lowest = conditional, max(chance, lowest)
                if rng.accept(chance):
                    out.append(step.token)
                    row = _next_child(step)
                    break
                left = self.after(left, drawn, step)
            else:
                return (*out, rng.choose(self.extra(left, step)))


def _likeliest_first(step: TreeStep) -> list[int]:
    draft = step.undrawn()
    return sorted(step.children, key=lambda child: -float(draft[step.token_of(child)]))


def _likeliest_by_target(step: TreeStep) -> list[int]:
    target = step.targets[step.row]
    return sorted(step.children, key=lambda child: -float(target[step.token_of(child)]))


def _once(step: TreeStep) -> list[int]:
    first: dict[int, int] = {}
    for child in step.children:
        first.setdefault(step.token_of(child), child)
    return sorted(first.values())


def _by_rank(step: TreeStep) -> Tensor:
    """The law of a sibling at the place where it is tested, whatever was drawn before."""
    return _without(step.undrawn(), step.earlier) if step.earlier else step.undrawn()


def _certain(weights: Tensor) -> Tensor:
    return torch.zeros_like(weights).index_fill(0, weights.argmax(), 1)


_DRAWN = (WithReplacement, WithoutReplacement)

KNOWN_OF_TREES: tuple[TreeMistake, ...] = (
    TreeMistake(
        "after a sibling is rejected the next one is tested by the target, not by the residual that it left; "
        "renew the residual after every sibling.",
        after=lambda left, drawn, step: left,
        extra=lambda left, step: _residual(left, step.drawn()),
    ),
    TreeMistake(
        "after a rejection nothing is taken from the target: the next sibling is tested by it and the last "
        "token is drawn from it; go on with the residual max(T - D, 0).",
        after=lambda left, drawn, step: left,
    ),
    TreeMistake(
        "after a sibling is rejected the next one is tested by a residual that is not divided by its sum; "
        "renormalise it after every sibling.",
        after=lambda left, drawn, step: _undivided(left, drawn),
    ),
    TreeMistake(
        "after all siblings are rejected it draws from the target; draw from the residual that the last one "
        "left.",
        extra=lambda left, step: step.targets[step.row],
    ),
    TreeMistake(
        "after all siblings are rejected it draws from the draft; draw from the residual that the last one "
        "left.",
        extra=lambda left, step: step.undrawn(),
        laws=_DRAWN,
    ),
    TreeMistake(
        "after a sibling is rejected it goes on with the target without that token, the rule for drafts that "
        "are not drawn; go on with the residual max(T - D, 0).",
        after=lambda left, drawn, step: _without(left, [step.token]),
        laws=_DRAWN,
    ),
    TreeMistake(
        "a later sibling is tested by the distribution of the first, though it was drawn without "
        "replacement; take away the earlier siblings and renormalise.",
        drawn=TreeStep.undrawn,
        laws=(WithoutReplacement,),
    ),
    TreeMistake(
        "earlier siblings are taken away from the draft, though siblings were drawn with replacement; test "
        "each by the draft as it is.",
        drawn=lambda step: _by_rank(step),
        laws=(WithReplacement,),
    ),
    TreeMistake(
        "siblings are tested from the likeliest of the draft on, and not in the order in which they were "
        "drawn; keep that order.",
        order=_likeliest_first,
        drawn=lambda step: _by_rank(step),
        laws=(WithoutReplacement,),
    ),
    TreeMistake(
        "siblings are tested from the likeliest of the target on, and not in the order in which they were "
        "drawn; keep that order.",
        order=_likeliest_by_target,
        drawn=lambda step: _by_rank(step),
        laws=(WithoutReplacement,),
    ),
    TreeMistake(
        "siblings are tested from the last to the first; test them in the order in which they were drawn.",
        order=lambda step: list(reversed(step.children)),
        drawn=lambda step: _by_rank(step),
        laws=(WithoutReplacement,),
    ),
    TreeMistake(
        "equal siblings are tested once; siblings that were drawn with replacement are each tested, "
        "duplicates too.",
        order=_once,
        drawn=TreeStep.undrawn,
        laws=(WithReplacement,),
    ),
    TreeMistake(
        "the siblings are tested by the row of the first of them, that after the drafted token; take the row "
        "of their parent.",
        target=lambda step: step.targets[step.children[0] + 1],
    ),
    TreeMistake(
        "the siblings are tested by the row of their grandparent; take that of their parent.",
        target=lambda step: step.targets[step.parent],
    ),
    TreeMistake(
        "every row of the target is that of the parent (the rows are gathered by the parents' numbers); take "
        "each node's own row.",
        target=lambda step: step.targets[step.parent],
        bonus=lambda step: step.targets[step.parent],
    ),
    TreeMistake(
        "the token after an accepted leaf comes from the row of its parent; take the leaf's own row.",
        bonus=lambda step: step.targets[step.parent],
    ),
    TreeMistake(
        "the token after an accepted leaf comes from the last row, whichever leaf was accepted; take the "
        "leaf's own row.",
        bonus=lambda step: step.targets[-1],
    ),
    TreeMistake(
        "the token after an accepted leaf comes from the row of the first node of its depth, which may have "
        "been rejected; take the leaf's own row.",
        bonus=lambda step: step.targets[_first_of_depth(step)],
    ),
    TreeMistake(
        "the token after an accepted leaf comes from the row at its depth, as in a chain; take the leaf's "
        "own row.",
        bonus=lambda step: step.targets[_depth(step, step.row)],
    ),
    TreeMistake(
        "the token after an accepted leaf is the target's most likely one; draw it.",
        bonus=lambda step: _certain(step.targets[step.row]),
    ),
    TreeMistake(
        "it accepts with the target's probability, though the siblings were drawn; accept with T / D.",
        chance=lambda left, drawn, step: float(left[step.token]),
        laws=_DRAWN,
    ),
    TreeMistake(
        "it accepts with T / D, though the siblings were chosen and not drawn; accept with T and take the "
        "rejected token away.",
        drawn=TreeStep.undrawn,
        laws=(Deterministic,),
    ),
    TreeMistake(
        "it accepts with T / D of the draft without the earlier siblings, though the siblings were chosen "
        "and not drawn; accept with T and take the rejected token away.",
        drawn=lambda step: _by_rank(step),
        laws=(Deterministic,),
    ),
    TreeMistake(
        "one coin tests all siblings of a node; take a coin for each.",
        shared=True,
        laws=_DRAWN,
    ),
    TreeMistake(
        "one coin tests all siblings of a node; take a coin for each, or compare it with the sum of the "
        "probabilities so far.",
        shared=True,
        laws=(Deterministic,),
    ),
    TreeMistake(
        "the first sibling is always accepted; accept with T / D.",
        chance=lambda left, drawn, step: 1.0,
    ),
    TreeMistake(
        "after all siblings are rejected it takes the residual's most likely token; draw from the residual.",
        extra=lambda left, step: _certain(left),
    ),
    TreeMistake(
        "it is greedy: it accepts the target's most likely token and emits that after a rejection; draw.",
        chance=lambda left, drawn, step: float(step.targets[step.row].argmax() == step.token),
        after=lambda left, drawn, step: left,
        extra=lambda left, step: _certain(step.targets[step.row]),
        bonus=lambda step: _certain(step.targets[step.row]),
    ),
)


def _depth(step: TreeStep, row: int) -> int:
    """The depth of a row: 0 for the first."""
    depth = 0
    while row:
        row, depth = int(step.draft.case.parents[row - 1]), depth + 1
    return depth


def _first_of_depth(step: TreeStep) -> int:
    depth = _depth(step, step.row)
    return next(row for row in range(len(step.targets)) if _depth(step, row) == depth)
