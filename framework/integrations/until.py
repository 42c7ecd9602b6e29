"""Texts that end at a string, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from torch import Tensor

from draftwood.decoding.stopping import stop_string_criteria


@attrs.frozen(eq=False)
class OfNewTokens:
    """A stopping criterion that only sees the new tokens, without the prompt.

    Attributes:
        criterion: which is shown it.
        length: tokens of a prompt, its padding included.
    """

    criterion: Any
    length: int

    def __call__(self, input_ids: Tensor, scores: Any, **options: Any) -> Any:
        return self.criterion(input_ids[:, self.length :], scores, **options)


def write_until(
    model: Any, tokenizer: Any, context: Tensor, *, max_length: int, stop: Sequence[str], **options: Any
) -> Tensor:
    """Returns `context` and the text of `model.generate` after it, each row until one of the strings `stop`.

    The strings are looked for in new tokens only: one that begins in the prompt does not end a row.

    Args:
        context: `[rows, length]`.
        max_length: of a row, `context` included.
        options: more of `generate`. A temperature of 0, or none, is greedy unless `do_sample` says else.

    Returns:
        `[rows, longest]`: `context` and the new tokens, padded on the right.
    """
    temperature = options.pop("temperature", 0.0)
    sampled = options.pop("do_sample", temperature > 0)
    if sampled:
        options["temperature"] = temperature
    strings = [string for string in stop if string]
    criteria = []
    if strings:
        criteria = [OfNewTokens(stop_string_criteria(strings, tokenizer), context.shape[1])]
    written: Tensor = model.generate(
        input_ids=context,
        max_length=max_length,
        do_sample=sampled,
        stopping_criteria=criteria,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    return written
