"""Regular expressions and schemas as automata of the package outlines_core."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from jaxtyping import Bool
from torch import Tensor

from draftwood import Constraint


@attrs.frozen(eq=False)
class OutlinesConstraint(Constraint):
    """A constraint by an index of outlines_core. A state is the automaton's.

    Args:
        index: an `outlines_core.Index`, which also says which token ends a text.
    """

    index: Any = attrs.field(repr=False)

    def start(self, prompt: Sequence[int]) -> int:
        state: int = self.index.get_initial_state()
        return state

    def advance(self, state: int, token: int) -> int | None:
        if token < 0:
            return None
        following: int | None = self.index.get_next_state(state, token)
        # The token that ends a text leads nowhere, and leaves the automaton where the text may end.
        ends = following is None and self.index.is_final_state(state)
        return state if ends and token in self.index.get_allowed_tokens(state) else following

    def masks(self, states: Sequence[int], vocab_size: int) -> Bool[Tensor, "n vocab"]:
        allowed = torch.zeros(len(states), vocab_size, dtype=torch.bool)
        for row, state in zip(allowed, states, strict=True):
            tokens = torch.tensor(self.index.get_allowed_tokens(state))
            row[tokens[tokens < vocab_size]] = True
        return allowed
