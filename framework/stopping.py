"""When a row is finished: token by token, wherever in an accepted path it happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch


@attrs.frozen
class StopConditions:
    """The conditions of one `generate` call.

    Attributes:
        eos_token_ids: tokens that end the text; the token itself is kept.
        limit: for every row, the length at which it ends, prompt included.
        context_limited: whether the row's limit is the model's context and not the caller's wish.
        criteria: `transformers.StoppingCriteria`, asked after every token as `generate` does.
    """

    eos_token_ids: frozenset[int]
    limit: Sequence[int]
    context_limited: Sequence[bool]
    criteria: Sequence[Any] = ()

    def cut(self, row: int, text: Sequence[int], new: Sequence[int]) -> tuple[tuple[int, ...], str | None]:
        """The part of `new` that row `row` with committed `text` keeps, and why it ends there.

        The reason is `"eos"`, `"length"`, `"context"`, `"criteria"`, or None while the row goes on.
        """
        kept = []
        ids = torch.tensor([[*text, *new]]) if self.criteria else None
        for place, token in enumerate(new, start=1):
            kept.append(token)
            length = len(text) + place
            if token in self.eos_token_ids:
                return tuple(kept), "eos"
            if ids is not None and self._criteria_met(ids[:, :length]):
                return tuple(kept), "criteria"
            if length >= self.limit[row]:
                return tuple(kept), "context" if self.context_limited[row] else "length"
        return tuple(kept), None

    def _criteria_met(self, ids: torch.Tensor) -> bool:
        return any(bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in self.criteria)


def stop_string_criteria(strings: str | Sequence[str], tokenizer: Any) -> Any:
    """Transformers' own criterion for `strings`, which needs the tokenizer that makes the text."""
    from transformers import StopStringCriteria

    return StopStringCriteria(
        tokenizer=tokenizer, stop_strings=[strings] if isinstance(strings, str) else list(strings)
    )
