"""Texts that end at a string, row by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftwood.stopping import stop_string_criteria


def write_until(
    model: Any, tokenizer: Any, context: Tensor, *, max_length: int, stop: Sequence[str], **options: Any
) -> Tensor:
    """What `model.generate` writes behind `context` until one of the strings `stop` stands in a row's text.

    Args:
        context: `[rows, length]`.
        max_length: of a row, `context` included.
        options: more of `generate`. A temperature of 0, or none, is greedy unless `do_sample` says else.

    Returns:
        `[rows, longest]`: `context` and what was written, padded behind it.
    """
    temperature = options.pop("temperature", 0.0)
    sampled = options.pop("do_sample", temperature > 0)
    if sampled:
        options["temperature"] = temperature
    strings = [string for string in stop if string]
    criteria = [stop_string_criteria(strings, tokenizer)] if strings else []
    written: Tensor = model.generate(
        input_ids=context,
        max_length=max_length,
        do_sample=sampled,
        stopping_criteria=criteria,
        pad_token_id=tokenizer.pad_token_id,
        **options,
    )
    return written
