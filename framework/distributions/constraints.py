"""Constraints that follow a path: the allowed next tokens of every node of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood.base.errors import InvalidInput


class Constraint(Protocol):
    """The tokens that may follow a text, one by one: a grammar, a schema, a list of choices.

    A state is a value: `advance` gives a new one and leaves the old one usable, so that siblings go on
    from one parent. Every state is computed once; no prefix is walked again.
    """

    def start(self, prompt: Sequence[int]) -> Any:
        """The state before the first new token of a row; the prompt itself is seldom constrained."""
        ...

    def advance(self, state: Any, token: int) -> Any | None:
        """The state after one more token; None where `state` forbids it."""
        ...

    def masks(self, states: Sequence[Any], vocab_size: int) -> Bool[Tensor, "states vocab"]:
        """Tokens that may follow each state, bool `[states, vocab_size]`.

        Where the text may end, that includes its end-of-text tokens; one token at least is open.
        """
        ...


@attrs.define(eq=False)
class ConstrainedRow:
    """The states of one row's constraint: of its text, and of the nodes of the round.

    Nodes are numbered in the order in which they are looked up, from 0 for the root; these are not the tree's
    numbers. Equal paths give the same node, so drafting and scoring share its state and mask. After a token
    of `ends` the text has ended, and the constraint is not asked.
    """

    constraint: Constraint
    vocab_size: int
    ends: frozenset[int]
    _states: list[Any]
    _nodes: dict[tuple[int, int], int] = attrs.field(factory=dict, init=False)
    _masks: dict[int, Tensor] = attrs.field(factory=dict, init=False)

    @classmethod
    def started(
        cls, constraint: Constraint, prompt: Sequence[int], *, vocab_size: int, ends: frozenset[int]
    ) -> ConstrainedRow:
        return cls(constraint, vocab_size, ends, [constraint.start(prompt)])

    def node(self, path: Sequence[int]) -> int:
        """Returns the number of the node that `path` reaches from the root."""
        node = 0
        for token in path:
            child = self._nodes.get((node, token))
            if child is None:
                state = self._states[node]
                closed = state is None or token in self.ends
                self._states.append(None if closed else self.constraint.advance(state, token))
                child = self._nodes[node, token] = len(self._states) - 1
            node = child
        return node

    def masks(self, paths: Sequence[Sequence[int]]) -> Bool[Tensor, "paths vocab"]:
        """Returns the allowed next tokens of each path, bool `[paths, vocab]`.

        Every token is allowed after a forbidden or final token.
        """
        nodes = [self.node(path) for path in paths]
        missing = [node for node in dict.fromkeys(nodes) if node not in self._masks]
        live = [node for node in missing if self._states[node] is not None]
        if live:
            masks = self.constraint.masks([self._states[node] for node in live], self.vocab_size)
            self._check(masks, live)
            self._masks.update(zip(live, masks, strict=True))
        # Never accepted, so that nothing depends on what follows.
        anything = torch.ones((), dtype=torch.bool).expand(self.vocab_size)
        self._masks.update((node, anything) for node in missing if self._states[node] is None)
        return torch.stack([self._masks[node] for node in nodes])

    def commit(self, tokens: Sequence[int]) -> None:
        """Move the root to the end of `tokens`; the nodes of the round are forgotten."""
        state = self._states[self.node(tokens)]
        if state is None:
            raise InvalidInput(
                f"{type(self.constraint).__name__} forbids a token that its masks() allowed, one of "
                f"{list(tokens)}; its advance() and masks() disagree."
            )
        self._states = [state]
        self._nodes.clear()
        self._masks.clear()

    def _check(self, masks: Tensor, nodes: Sequence[int]) -> None:
        name = type(self.constraint).__name__
        if masks.shape != (len(nodes), self.vocab_size) or masks.dtype != torch.bool:
            raise InvalidInput(
                f"{name}.masks gave {masks.dtype} {tuple(masks.shape)}; it must give bool "
                f"{(len(nodes), self.vocab_size)}, one row per state."
            )
        if not bool(masks.any(-1).all()):
            raise InvalidInput(f"{name} allows no token; where a text may end, allow its end-of-text tokens.")
