"""Token recycling: what the target thought of a token's successors, kept for the next time."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request, Requests
from draftwood.base.validators import at_least
from draftwood.protocols.scored_nodes import ScoredNodes


@attrs.define(eq=False)
class TokenRecycling(Drafter):
    """Proposes for every token the `kept` tokens that the target last found likeliest after it.

    It needs no model and no training. Logits of rejected nodes are recycled too, so that one target pass
    refreshes as many tokens as it scores. What was learnt holds for all rows and later calls. The likeliest
    token gets half of the probability, the next one half of the rest, and so on.

    Attributes:
        vocab_size: of the target.
        kept: successors that are kept for a token.

    Source: Token Recycling, section 3.1, the adjacency matrix (arXiv 2408.08696).
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    kept: int = attrs.field(default=8, validator=at_least(1))
    reads_scores = True
    remembers = True
    source = "Token Recycling (arXiv 2408.08696)"
    _successors: dict[int, list[int]] = attrs.field(factory=dict, init=False)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        return

    def release(self, rows: Sequence[int] | None = None) -> None:
        return

    def scored(self, nodes: ScoredNodes) -> None:
        likeliest = nodes.logits.topk(min(self.kept, self.vocab_size), dim=-1).indices.tolist()
        for (tokens, *_), of_row in zip(nodes, likeliest, strict=True):
            self._successors.update(zip(tokens, of_row, strict=False))

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        asked = Requests.of(requests)
        logits = torch.full((*asked.tokens.shape, self.vocab_size), -torch.inf)
        ranks = -torch.arange(self.kept) * torch.tensor(2.0).log()
        for row, tokens in enumerate(asked.tokens.tolist()):
            for column, token in enumerate(tokens[: asked.counts[row]]):
                if successors := self._successors.get(token):
                    logits[row, column, successors] = ranks[: len(successors)]
        return logits

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        return
