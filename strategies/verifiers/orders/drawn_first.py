"""Siblings of which the drawn one is tried before the fixed ones."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness, TopThenSample
from draftwood.laws.proposals import Proposal, check_distribution
from draftwood.strategies.verifiers.orders.sibling_order import SiblingOrder, Tries
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingLaw


@attrs.frozen
class DrawnFirst(SiblingOrder):
    """The drawn sibling first, then the fixed ones in their order.

    At a node of allowance a (see `Residual`) the drawn child x gets min(D(x), a T(x)) in all, with D its law,
    and every fixed child y, for which D is 0, gets a T(y): what x leaves of the node's flow suffices for all
    of them, since both sums together are at most a. No rule for one level gives any of them more.

    Source: draftwood, from Hu et al. 2025 (arXiv 2502.18779), where a is 1.
    """

    laws = frozenset({TopThenSample})
    adaptive = False

    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        assert isinstance(proposal, TopThenSample)
        fixed = list(range(len(proposal.top)))[: len(tokens)]
        drawn = list(range(len(fixed), len(tokens)))
        return _Ordered(tokens, proposal, [*reversed(fixed), *drawn])


@attrs.define(eq=False)
class _Ordered(Tries):
    """The children of one node.

    Attributes:
        tokens: as drawn.
        proposal: their law.
        waiting: the numbers of those that are still to be tried, the next one last.
    """

    tokens: Sequence[int]
    proposal: TopThenSample
    waiting: list[int]

    def next(self, residual: Residual) -> Candidate | None:
        if not self.waiting:
            return None
        index = self.waiting.pop()
        law = self.proposal.conditional(index, self.tokens[:index])
        if index >= len(self.proposal.top):
            check_distribution(law, "The draft distribution of TopThenSample")
        return Candidate(index, self.tokens[index], SiblingLaw(law))
