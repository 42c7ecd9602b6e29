"""Reads the tokens that a sampler returned, in any of the forms in which samplers return them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.lazy_tensors import LazyTensor
from draftwood.testing.samplers.sampler_errors import plain


def as_tokens(returned: Any) -> tuple[int, ...]:
    """Returns the tokens that a sampler or a call returned, without negative numbers, which are padding.

    Engines write -1 where they rejected a token, and read all other numbers, wherever they are.

    Raises:
        CannotEnumerate: some of them are random numbers that are not drawn yet.
        InvalidInput: it is no sequence of tokens, nor one row of them.
    """
    if isinstance(returned, LazyTensor):
        raise CannotEnumerate("It returns random numbers that were compared with nothing; give samples=.")
    if isinstance(returned, (list, tuple)) and len(returned) == 1 and _is_row(returned[0]):
        (returned,) = returned
    if isinstance(returned, (Tensor, np.ndarray)):
        returned = returned.reshape(-1).tolist()
    if isinstance(returned, (Mapping, Set)):
        raise InvalidInput(
            f"The sampler returns {returned!r:.80}, in which tokens have no order; return a list or a tensor "
            "of the tokens that it emits."
        )
    try:
        tokens = tuple(map(_whole, returned))
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"The sampler returns {plain(repr(returned)):.80}, which is no sequence of tokens "
            f"({plain(str(error))}); return only the tokens that it emits."
        ) from error
    return tuple(token for token in tokens if token >= 0)


def as_rows(returned: Any, count: int) -> Tensor:
    """Returns the tokens of a batch, int64 `[count, most]`, in which negative numbers are padding.

    Raises:
        InvalidInput: it is not one row of tokens for each of `count` drafts.
    """
    try:
        ragged = not isinstance(returned, (Tensor, np.ndarray)) or returned.dtype == object
        rows = torch.as_tensor(_padded(returned) if ragged else returned)
        fits = rows.shape[:1] == (count,) and rows.ndim == 2 and not rows.isnan().any()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(_no_rows(f"{plain(repr(returned)):.80} ({plain(str(error))})", count)) from error
    if rows.dtype is torch.bool:
        raise InvalidInput(_no_rows("True and False", count))
    if fits and rows.is_floating_point() and not bool((rows == rows.round()).all()):
        raise InvalidInput(_no_rows("numbers that are no tokens", count))
    if not fits:
        raise InvalidInput(_no_rows(f"a shape of {tuple(rows.shape)}", count))
    return rows.long()


def _whole(number: Any) -> int:
    if isinstance(number, (bool, np.bool_)) or getattr(number, "dtype", None) is torch.bool:
        raise ValueError(f"{bool(number)} is no number")
    token = int(number)
    if token != number:
        raise ValueError(f"{number} is no whole number")
    return token


def _padded(rows: Sequence[Any]) -> Tensor:
    """Returns rows of different lengths, each `[n]` or `[1, n]`, as one tensor filled up with -1."""
    each = [torch.as_tensor(row) for row in rows]
    flat = [row.reshape(-1) if row.numel() == row.shape[-1:].numel() else row for row in each]
    return torch.nn.utils.rnn.pad_sequence(flat, batch_first=True, padding_value=-1)


def _no_rows(what: str, count: int) -> str:
    return (
        f"The sampler returns {what} for a batch of {count} drafts; return one row of tokens for each draft, "
        "as a tensor [rows, most] or a list of rows."
    )


def _is_row(one: Any) -> bool:
    if isinstance(one, (Tensor, np.ndarray)):
        return one.ndim > 0
    return isinstance(one, (list, tuple))
