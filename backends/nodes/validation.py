"""Validation of what enters a backend."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidInput, InvalidTree

FEW = 256
"""Tokens among which Python finds the largest sooner than numpy does first after a pass."""


def as_rows(rows: Sequence[Tensor], *, vocab: int, longest: int | None) -> list[Tensor]:
    """Prompts as int64 vectors, or `InvalidInput` naming the first that cannot be used."""
    texts = [torch.as_tensor(text, dtype=torch.int64) for text in rows]
    for row, text in enumerate(texts):
        if text.dim() != 1:
            raise InvalidInput(f"Row {row} has shape {tuple(text.shape)}; a row is a vector of token ids.")
    check_lengths([len(text) for text in texts], longest=longest)
    for row, text in enumerate(texts):
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocab:
            token = text[(text < 0) | (text >= vocab)][0].item()
            raise InvalidInput(f"Row {row} holds token {token}; this model's are 0 to {vocab - 1}.")
    return texts


def check_lengths(lengths: Sequence[int], *, longest: int | None) -> None:
    """Refuse rows that are longer than the model's context."""
    for row, length in enumerate(lengths):
        if longest is not None and length > longest:
            raise InvalidInput(
                f"Row {row} has {length} tokens, but the model's context holds {longest}; shorten the prompt."
            )


def check_filled(rows: Sequence[Tensor]) -> None:
    """Refuse rows without tokens, of which no logits can be asked."""
    empty = next((index for index, row in enumerate(rows) if not len(row)), None)
    if empty is not None:
        raise InvalidInput(f"Row {empty} has no token and so no logits; add it with prefill().")


def as_nodes(
    tokens: Tensor,
    parents: Tensor,
    counts: Sequence[int] | None,
    *,
    have: Sequence[int],
    vocab: int,
) -> tuple[Tensor, Tensor, list[int]]:
    """Returns the nodes of `padded_nodes` after a check of the parents.

    Raises:
        InvalidTree: wrong shapes, a token outside the vocabulary, a parent not before its child.
    """
    tokens, parents, valid = padded_nodes(tokens, parents, counts, have=have, vocab=vocab)
    check_parents(parents.numpy(), have)
    return tokens, parents, valid


def padded_nodes(
    tokens: Tensor,
    parents: Tensor,
    counts: Sequence[int] | None,
    *,
    have: Sequence[int] | NDArray[np.int64],
    vocab: int,
) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, parents and counts of an `extend` call with its padding made harmless.

    Tokens on an accelerator are taken on trust, and their padding stays as it is: to look at them would make
    the host wait. Parents are wanted on the host; to read back those on an accelerator is one wait.

    Args:
        tokens: `[rows, nodes]` integers.
        parents: `[rows, nodes]` integers, region indices; -1 is the committed state.
        counts: valid nodes of every row, or None for all.
        have: nodes each row already has.
        vocab: size of the vocabulary.

    Returns:
        Tokens int64, on the device where they were; parents int64 on the CPU; counts.

    Raises:
        InvalidTree: wrong shapes, or a token outside the vocabulary.
    """
    rows, shape = len(have), tokens.shape
    if len(shape) != 2 or shape != parents.shape or shape[0] != rows:
        raise InvalidTree(
            f"Tokens {tuple(tokens.shape)} and parents {tuple(parents.shape)} must both be [rows, nodes] "
            f"with {rows} rows."
        )
    n = shape[1]
    valid = [n] * rows if counts is None else list(map(int, counts))
    fewest = min(valid, default=n)
    if len(valid) != rows or fewest < 0 or max(valid, default=n) > n:
        raise InvalidTree(f"Counts {valid} must be {rows} numbers from 0 to {n}, the nodes of a row.")
    on_host = tokens.is_cpu
    tokens = tokens if tokens.dtype == torch.int64 else tokens.to(torch.int64)
    if not parents.is_cpu or parents.dtype != torch.int64:
        parents = parents.to("cpu", torch.int64)
    if fewest < n:
        padding = np.arange(n) >= np.array(valid)[:, None]
        parents = torch.from_numpy(np.where(padding, -1, parents.numpy()))
        if on_host:
            tokens = torch.from_numpy(np.where(padding, 0, tokens.numpy()))
    if on_host:
        ids = tokens.numpy()
        if ids.size > FEW:
            wrong = bool(ids.view(np.uint64).max() >= vocab)  # negative ones are large
        else:
            each = ids.ravel().tolist()
            wrong = bool(each) and (min(each) < 0 or max(each) >= vocab)
        if wrong:
            row, index = np.argwhere((ids < 0) | (ids >= vocab))[0]
            raise InvalidTree(
                f"Node {have[row] + index} of row {row} holds token {ids[row, index]}; this model's "
                f"are 0 to {vocab - 1}."
            )
    return tokens, parents, valid


def check_parents(parents: NDArray[np.int64], have: Sequence[int] | NDArray[np.int64]) -> None:
    """`InvalidTree` unless every parent `[rows, nodes]` is before its child, or -1, the committed state.

    Args:
        parents: region indices.
        have: nodes each row already has.
    """
    nodes = np.asarray(have, np.int64)[:, None] + np.arange(parents.shape[1])
    wrong = (parents < -1) | (parents >= nodes)
    if wrong.any():
        row, index = np.argwhere(wrong)[0]
        raise InvalidTree(
            f"Node {nodes[row, index]} of row {row} has parent {parents[row, index]}; it must be -1 or come "
            "before its child."
        )


def remaining_rows(rows: Sequence[int] | None, *, have: int) -> list[int]:
    """The numbers of the rows that stay when `rows`, or all, are released."""
    released = range(have) if rows is None else set(rows)
    return [row for row in range(have) if row not in released]


def check_paths(paths: Sequence[Sequence[int]], *, rows: int) -> None:
    """`InvalidTree` unless there is one path a row."""
    if len(paths) != rows:
        raise InvalidTree(f"{len(paths)} paths were given for {rows} rows; give one per row, possibly empty.")


def check_path(path: Sequence[int], parents: Sequence[int], *, row: int) -> None:
    """`InvalidTree` unless `path` starts under the committed state and follows parent to child."""
    last = -1
    for node in path:
        if not 0 <= node < len(parents):
            raise InvalidTree(
                f"The path {list(path)} of row {row} names node {node}; the row has {len(parents)} "
                "uncommitted nodes, numbered from 0."
            )
        if parents[node] != last:
            raise InvalidTree(
                f"The path {list(path)} of row {row} has node {node} after {last}, but its parent is "
                f"{parents[node]}; a path starts under the committed state (-1) and follows parent to child."
            )
        last = node
