"""Verifiers with one mistake each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Outcome, Proposal, Randomness, TokenTree, Verifier, WithReplacement
from draftwood.laws.proposals import ANY_LAW
from draftwood.strategies.verifiers.node_wise import NodeWise
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.residual import Candidate, Residual

Judged = tuple[int | None, Tensor]


class Tokenwise(NodeWise):
    """Recursive rejection written out once more, for mistakes to be made in: without one it is right."""

    laws = ANY_LAW

    def judge(self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness) -> Judged:
        for index, token in enumerate(tokens):
            draft = self.law(proposal, index, tokens[:index]).to(target.dtype)
            if rng.accept(self.chance(target, draft, token, index)):
                return index, target
            target = self.left(target, draft, index)
        return None, target

    def law(self, proposal: Proposal, index: int, earlier: Sequence[int]) -> Tensor:
        return proposal.conditional(index, earlier)

    def chance(self, target: Tensor, draft: Tensor, token: int, index: int) -> float:
        target_prob, offered = float(target[token]), float(draft[token])
        if target_prob <= 0:
            return 0.0
        return min(1.0, target_prob / offered) if offered > 0 else 1.0

    def left(self, target: Tensor, draft: Tensor, index: int) -> Tensor:
        left = (target - draft).clamp(min=0)
        return left / left.sum() if bool(left.any()) else target


@attrs.frozen
class Misled(Verifier):
    """`verifier` with other chance and other rows of the target."""

    verifier: Verifier
    stream: Callable[[Randomness], Randomness] = lambda rng: rng
    rows: Callable[[TokenTree, Tensor], Tensor] = lambda tree, rows: rows

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.verifier.laws

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return self.verifier.verify(tree, self.rows(tree, target_probs), self.stream(rng))


def rows_of_the_parents(tree: TokenTree, rows: Tensor) -> Tensor:
    return rows[tree.parents.clamp(min=0)]


def bonus_rows_of_the_parents(tree: TokenTree, rows: Tensor) -> Tensor:
    rows = rows.clone()
    for leaf in tree.leaves:
        rows[leaf] = rows[max(int(tree.parents[leaf]), 0)]
    return rows


def bonus_rows_of_the_residual(tree: TokenTree, rows: Tensor) -> Tensor:
    right, rows = rows, rows.clone()
    for leaf in tree.leaves:
        parent = int(tree.parents[leaf])
        if parent >= 0:
            rows[leaf] = (right[parent] - tree.proposals[parent].conditional(0, ())).clamp(min=0)
    return rows


class DraftNoiseAgain(Tokenwise):
    """The extra token is drawn by the very uniform that drew the last sibling, both by inverse CDF."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        accepted, left = super().judge(tokens, proposal, target, rng)
        if accepted is not None:
            return accepted, left
        # Given the sibling, that uniform lies in the sibling's interval of the draft's CDF.
        draft = proposal.conditional(len(tokens) - 1, tokens[:-1])
        high = draft.cumsum(-1)[tokens[-1]]
        low = high - draft[tokens[-1]]
        tops = left.cumsum(-1) / left.sum()
        bottoms = torch.cat([tops.new_zeros(1), tops[:-1]])
        return None, (torch.minimum(tops, high) - torch.maximum(bottoms, low)).clamp(min=0)


class CoinAlone(Tokenwise):
    """Judges one child and leaves it to the coin that a token of probability 0 is never accepted.

    With a strict test that is right.
    """

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        draft = proposal.conditional(0, ())
        if rng.accept(float(target[tokens[0]] / draft[tokens[0]])):
            return 0, target
        return None, (target - draft).clamp(min=0)


class ResidualNotNormalised(Tokenwise):
    """Later siblings are accepted against a residual that sums to less than 1."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        for k, token in enumerate(tokens):
            draft = proposal.conditional(k, tokens[:k])
            if rng.accept(float(target[token] / draft[token])):
                return k, target
            residual = (target - draft).clamp(min=0)
            target = residual if bool(residual.any()) else target
        return None, target


class SiblingsNotRemoved(Tokenwise):
    """Later siblings are judged by the draft's law of the first one."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        return super().judge(tokens, WithReplacement(proposal.conditional(0, ())), target, rng)


class LastDrawnFirst(Tokenwise):
    """Siblings are judged in reverse."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        accepted, left = super().judge(tokens[::-1], proposal, target, rng)
        return (None if accepted is None else len(tokens) - 1 - accepted), left


class TargetInsteadOfResidual(Tokenwise):
    """After the last rejection the extra token comes from the target's row."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        accepted, _ = super().judge(tokens, proposal, target, rng)
        return accepted, target


def chance_of_the_token(self: Residual, candidate: Candidate) -> float:
    """`Residual.chance` that forgets the node's own allowance."""
    target = self.weights / self.weights.sum()
    return min(1.0, float(target[candidate.token]) / candidate.law[candidate.token])


def residual_of_the_token(self: Residual, candidate: Candidate) -> None:
    """`Residual.reject` that keeps the allowance right but forgets it in the residual."""
    target = self.weights / self.weights.sum()
    _reject(self, candidate)
    left = candidate.law.rejected(target, 1.0)
    self.weights = left * (self.weights.sum() / left.sum())


_reject = Residual.reject


class SiblingCommitted(RecursiveRejection):
    """Emits the right tokens but names the accepted node's first sibling."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        outcome = super().verify(tree, target_probs, rng)
        path = [0, *(tree.children(int(tree.parents[node]))[0] for node in outcome.path[1:])]
        return attrs.evolve(outcome, path=path)
