"""`TextRequest`: a prompt and everything that decides which text follows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

import attrs

from draftwood.decoding.session import Session
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams


class RequestOptions(TypedDict, total=False):
    """Keyword arguments of `RowQueue.add` and `SharedDecoder.add`, as in `Session.add`."""

    max_new_tokens: int | None
    sampling: SamplingParams | None
    draft_sampling: SamplingParams | None
    stop_strings: str | Sequence[str] | None
    stopping_criteria: Sequence[Any]
    logprobs: int | None
    constraint: Constraint | None


@attrs.frozen(eq=False)
class TextRequest:
    """A prompt that is to be continued; the attributes are the arguments of `Session.add`."""

    prompt: Sequence[int]
    seed: int
    max_new_tokens: int | None = None
    sampling: SamplingParams | None = None
    draft_sampling: SamplingParams | None = None
    stop_strings: str | Sequence[str] | None = None
    stopping_criteria: Sequence[Any] = ()
    logprobs: int | None = None
    constraint: Constraint | None = None

    def join(self, session: Session) -> int:
        """Adds it to `session`; returns the number of its row."""
        return session.add(**attrs.asdict(self, recurse=False))
