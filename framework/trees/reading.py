"""Reading the next part of a text that a backend holds already."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

READ_AT_ONCE = 64
"""Tokens of a text's next part in one target pass, as each has logits there."""


def read_chains(
    rows: Sequence[Sequence[int]], *, extend: Callable[..., Tensor], commit: Callable[..., None]
) -> Float[Tensor, "rows vocab"]:
    """Append and commit `rows[i]` in row i by the `extend` and `commit` of a backend.

    Returns:
        Logits `[rows, vocab]` after the last token of every row, 0 where a row has none.
    """
    lengths = [len(tokens) for tokens in rows]
    padded = pad_sequence([torch.tensor(tokens, dtype=torch.int64) for tokens in rows], batch_first=True)
    last: dict[int, Tensor] = {}
    for start in range(0, max(lengths), READ_AT_ONCE):
        tokens = padded[:, start : start + READ_AT_ONCE]
        width = tokens.shape[1]
        counts = [min(max(length - start, 0), width) for length in lengths]
        logits = extend(tokens, torch.arange(-1, width - 1).repeat(len(rows), 1), counts)
        commit([range(count) for count in counts])
        last |= {
            row: logits[row, count - 1].clone()
            for row, count in enumerate(counts)
            if count and start + count == lengths[row]
        }
    nothing = torch.zeros_like(next(iter(last.values())))
    return torch.stack([last.get(row, nothing) for row in range(len(rows))])
