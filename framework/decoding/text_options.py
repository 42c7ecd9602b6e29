"""`TextOptions`: options that the texts of a call share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict

from draftwood.base.errors import nearest
from draftwood.distributions.sampling import SamplingParams


class TextOptions(TypedDict, total=False):
    """Keyword arguments that `SpeculativeDecoder.generate`, `stream` and `session` all take.

    Attributes:
        max_new_tokens: exact; a text that the model can hold no more of ends earlier. Default: 128.
        max_rows: how many rows are written at once; the others wait. Default: all.
        sampling: how the target's tokens are chosen. Default: greedy.
        draft_sampling: the same for the draft. Default: the target's, or at temperature 0 the draft's plain
            distribution, whose probabilities shape the tree.
        eos_token_id: tokens that end a text. Default: the target's own. An empty list: none.
        pad_token_id: the token after a text that ends before others. Default: the target's own.
        stop_strings: strings that end a text, which need `tokenizer`; the token that completes one is kept.
        tokenizer: of the target, for stop strings.
        stopping_criteria: `transformers.StoppingCriteria`, called after every token for each row separately.
        trace: keep every round's tree with its probabilities.
    """

    max_new_tokens: int
    max_rows: int | None
    sampling: SamplingParams | None
    draft_sampling: SamplingParams | None
    eos_token_id: int | Sequence[int] | None
    pad_token_id: int | None
    stop_strings: str | Sequence[str] | None
    tokenizer: Any
    stopping_criteria: Sequence[Any]
    trace: bool


def check_names(options: TextOptions) -> None:
    """Raise `TypeError` for an option that is none, as Python does for an unknown keyword argument."""
    for name in options:
        if name not in TextOptions.__annotations__:
            raise TypeError(f"There is no option {name!r}{nearest(name, TextOptions.__annotations__)}")
