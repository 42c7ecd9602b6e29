"""Copies what a text repeats, and asks a drafter elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import Drafter, InvalidInput, LevelPlan, Levels, Outcome, Request, RequestLog, StateBackend
from draftwood.base.validators import at_least
from draftwood.protocols.model_prompt import ModelPrompt, words_of
from draftwood.protocols.scored_nodes import ScoredNodes


@attrs.define(eq=False)
class _Row:
    """A row's text, and in the present round what it copies.

    Attributes:
        least: tokens that must match.
        text: before the root.
        ends: by `least` tokens of it in a row, how many tokens of the text the last such place ends after.
        copied: the tokens that followed there; None: the round's root is not known yet. Empty: no match.
        requested: the nodes that the round asked for.
    """

    least: int
    text: list[int] = attrs.field(factory=list)
    ends: dict[tuple[int, ...], int] = attrs.field(factory=dict)
    copied: list[int] | None = None
    requested: RequestLog = attrs.field(factory=RequestLog)
    _source: int = 0

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self.text.append(token)
            if len(self.text) >= self.least:
                self.ends[tuple(self.text[-self.least :])] = len(self.text)
        self.copied, self.requested = None, RequestLog()

    def matches(self, root: int) -> bool:
        """Returns whether the text with `root` ends as it did before; once a round."""
        if self.copied is None:
            last = (*self.text[len(self.text) - self.least + 1 :], root)
            end = self.ends.get(last) if len(last) == self.least else None
            self.copied = []
            if end is not None:
                self._source = end
                self._copy(root)
        return bool(self.copied)

    def _copy(self, root: int) -> None:
        """Copy a token more, of what was copied itself where the source comes to its end."""
        assert self.copied is not None
        place = self._source + len(self.copied)
        own = place - len(self.text)
        self.copied.append(self.text[place] if own < 0 else self.copied[own - 1] if own else root)

    def first(self, root: int, count: int) -> list[int]:
        """Returns the first `count` tokens that are copied."""
        assert self.copied is not None
        while len(self.copied) < count:
            self._copy(root)
        return self.copied[:count]

    def followers(self, request: Request) -> list[int | None]:
        """Returns what follows every node of `request`; None for one that leaves what is copied."""
        found: list[int | None] = []
        for number in self.requested.take(request):
            path = self.requested.path(number)
            tokens = self.first(self.requested.tokens[0], len(path) + 1)
            found.append(tokens[-1] if tuple(tokens[:-1]) == path else None)
        return found


@attrs.define(eq=False)
class LookupFirst(Drafter):
    """Copies what followed earlier in the row's text, where `least` tokens match; else asks `drafter`.

    The last place that matches counts, and what it says is certain: trees by value become chains as deep as
    they may be. No draft pass is spent on them. The text up to the root settles which of both drafts, before
    a token of the round is drawn, so no law is broken.

    Attributes:
        drafter: asked where nothing matches.
        least: tokens that must match, the root among them. Fewer match more often and guess worse.

    Raises:
        InvalidInput: a drafter that gives a node several distributions, or that has names.

    Source: SAM-Decoding (arXiv 2411.10666), which chooses by the length of the match too.
    """

    drafter: Drafter
    least: int = attrs.field(default=8, validator=at_least(1), kw_only=True)
    _rows: list[_Row] = attrs.field(factory=list, init=False, repr=False)
    source = "SAM-Decoding (arXiv 2411.10666)"

    def __attrs_post_init__(self) -> None:
        if self.drafter.drafters > 1 or self.drafter.names:
            raise InvalidInput(
                f"{type(self.drafter).__name__} is several drafters, and a look-up goes before one; give "
                "each of them its own."
            )

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.drafter.vocab_size

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return self.drafter.backends

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.drafter.weight_bytes

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return self.drafter.remembers

    @property
    def reads_scores(self) -> bool:  # type: ignore[override]
        return self.drafter.reads_scores

    def scored(self, nodes: ScoredNodes) -> None:
        self.drafter.scored(nodes)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self.drafter.prefill(rows)
        self._join(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        self.drafter.prefill_prompt(prompt, rows)
        self._join(words_of(prompt, rows, vocab_size=self.vocab_size))

    def _join(self, texts: Sequence[Tensor]) -> None:
        for text in texts:
            row = _Row(self.least)
            row.commit(text.tolist())
            self._rows.append(row)

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.drafter.release(rows)
        gone = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for number, row in enumerate(self._rows) if number not in gone]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        asked: list[Request | None] = []
        copied: dict[int, list[int | None]] = {}
        for number, (row, request) in enumerate(zip(self._rows, requests, strict=True)):
            copies = request is not None and row.matches(int(request.tokens[0]))
            asked.append(None if copies else request)
            if copies and request is not None:
                copied[number] = row.followers(request)
        if not copied:
            return self.drafter.distributions(requests)
        shape = len(requests), max(map(len, filter(None, requests))), self.vocab_size
        if not any(asked):
            logits = torch.full(shape, -torch.inf)
        else:
            given = self.drafter.distributions(asked)
            logits = given.new_full(shape, -torch.inf)
            logits[:, : given.shape[1]] = given
        for number, tokens in copied.items():
            logits[number] = -torch.inf
            places = [(node, token) for node, token in enumerate(tokens) if token is not None]
            if places:
                nodes, followers = zip(*places, strict=True)
                logits[number, list(nodes), list(followers)] = 0.0
        return logits

    def planned_levels(
        self, roots: Sequence[int], plan: LevelPlan, *, temperature: float = 1.0
    ) -> Levels | None:
        copies = [row.matches(root) for row, root in zip(self._rows, roots, strict=True)]
        depth = min(plan.depth, plan.budget)
        if all(copies):
            shape = len(roots), depth, 1
            widths: tuple[int, ...] = ()
            tokens, parents, values = np.zeros(shape, np.int64), np.zeros(shape, np.int64), np.zeros(shape)
        else:
            levels = self.drafter.planned_levels(roots, plan, temperature=temperature)
            if levels is None or not any(copies):
                return levels
            tokens, parents, values = levels.tokens.copy(), levels.parents.copy(), levels.values.copy()
            depth, widths = tokens.shape[1], levels.widths
        for number, (row, root) in enumerate(zip(self._rows, roots, strict=True)):
            if copies[number]:
                tokens[number] = parents[number] = values[number] = 0
                tokens[number, :, 0] = row.first(root, depth)
                values[number, :, 0] = 1.0
        return Levels(tokens, parents, values, widths, self.vocab_size)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        self.drafter.commit(outcomes)
        for row, outcome in zip(self._rows, outcomes, strict=True):
            row.commit(outcome.tokens)
