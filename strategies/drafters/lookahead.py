"""Lookahead's pool: n-grams that the target itself made, at rejected nodes too."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Request, RequestLog
from draftwood.base.validators import at_least
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.strategies.drafters.table import Followers, TableDrafter, TableRow

Pool = dict[tuple[int, ...], list[int]]
"""Continuations of the last tokens of a text, the newest first."""


@attrs.define(eq=False)
class _PoolRow(TableRow):
    """The last tokens of a row's text, before the root."""

    pool: Pool
    context: int
    text: list[int] = attrs.field(factory=list)
    requested: RequestLog = attrs.field(factory=RequestLog)

    def commit(self, tokens: Sequence[int]) -> None:
        self.text = [*self.text, *tokens][-self.context :]
        self.requested = RequestLog()

    def followers(self, request: Request) -> list[Followers | None]:
        nodes = self.requested.take(request)
        log = self.requested
        return [self._followers(self.path(log.tokens, log.parents, node)) for node in nodes]

    def path(self, tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
        """Returns the last `context` tokens that end at a node of a tree below the text."""
        path: list[int] = []
        while node >= 0 and len(path) < self.context:
            path.append(tokens[node])
            node = parents[node]
        missing = self.context - len(path)
        return [*(self.text[-missing:] if missing else ()), *reversed(path)]

    def _followers(self, path: Sequence[int]) -> Followers | None:
        for start in range(len(path)):
            if known := self.pool.get(tuple(path[start:])):
                return Followers(known, [0.5**rank for rank in range(len(known))])
        return None


@attrs.define(eq=False)
class Lookahead(TableDrafter):
    """Proposes the continuations of the last tokens that the target made earlier, the newest first.

    Every node that the target scores gives n-grams: the last tokens of its path, up to `context` of them, and
    the likeliest token after them. Drafts that were rejected give some too, as the window of the paper does
    with nodes that are guessed for this purpose only; here no node is. It needs no model and no training. The
    pool holds for all rows and later calls. The newest continuation gets half of the probability, the next
    one half of the rest, and so on.

    Attributes:
        vocab_size: of the target.
        context: tokens by which an n-gram is looked up; fewer where no n-gram has so many.
        kept: continuations that are kept for the same tokens.

    Source: Lookahead Decoding, Fu et al. 2024 (arXiv 2402.02057): its pool of n-grams.
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    context: int = attrs.field(default=2, validator=at_least(1))
    kept: int = attrs.field(default=4, validator=at_least(1))
    reads_scores = True
    remembers = True
    source = "Lookahead Decoding (arXiv 2402.02057)"
    _pool: Pool = attrs.field(factory=dict, init=False)

    def _row(self) -> TableRow:
        return _PoolRow(self._pool, self.context)

    def scored(self, nodes: ScoredNodes) -> None:
        likeliest = nodes.logits.argmax(-1).tolist()
        for row, (tokens, parents, _), of_row in zip(self._rows, nodes, likeliest, strict=True):
            assert isinstance(row, _PoolRow)
            for node, token in zip(range(len(tokens)), of_row, strict=False):
                path = row.path(tokens, parents, node)
                for start in range(len(path)):
                    known = self._pool.setdefault(tuple(path[start:]), [])
                    if token in known:
                        known.remove(token)
                    known.insert(0, token)
                    del known[self.kept :]
