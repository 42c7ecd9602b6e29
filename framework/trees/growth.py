"""`Growth`: the trees of all rows while they grow, each by its policy's `grow`, side by side."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from draftwood.base.errors import InvalidTree
from draftwood.laws.proposals import Deterministic, Proposal, WithoutReplacement
from draftwood.laws.randomness import NodeStreams, Randomness
from draftwood.trees.array_growth import ArrayGrowth
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.request import Request, Requests
from draftwood.trees.siblings import FollowedLevels, Opening, drawn, drawn_ahead, most_likely
from draftwood.trees.tree import TokenTree
from draftwood.trees.tree_batch import TreeBatch


@final
class Wait:
    """Waits until no row of the round asks for anything; made once, as `WAIT`."""

    __slots__ = ()


WAIT = Wait()
"""Yielded by the `grow` of a `BatchPolicy`: go on when every other row waits too, or is grown."""

Growing = Generator[Request | Opening | Wait, Any, TokenTree]
"""The generator of `TreePolicy.grow`: it yields requests, receives answers, and returns the tree."""


class Growth:
    """The growing trees of all rows of a round.

    Every row that is not finished asks in every step. The draft is asked once for all rows, and children are
    drawn once for all rows that want them by the same law. Decoding and proofs both grow their trees here.

    """

    def __init__(
        self, growing: Sequence[Growing], rngs: Sequence[Randomness], streams: NodeStreams | None = None
    ) -> None:
        """Start the growths, one per row, and take their first requests.

        Args:
            growing: the generators that `grow` returned, one per row.
            rngs: the draft stream of every row.
            streams: `NodeStreams.of(rngs)`, which several rounds may share; None: made here.
        """
        self._growing, self._rngs = growing, rngs
        self._streams = streams or NodeStreams.of(rngs)
        self._grown: list[TokenTree | None] = [None] * len(growing)
        self._levels: list[Tensor] = []
        self._asked: list[Request | Opening | None] = []
        self._waiting: list[int] = []
        self._counts: list[int] = []  # nodes that every row asks for
        self._requests: Requests | None = None
        self._ask([None] * len(growing), resumed=range(len(growing)))

    @property
    def requests(self) -> Requests | None:
        """Returns the present requests to the draft; None when all trees are grown."""
        width = max(self._counts)
        if self._requests is None and width:
            counts = self._counts
            names: list[str | None] = []
            tokens, parents = numbers = np.zeros((2, len(counts), width), np.int64)
            numbers[1] = -1
            for row, asked in enumerate(self._asked):
                names.append(None if asked is None else asked.drafter)
                if asked is not None:
                    tokens[row, : counts[row]], parents[row, : counts[row]] = asked.tokens, asked.parents
            self._requests = Requests(
                torch.from_numpy(tokens), torch.from_numpy(parents), counts, names if any(names) else ()
            )
        return self._requests

    @property
    def plan(self) -> LevelPlan | None:
        """Returns the plan that every row announces, if all announce the same; else None."""
        first = self._asked[0]
        if not isinstance(first, Opening) or first.plan is None or self._levels:
            return None
        alike = all(isinstance(asked, Opening) and asked.plan == first.plan for asked in self._asked)
        return first.plan if alike else None

    def answer(self, probs: Tensor) -> None:
        """Take the requested draft distributions `[rows, nodes, *drafters, vocab]`."""
        level = len(self._levels)
        self._levels.append(probs)
        answers: list[Any] = [None] * len(self._asked)
        by_law: dict[type[Proposal], list[Opening | None]] = {}
        for row, asked in enumerate(self._asked):
            if isinstance(asked, Opening):
                by_law.setdefault(asked.law, [None] * len(answers))[row] = asked
            elif asked is not None:
                answers[row] = probs[row, : len(asked)]
        for law, openings in by_law.items():
            if law is Deterministic:
                found = most_likely(probs, openings, level=level)
            elif law is WithoutReplacement and self._streams is not None:
                found = drawn_ahead(probs, openings, self._streams, level=level)
            else:
                found = [
                    [] if opening is None else drawn(law, probs, row, opening, rng, level=level)
                    for row, (opening, rng) in enumerate(zip(openings, self._rngs, strict=True))
                ]
            for row, opening in enumerate(openings):
                if opening is not None:
                    answers[row] = found[row]
        self._ask(answers)

    def follow(self, levels: Levels) -> None:
        """Grow all trees by the levels that a drafter grew by itself, following `plan`."""
        bars = [0.0] * len(self._growing) if self.plan is None else levels.bars(self.plan).tolist()
        # Their trees need the size and the dtype of a distribution, and no numbers.
        probs = torch.zeros(()).expand(len(self._growing), 1, levels.vocab_size)
        self._levels.append(probs)
        followed = [FollowedLevels(levels, row, probs, least=least) for row, least in enumerate(bars)]
        while any(self._counts):
            answers: list[Any] = []
            for row, asked in enumerate(self._asked):
                if not isinstance(asked, Opening | None):
                    raise InvalidTree(
                        "A policy announced a plan and then asks for distributions; leave the plan out."
                    )
                answers.append(None if asked is None else followed[row].open(asked))
            self._ask(answers)

    def trees(self) -> Sequence[TokenTree]:
        """The trees, when all are grown."""
        trees: list[Any] = self._grown
        laws: set[type[Proposal]] = set()
        for tree in trees:
            builder = tree.builder
            if builder is None or builder.proposals:
                return trees
            for one in builder.siblings.values():
                laws.add(one.law)
        if len(laws) > 1 or not laws <= TreeBatch.LAWS:
            return trees
        return TreeBatch.of(trees, laws.pop() if laws else Deterministic, self._levels)

    def _ask(self, answers: Sequence[Any], *, resumed: Sequence[int] = ()) -> None:
        """Send every row that has an answer its own, and those resumed None; take their next requests."""
        asked: list[Request | Opening | None] = [None] * len(answers)
        counts = [0] * len(answers)
        for row, answer in enumerate(answers):
            if answer is not None or row in resumed:
                try:
                    one = self._growing[row].send(answer)
                except StopIteration as finished:
                    if not isinstance(finished.value, TokenTree):
                        raise _misgrown(finished.value) from None
                    self._grown[row] = finished.value
                    continue
                if isinstance(one, Wait):
                    self._waiting.append(row)
                    continue
                if not isinstance(one, _ASKED) or not len(one.tokens):
                    raise _misasked(one)
                asked[row], counts[row] = one, len(one.tokens)
        # A drafter that grows all levels by itself reads no requests, so they are made when they are read.
        self._asked, self._counts, self._requests = asked, counts, None
        if self._waiting and not any(counts):
            self._resume(resumed)

    def _resume(self, before: Sequence[int]) -> None:
        """Let the rows that wait go on; `before` are those that were resumed last."""
        waiting, self._waiting = self._waiting, []
        if waiting == before:  # never where `before` is the range of a beginning
            raise InvalidTree(
                "A policy's `grow` waits for other rows, and waits again when all of them wait; return the "
                "tree, or ask for something."
            )
        self._ask([None] * len(self._growing), resumed=waiting)


def by_distributions(growing: Growing, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
    """`growing` of one row, of which every request is one for distributions.

    For who answers the requests of a policy by itself, as a policy around another does.
    """
    return one_row(Growth([growing], [rng]))


def one_row(growth: Growth | ArrayGrowth) -> Generator[Request, Tensor, TokenTree]:
    """The growth of one row, of which every request is one for distributions."""
    while growth.requests is not None:
        request = growth.requests[0]
        assert request is not None
        growth.answer((yield request).unsqueeze(0))
    (tree,) = growth.trees()
    return tree


_ASKED = (Request, Opening)


def _misasked(asked: Any) -> InvalidTree:
    if isinstance(asked, _ASKED):
        return InvalidTree("A policy's `grow` asks for no node at all; leave the request out.")
    return InvalidTree(
        f"A policy's `grow` yielded {type(asked).__name__}; yield what TreeBuilder.open or .request gives."
    )


def _misgrown(grown: Any) -> InvalidTree:
    return InvalidTree(f"A policy's `grow` returned {type(grown).__name__}; it must return a TokenTree.")
