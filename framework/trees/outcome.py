"""The outcome of one decoding round for one row."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood.base.validators import as_ints
from draftwood.trees.tree import TokenTree


@attrs.frozen
class Outcome:
    """The tokens that one decoding round adds to one row, and their path in the tree.

    Attributes:
        path: accepted nodes of the tree, root first.
        tokens: their tokens, root first.
        extra: the token after the path, the next root.
        bonus: True where `extra` was drawn from the target at a leaf, False where it is a residual.
        drafted: draft tokens in the tree, the root not counted.
    """

    path: tuple[int, ...] = attrs.field(converter=as_ints)
    tokens: tuple[int, ...] = attrs.field(converter=as_ints)
    extra: int
    bonus: bool
    drafted: int

    @classmethod
    def of(cls, tree: TokenTree, path: Sequence[int], *, extra: int, bonus: bool) -> Outcome:
        """The outcome of accepting `path` (root first) in `tree`."""
        tokens = tree.tokens.tolist()
        return cls(path, [tokens[node] for node in path], extra=extra, bonus=bonus, drafted=tree.size - 1)

    def shortened(self, count: int) -> Outcome:
        """Returns the outcome that emits only the first `count` tokens of this one, 1 or more."""
        if count >= len(self.path):
            return self
        path, tokens, extra = self.path[:count], self.tokens[:count], self.tokens[count]
        return Outcome(path, tokens, extra=extra, bonus=False, drafted=self.drafted)

    @property
    def accepted(self) -> int:
        """Accepted draft tokens."""
        return len(self.path) - 1

    @property
    def emitted(self) -> tuple[int, ...]:
        """Tokens this round adds to the text: the accepted ones and the extra one."""
        return (*self.tokens[1:], self.extra)
