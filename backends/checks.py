"""Checks of what enters a backend, and of what a model raises."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

import torch
from torch import Tensor

from draftwood.errors import InvalidInput, InvalidTree, OutOfMemory


def as_rows(rows: Sequence[Tensor], *, vocab: int, longest: int | None) -> list[Tensor]:
    """Prompts as int64 vectors, or `InvalidInput` naming the first that cannot be used."""
    texts = [torch.as_tensor(row, dtype=torch.int64) for row in rows]
    for place, text in enumerate(texts):
        if text.dim() != 1:
            raise InvalidInput(f"Row {place} has shape {tuple(text.shape)}; a row is a vector of token ids.")
        if longest is not None and len(text) > longest:
            raise InvalidInput(
                f"Row {place} has {len(text)} tokens, but the model's context holds {longest}; "
                "shorten the prompt."
            )
        if len(text) and not 0 <= int(text.min()) <= int(text.max()) < vocab:
            bad = text[(text < 0) | (text >= vocab)][0].item()
            raise InvalidInput(f"Row {place} holds token {bad}; this model's are 0 to {vocab - 1}.")
    return texts


def as_nodes(
    tokens: Tensor, parents: Tensor, counts: Sequence[int] | None, *, have: Sequence[int], vocab: int
) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens, parents and counts of an `extend` call with its padding made harmless.

    Tensors on an accelerator are taken on trust: to read them would stall it.

    Args:
        tokens: `[rows, nodes]` int64.
        parents: `[rows, nodes]` int64.
        counts: valid nodes of every row, or None for all.
        have: nodes each row already has.
        vocab: size of the vocabulary.

    Raises:
        InvalidTree: wrong shapes, a token outside the vocabulary, a parent not before its child.
    """
    rows = len(have)
    if tokens.dim() != 2 or tokens.shape != parents.shape or len(tokens) != rows:
        raise InvalidTree(
            f"Tokens {tuple(tokens.shape)} and parents {tuple(parents.shape)} must both be [rows, nodes] "
            f"with {rows} rows."
        )
    n = tokens.shape[1]
    valid = [n] * rows if counts is None else [int(count) for count in counts]
    if len(valid) != rows or not all(0 <= count <= n for count in valid):
        raise InvalidTree(f"Counts {valid} must be {rows} numbers from 0 to {n}, the nodes given a row.")
    tokens, parents = tokens.to(torch.int64), parents.to(torch.int64)
    if any(count != n for count in valid):
        for_padding = torch.arange(n).unsqueeze(0) >= torch.tensor(valid).unsqueeze(1)
        tokens = tokens.masked_fill(for_padding.to(tokens.device), 0)
        parents = parents.masked_fill(for_padding.to(parents.device), -1)
    if tokens.device.type == "cpu":
        _check_tokens(tokens, have, vocab)
    if parents.device.type == "cpu":
        _check_parents(parents, have)
    return tokens, parents, valid


def _check_tokens(tokens: Tensor, have: Sequence[int], vocab: int) -> None:
    for row, given in enumerate(tokens.tolist()):
        if given and not 0 <= min(given) <= max(given) < vocab:
            place, token = next((i, t) for i, t in enumerate(given) if not 0 <= t < vocab)
            raise InvalidTree(
                f"Node {have[row] + place} of row {row} holds token {token}; this model's "
                f"are 0 to {vocab - 1}."
            )


def _check_parents(parents: Tensor, have: Sequence[int]) -> None:
    for row, (given, start) in enumerate(zip(parents.tolist(), have, strict=True)):
        for place, parent in enumerate(given, start=start):
            if not -1 <= parent < place:
                raise InvalidTree(
                    f"Node {place} of row {row} has parent {parent}; it must be -1 or stand before its child."
                )


def kept(rows: Sequence[int] | None, *, have: int) -> list[int]:
    """The places that stay when `rows`, or all, are released."""
    gone = range(have) if rows is None else set(rows)
    return [row for row in range(have) if row not in gone]


def check_paths(paths: Sequence[Sequence[int]], *, rows: int) -> None:
    """`InvalidTree` unless there is one path a row."""
    if len(paths) != rows:
        raise InvalidTree(f"{len(paths)} paths were given for {rows} rows; give one a row, possibly empty.")


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


class guarded_pass:
    """Runs a pass without autograd and turns a device's out-of-memory error into `OutOfMemory`.

    State must not be made of inference tensors, even where a caller is in inference mode: a later call
    from outside it could not write to them.
    """

    __slots__ = ("_gradients", "_inference", "_rows")

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._inference = torch.inference_mode(False) if torch.is_inference_mode_enabled() else None

    def __enter__(self) -> None:
        if self._inference is not None:
            self._inference.__enter__()
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(False)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.set_grad_enabled(self._gradients)
        if self._inference is not None:
            self._inference.__exit__(kind, error, trace)
        # The CPU allocator raises a plain RuntimeError.
        if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
            isinstance(error, RuntimeError) and "not enough memory" in str(error)
        ):
            reason = str(error).split("\n")[0].rstrip(".")
            raise OutOfMemory(
                f"The device ran out of memory in a pass over {self._rows} rows ({reason}); use fewer rows, "
                "a smaller tree budget, a shorter prompt or a half-precision dtype."
            ) from error
