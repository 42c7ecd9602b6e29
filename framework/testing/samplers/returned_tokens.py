"""Reads the tokens that a sampler returned, in any of the forms in which samplers return them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.lazy_tensors import LazyTensor


def as_tokens(returned: Any) -> tuple[int, ...]:
    """Returns the tokens that a sampler or a call returned, without the negative numbers after the last one.

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
    try:
        tokens = [int(token) for token in returned]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(
            f"The sampler returns {returned!r:.80}, which is no sequence of tokens ({error}); return only "
            "the tokens that it emits."
        ) from error
    while tokens and tokens[-1] < 0:
        tokens.pop()
    return tuple(tokens)


def as_rows(returned: Any) -> Tensor:
    """Returns the tokens of a batch, int64 `[rows, most]`; shorter rows are filled up with -1."""
    if isinstance(returned, np.ndarray) and returned.dtype == object:
        returned = list(returned)
    if not isinstance(returned, (Tensor, np.ndarray)):
        rows = [torch.as_tensor(row).reshape(-1) for row in returned]
        returned = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)
    return torch.as_tensor(returned).long()


def _is_row(one: Any) -> bool:
    if isinstance(one, (Tensor, np.ndarray)):
        return one.ndim > 0
    return isinstance(one, (list, tuple))
