"""The order in which the children of a node are tried, and the one in which they were drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Protocol

import attrs
from torch import float64

from draftwood import Randomness, TokenTree
from draftwood.laws.proposals import ANY_LAW, Proposal, WithoutReplacement
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingLaw
from draftwood.strategies.verifiers.vocabulary import checked_total


class Tries(Protocol):
    """The children of one node, handed out in the order in which they are to be tried."""

    def next(self, residual: Residual) -> Candidate | None:
        """The next child with its law given those tried before; None after the last.

        The order may depend on `residual`, on the laws and on children tried before; where it depends on
        the tokens of those that wait, the candidate's law accounts for it.
        """
        ...


class SiblingOrder(ABC):
    """An order of siblings: one of the two choices that make a `TreeWalk`.

    Attributes:
        laws: the proposal laws whose siblings it takes.
        adaptive: whether it takes siblings of adaptive trees too (see `TreePolicy`).
        on_host: whether it is worked out on the host, so that trees and targets that no kernel judges are
            brought there for all rows at once.
    """

    laws: ClassVar[frozenset[type[Proposal]]] = ANY_LAW
    adaptive: ClassVar[bool] = True
    on_host: ClassVar[bool] = False

    @abstractmethod
    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        """The children of a node, as they are to be tried.

        Args:
            tokens: of the children as drawn, at least one.
            proposal: the law they were drawn from.
            rng: the verification stream, or the node's own one.
        """

    def node_streams(self, tree: TokenTree, rng: Randomness) -> Mapping[int, Randomness]:
        """Separate streams for some nodes of `tree`, started from `rng`; by default no node has one."""
        return {}


@attrs.frozen
class DrawnOrder(SiblingOrder):
    """Siblings as they were drawn, each by its `conditional` law."""

    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        return DrawnTries(tokens, proposal)


@attrs.define(eq=False)
class DrawnTries(Tries):
    """The children of one node in drawn order."""

    tokens: Sequence[int]
    proposal: Proposal
    tried: int = 0
    _whole: float = attrs.field(default=1.0, init=False)  # the sum of the law's distribution

    def next(self, residual: Residual) -> Candidate | None:
        if self.tried == len(self.tokens):
            return None
        index = self.tried
        self.tried += 1
        return Candidate(index, self.tokens[index], self._law(index))

    def _law(self, index: int) -> SiblingLaw:
        earlier = self.tokens[:index]
        if index and isinstance(self.proposal, WithoutReplacement):
            if index == 1:
                self._whole = float(self.proposal.p.sum(dtype=float64))
            return SiblingLaw.without(self.proposal.p, earlier, whole=self._whole)
        draft = self.proposal.conditional(index, earlier)
        if index == 0:
            checked_total(draft, f"The draft distribution of {type(self.proposal).__name__}")
        return SiblingLaw(draft)
