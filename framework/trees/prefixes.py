"""The tokens before a prediction: the text of a batch row, then the path to a node."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import attrs
import torch
from jaxtyping import Int
from torch import Tensor

Path = tuple[int, ...]
"""The tokens of a node's path, without those that are committed; `()` is the root."""


@attrs.define(eq=False)
class RowText:
    """The text of one batch row in a standing buffer, so that no node copies it.

    Attributes:
        row: number of the row in the batch that its processors know.
        rows: size of that batch.
    """

    _tokens: Int[Tensor, " capacity"]
    _length: int
    row: int = 0
    rows: int = 1

    @classmethod
    def of(cls, tokens: Tensor, *, row: int = 0, rows: int = 1) -> RowText:
        """A text that begins with `tokens` `[length]` int64."""
        return cls(tokens.clone(), len(tokens), row, rows)

    def __len__(self) -> int:
        return self._length

    @property
    def device(self) -> torch.device:
        return self._tokens.device

    def to(self, device: torch.device) -> RowText:
        """This text, from now on on `device`."""
        self._tokens = self._tokens.to(device)
        return self

    def append(self, tokens: Sequence[int]) -> None:
        """Add committed tokens."""
        self._write(tokens)
        self._length += len(tokens)

    def shorten(self, count: int) -> None:
        """Drop the last `count` tokens."""
        self._length -= count

    def followed_by(self, path: Sequence[int]) -> Int[Tensor, "1 length"]:
        """Returns the text followed by `path`, `[1, length]`; a view, which the next call overwrites."""
        self._write(path)
        return self._tokens[: self._length + len(path)].unsqueeze(0)

    def followed_by_each(self, paths: Sequence[Path]) -> Int[Tensor, "paths length"]:
        """The text before each of several paths of one length, `[paths, length]`."""
        text = self._tokens[: self._length].expand(len(paths), -1)
        behind = torch.tensor(paths, dtype=torch.int64, device=text.device).reshape(len(paths), -1)
        return torch.cat([text, behind], 1)

    def _write(self, tokens: Sequence[int]) -> None:
        needed = self._length + len(tokens)
        if needed > len(self._tokens):
            grown = self._tokens.new_zeros(2 * needed)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : needed] = torch.tensor(tokens, dtype=torch.int64)


@attrs.frozen(eq=False)
class Prefixes:
    """The tokens before each of several predictions of one batch row.

    Attributes:
        text: committed tokens, including the root.
        paths: the path of every node.
    """

    text: RowText
    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def of_node(self, node: int) -> Int[Tensor, "1 length"]:
        """Returns the tokens before the prediction at `node`, `[1, length]`; the next call overwrites it."""
        return self.text.followed_by(self.paths[node])

    @cached_property
    def levels(self) -> list[tuple[list[int], Int[Tensor, "nodes length"]]]:
        """Returns the nodes of every depth with the tokens before their predictions, `[nodes, length]`."""
        by_depth: dict[int, list[int]] = {}
        for node, path in enumerate(self.paths):
            by_depth.setdefault(len(path), []).append(node)
        return [
            (nodes, self.text.followed_by_each([self.paths[node] for node in nodes]))
            for nodes in by_depth.values()
        ]


def paths_of(tokens: Sequence[int], parents: Sequence[int]) -> list[Path]:
    """The path of every node; a parent of -1 is above the root."""
    paths: list[Path] = []
    for token, parent in zip(tokens, parents, strict=True):
        paths.append((*paths[parent], token) if parent >= 0 else ())
    return paths
