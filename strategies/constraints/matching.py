"""Constraints over a matcher that takes its last tokens back: any prefix of a tree, no text matched again."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import attrs
import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood import Constraint
from draftwood.base.errors import InvalidInput


class Matcher(Protocol):
    """Where one text stands in a grammar; the end of the text is no token to it."""

    def accept(self, token: int) -> bool:
        """Take `token` if the mask allows it; False leaves the matcher as it was."""
        ...

    def rollback(self, tokens: int) -> None:
        """Take back the last `tokens` accepted ones."""
        ...

    def complete(self) -> bool:
        """Whether the text may end here."""
        ...

    def mask(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Returns which tokens may follow, one bit each, the first token in the lowest bit."""
        ...


@attrs.define(eq=False)
class _RowMatcher:
    """A row's one matcher and the prefix that it has read."""

    matcher: Matcher
    at: Prefix | None = None

    def move(self, prefix: Prefix) -> None:
        """Move to `prefix`: back to the last prefix that both have, then forward."""
        here, there, ahead = self.at, prefix, []
        while here is not there:
            assert here is not None
            if here.length >= there.length:
                assert here.parent is not None
                here = here.parent
            else:
                ahead.append(there.token)
                assert there.parent is not None
                there = there.parent
        assert self.at is not None
        if self.at.length > there.length:
            self.matcher.rollback(self.at.length - there.length)
        for token in reversed(ahead):
            if not self.matcher.accept(token):
                raise RuntimeError(f"The grammar's matcher refuses token {token}, which it took before.")
        self.at = prefix


@attrs.frozen(eq=False)
class Prefix:
    """A text so far, as a value: the text before its last token, and that token.

    Attributes:
        length: tokens that the matcher has taken; the end of the text is none of them.
        ended: whether the text's end came last.
    """

    owner: _RowMatcher = attrs.field(repr=False)
    parent: Prefix | None = attrs.field(default=None, repr=False)
    token: int = -1
    length: int = 0
    ended: bool = False


class MatcherConstraint(Constraint, ABC):
    """A constraint that a matcher decides. The prompt is no part of the text that it judges.

    A state is a value of a few words. Each row has one matcher, which moves to the state that is asked
    for, so neighbours in a tree cost one token each and the text before the tree costs nothing.
    """

    eos_token_ids: tuple[int, ...]

    @abstractmethod
    def matcher(self) -> Matcher:
        """A matcher at the beginning of a text."""

    def start(self, prompt: Sequence[int]) -> Prefix:
        owner = _RowMatcher(self.matcher())
        owner.at = Prefix(owner)
        return owner.at

    def advance(self, state: Prefix, token: int) -> Prefix | None:
        if state.ended:
            return state if token in self.eos_token_ids else None
        owner = state.owner
        owner.move(state)
        if token in self.eos_token_ids:
            return attrs.evolve(state, ended=True) if owner.matcher.complete() else None
        if not owner.matcher.accept(token):
            return None
        owner.at = Prefix(owner, state, token, state.length + 1)
        return owner.at

    def masks(self, states: Sequence[Prefix], vocab_size: int) -> Bool[Tensor, "n vocab"]:
        allowed = np.zeros((len(states), vocab_size), dtype=bool)
        ends = [token for token in self.eos_token_ids if token < vocab_size]
        for row, state in zip(allowed, states, strict=True):
            may_end = state.ended
            if not state.ended:
                state.owner.move(state)
                row[:] = np.unpackbits(state.owner.matcher.mask(), count=vocab_size, bitorder="little")
                may_end = state.owner.matcher.complete()
            row[ends] = may_end
        return torch.from_numpy(allowed)


def ends(tokenizer: Any, eos_token_id: int | Sequence[int] | None) -> tuple[int, ...]:
    """Returns the tokens that end a text: `eos_token_id`, else the tokenizer's."""
    ids = tokenizer.eos_token_id if eos_token_id is None else eos_token_id
    eos_tokens = (ids,) if isinstance(ids, int) else tuple(ids or ())
    if not eos_tokens:
        raise InvalidInput("The tokenizer names no token that ends a text; give eos_token_id.")
    return eos_tokens


def package(name: str) -> ModuleType:
    """The module `name` of the extra `grammar`."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"This constraint needs the package {error.name!r}, which is not there; install "
            "'draftwood[grammar]'."
        ) from error
