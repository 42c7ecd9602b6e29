"""`TreeBatch`: the draft trees of all rows of a round, as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, overload

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidTree
from draftwood.laws.proposals import Deterministic, Proposal, WithoutReplacement, WithReplacement
from draftwood.trees.level_plan import Nodes
from draftwood.trees.tree import TokenTree


@attrs.frozen(eq=False)
class TreeBatch(Sequence[TokenTree]):
    """Trees of one law, one a row; item i is that of row i as a `TokenTree`.

    What a row has no nodes for is padding: token 0, parent -1. The distributions are those that the policy
    was sent, which the next round overwrites.

    Attributes:
        tokens: int64 `[rows, nodes]`, on the CPU like all numbers of nodes.
        parents: int64 `[rows, nodes]`; as in `TokenTree`.
        depths: int64 `[rows, nodes]`, the root at 0.
        counts: int64 `[rows]`, nodes of every row.
        law: by which all children were drawn, one of `LAWS`.
        levels: for every request, the draft's distributions `[rows, nodes asked for, vocab]`.
        asked: int64 `[rows, nodes, 2]`, for every node the request that asked for it and its number there;
            -1 where none did.
        notes: of the trees, as in `TokenTree`; empty where no tree has one.
    """

    LAWS: ClassVar[frozenset[type[Proposal]]] = frozenset(
        {Deterministic, WithReplacement, WithoutReplacement}
    )
    """The laws that are made only from the distribution, or only from the children."""

    tokens: Nodes
    parents: Nodes
    depths: Nodes
    counts: Nodes
    law: type[Proposal]
    levels: tuple[Tensor, ...]
    asked: Nodes
    notes: tuple[object, ...] = ()
    _trees: dict[int, TokenTree] = attrs.field(factory=dict, init=False)

    @classmethod
    def of(cls, trees: Sequence[TokenTree], law: type[Proposal], levels: Sequence[Tensor]) -> TreeBatch:
        """Returns `trees`, which builders grew, and whose siblings were all drawn by `law` from `levels`."""
        counts = np.array([tree.size for tree in trees])
        shape = len(trees), int(counts.max())
        tokens, parents, depths = numbers = np.zeros((3, *shape), np.int64)
        parents[:], asked = -1, np.full((*shape, 2), -1)
        for row, tree in enumerate(trees):
            builder, count = tree.builder, tree.size
            assert builder is not None
            numbers[:, row, :count] = builder.tokens, builder.parents, builder.depths
            for node, one in builder.siblings.items():
                asked[row, node] = one.place
        notes = tuple(tree.note for tree in trees)
        if notes.count(None) == len(notes):
            notes = ()
        batch = cls(tokens, parents, depths, counts, law, tuple(levels), asked, notes)
        batch._trees.update(enumerate(trees))
        return batch

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, row: int) -> TokenTree: ...
    @overload
    def __getitem__(self, row: slice) -> list[TokenTree]: ...
    def __getitem__(self, row: int | slice) -> TokenTree | list[TokenTree]:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        if row not in self._trees:
            n = int(self.counts[row])
            self._trees[row] = TokenTree(
                torch.from_numpy(self.tokens[row, :n]),
                torch.from_numpy(self.parents[row, :n]),
                _RowProposals(self, row),
                size=n,
                depths=torch.from_numpy(self.depths[row, :n]),
                note=self.notes[row] if self.notes else None,
            )
        return self._trees[row]

    def proposal(self, row: int, node: int) -> Proposal:
        """The law by which the children of a node were drawn."""
        level, column = self.asked[row, node].tolist()
        p = self.levels[level][row, column]
        if self.law is Deterministic:
            children = self.tokens[row][self.parents[row] == node]
            return Deterministic(children.tolist(), p.shape[-1], p.dtype, p.device)
        return self.law(p)  # type: ignore[call-arg]

    def kept(self, keep: NDArray[np.bool_]) -> TreeBatch:
        """The trees of the nodes `keep` `[rows, nodes]`: the root and the ancestors of all of them.

        A law keeps describing the siblings that stay as long as the dropped ones were drawn last.
        """
        if keep.sum() == self.counts.sum():
            return self
        counts = keep.sum(1)
        order = np.argsort(~keep, axis=1, kind="stable")[:, : counts.max()]
        each = np.arange(len(self))[:, None]
        new_number = np.where(keep, keep.cumsum(1) - 1, -1)
        parents = np.where(self.parents < 0, -1, np.take_along_axis(new_number, self.parents, 1))
        valid = np.arange(order.shape[1]) < counts[:, None]
        return attrs.evolve(
            self,
            tokens=np.where(valid, self.tokens[each, order], 0),
            parents=np.where(valid, parents[each, order], -1),
            depths=np.where(valid, self.depths[each, order], 0),
            counts=counts,
            asked=self.asked[each, order],
        )

    def truncated(self, depths: Sequence[int]) -> TreeBatch:
        """The trees without nodes deeper than `depths[i]` in row i."""
        if self.depths.max() <= min(depths) or (self.depths.max(1) <= depths).all():
            return self
        valid = np.arange(self.tokens.shape[1]) < self.counts[:, None]
        return self.kept(valid & (self.depths <= np.array(depths)[:, None]))

    def validated(self, vocab_size: int) -> TreeBatch:
        """These trees, or `InvalidTree` naming the first node that breaks their shape."""
        tokens, parents = self.tokens, self.parents
        # Padding has no parent, so as many nodes have one as are drafted; negative tokens are large.
        drafted = int(self.counts.sum()) - self.counts.size
        before = (parents < np.arange(parents.shape[1])).all() and np.count_nonzero(parents >= 0) == drafted
        known = (tokens.view(np.uint64) < vocab_size).all() and parents.min() == -1
        if not (before and known and self.counts.min() > 0):
            for tree in self:
                tree.validated(vocab_size)
            raise InvalidTree("A row has no node; every tree has a root.")
        return self


@attrs.frozen(eq=False)
class _RowProposals(Mapping[int, Proposal]):
    """The laws of one row, each made when it is asked for."""

    batch: TreeBatch
    row: int
    # Of the nodes with children, in order; None before it is asked for.
    _inner: dict[int, Proposal | None] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        above = sorted(set(self.batch.parents[self.row].tolist()) - {-1})
        object.__setattr__(self, "_inner", dict.fromkeys(above))

    def __getitem__(self, node: int) -> Proposal:
        made = self._inner[node]
        if made is None:
            made = self._inner[node] = self.batch.proposal(self.row, node)
        return made

    def __iter__(self) -> Iterator[int]:
        return iter(self._inner)

    def __len__(self) -> int:
        return len(self._inner)
