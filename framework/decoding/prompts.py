"""The prompts of a call, as token lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend

_INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


def as_prompts(input_ids: Any, mask: Any = None) -> list[list[int]]:
    """Rows as token lists, without the padding that `mask` names.

    Args:
        input_ids: int `[rows, length]` or `[length]`; or a list of token lists.
        mask: as `input_ids`, 0 at padding, which must be on the left.

    Raises:
        InvalidInput: anything else; the message shows it.
    """
    if isinstance(input_ids, str):
        raise InvalidInput(
            f"input_ids is the text {input_ids[:40]!r}; encode it with the target's tokenizer."
        )
    if isinstance(input_ids, Mapping):
        raise InvalidInput(
            f"input_ids is a {type(input_ids).__name__}; give what it holds: generate(**inputs), or "
            'inputs["input_ids"].'
        )
    if isinstance(input_ids, Tensor):
        return _unpadded(input_ids, mask)
    if mask is not None:
        raise InvalidInput(
            "attention_mask was given with token lists, which have no padding; leave it out, or give a "
            "tensor of ids."
        )
    if not isinstance(input_ids, Sequence) or any(isinstance(row, Integral) for row in input_ids):
        raise InvalidInput(
            f"input_ids is {input_ids!r:.60}; give a tensor of ids, or a list with one list of tokens per "
            "row."
        )
    return [_as_tokens(row, index) for index, row in enumerate(input_ids)]


def _as_tokens(row: Any, index: int) -> list[int]:
    tokens = row.tolist() if hasattr(row, "tolist") else row
    if isinstance(tokens, str) or not isinstance(tokens, Sequence):
        raise InvalidInput(f"The prompt of row {index} is {row!r:.60}; give a list of token ids.")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise InvalidInput(f"The prompt of row {index} holds {token!r:.40}; token ids are integers.")
    return [int(token) for token in tokens]


def _unpadded(ids: Tensor, mask: Any) -> list[list[int]]:
    if ids.dtype not in _INTEGERS or ids.dim() not in (1, 2):
        raise InvalidInput(
            f"input_ids has dtype {ids.dtype} and {ids.dim()} dimensions; give integers `[rows, length]`."
        )
    ids = ids.unsqueeze(0) if ids.dim() == 1 else ids
    rows: list[list[int]] = ids.tolist()
    if mask is None:
        return rows
    mask = torch.as_tensor(mask)
    mask = mask.unsqueeze(0) if mask.dim() == 1 else mask
    if mask.shape != ids.shape:
        raise InvalidInput(
            f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(ids.shape)}; they must agree."
        )
    kept = mask.bool()
    lengths = kept.sum(1).tolist()
    for row, (length, seen) in enumerate(zip(lengths, kept.cpu(), strict=True)):
        if not length and len(seen):
            raise InvalidInput(
                f"attention_mask is 0 for all tokens of row {row}; set it to 1 for at least one."
            )
        if length and not bool(seen[-length:].all()):
            raise InvalidInput(
                f"attention_mask has a 0 after a 1 in row {row}; pad on the left (padding_side='left'), and "
                "leave no holes."
            )
    return [row[len(row) - length :] for row, length in zip(rows, lengths, strict=True)]


def check_prompts(prompts: Sequence[Sequence[int]], target: StateBackend) -> None:
    """Refuse prompts that `target` cannot go on from.

    Raises:
        InvalidInput: none, an empty one, one beyond the context, or a token outside the vocabulary.
    """
    if not prompts:
        raise InvalidInput("No prompt was given; give at least one row.")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise InvalidInput(f"The prompt of row {row} is empty; give at least one token.")
        check_length(len(prompt), target, row=row)
        if not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
            bad = next(t for t in prompt if not 0 <= t < target.vocab_size)
            raise InvalidInput(
                f"The prompt of row {row} holds token {bad}, outside the vocabulary of "
                f"{target.vocab_size}; encode it with the target's tokenizer."
            )


def check_length(length: int, target: StateBackend, *, row: int) -> None:
    """Refuse a prompt of this length that the context of `target` does not hold.

    Raises:
        InvalidInput: names the row.
    """
    if target.max_length is not None and length > target.max_length:
        raise InvalidInput(
            f"The prompt of row {row} has {length} tokens and the target's context holds "
            f"{target.max_length}; shorten it."
        )


def left_padded(prompts: Sequence[Sequence[int]], pad: int) -> Tensor:
    """The prompts as int64 `[rows, longest]`."""
    width = max(map(len, prompts))
    return torch.tensor([[pad] * (width - len(prompt)) + list(prompt) for prompt in prompts])
