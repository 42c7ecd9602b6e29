"""Trees whose tokens are drawn when a verifier looks at them: the law of a round in far fewer outcomes.

A verifier that accepts the first path has looked at a few nodes, and all the trees that agree there end
alike. So the tokens of a tree are left open until they are looked at, and a look is one more random
choice. The verifier's own code runs unchanged. What looks at nodes one by one is cheap; any other use of the
tensors draws all of the tree first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from draftwood.base.lazy_tensor import LazyRows, LazyTensor
from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.trees.tree import TokenTree


class TreeLaw(Protocol):
    """Trees of one shape, with the law of every token, conditional on others.

    Attributes:
        shape: a tree whose parents are theirs; its tokens say nothing but the root's.
    """

    shape: TokenTree

    def before(self, node: int) -> Sequence[int]:
        """The nodes that must be seen before `node`: its ancestors, and whatever else its law depends on."""
        ...

    def law(self, node: int, seen: Mapping[int, int]) -> tuple[Sequence[int], Tensor]:
        """The tokens that `node` may have, and their weights, conditional on the tokens in `seen`."""
        ...

    def proposal(self, node: int, seen: Mapping[int, int]) -> Proposal:
        """The law of the children of `node`, whose path is in `seen`."""
        ...


@attrs.define(eq=False)
class LazyTree:
    """Stands for a `TokenTree` that draws its tokens from `rng` as they are seen.

    Attributes:
        open: the tokens that may be drawn.
        rng: the enumerator, since every other chance would draw one tree.
        seen: tokens so far, by node.
    """

    open: TreeLaw
    rng: Randomness
    seen: dict[int, int] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.seen[0] = int(self.open.shape.tokens[0])

    def __len__(self) -> int:
        return len(self.open.shape)

    def __getattr__(self, name: str) -> Any:
        # These attributes depend only on the shape; the rest needs all tokens.
        shapely = ("size", "parents", "depths", "depth", "leaves", "ancestor_mask", "note")
        return getattr(self.open.shape if name in shapely else self.drawn(), name)

    @property
    def tokens(self) -> LazyTokens:
        return LazyTokens(self)

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        return LazyProposals(self)

    def children(self, node: int) -> list[int]:
        return self.open.shape.children(node)

    def path(self, node: int) -> list[int]:
        return self.open.shape.path(node)

    def token(self, node: int) -> int:
        if node not in self.seen:
            for other in self.open.before(node):
                self.token(other)
            tokens, weights = self.open.law(node, self.seen)
            self.seen[node] = tokens[self.rng.choose(weights) if len(tokens) > 1 else 0]
        return self.seen[node]

    def text(self, node: int) -> list[int]:
        """The tokens from the root to `node`, on which the laws at it depend."""
        return [self.token(above) for above in self.path(node)]

    def drawn(self) -> TokenTree:
        """The tree with all its tokens."""
        tokens = torch.tensor([self.token(node) for node in range(len(self))])
        padding = self.open.shape.tokens[len(self) :]
        return attrs.evolve(
            self.open.shape, tokens=torch.cat([tokens, padding]), proposals=dict(self.proposals.items())
        )

    def looked_at(self) -> TokenTree:
        """The tree of the nodes that were seen, with those that had to be drawn before them."""
        nodes = sorted(self.seen)
        tokens = self.open.shape.tokens.clone()
        tokens[nodes] = torch.tensor([self.seen[node] for node in nodes])
        inner = (node for node in nodes if any(child in self.seen for child in self.children(node)))
        laws = {node: self.open.proposal(node, self.seen) for node in inner}
        return attrs.evolve(self.open.shape, tokens=tokens, proposals=laws).subtree(torch.tensor(nodes))


@attrs.frozen(eq=False)
class LazyTokens(LazyTensor):
    """Stands for the tensor of a tree's tokens."""

    tree: LazyTree

    def tolist(self) -> LazyTokenList:
        return LazyTokenList(self.tree)

    def complete(self) -> Tensor:
        return self.tree.drawn().tokens

    def __len__(self) -> int:
        return len(self.tree.open.shape.tokens)

    def __getitem__(self, index: Any) -> Tensor:
        if isinstance(index, int) and 0 <= index < len(self.tree):
            return torch.tensor(self.tree.token(index))
        if isinstance(index, list) and all(0 <= node < len(self.tree) for node in index):
            return torch.tensor([self.tree.token(node) for node in index], dtype=torch.int64)
        return self.complete()[index]


@attrs.frozen(eq=False)
class LazyTokenList(Sequence[int]):
    """Stands for the list of a tree's tokens."""

    tree: LazyTree

    def __len__(self) -> int:
        return len(self.tree.open.shape.tokens)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, int) and 0 <= index < len(self.tree):
            return self.tree.token(index)
        return self.tree.drawn().tokens.tolist()[index]


@attrs.frozen(eq=False)
class LazyProposals(Mapping[int, Proposal]):
    """The laws of a tree, each known once the path to its node is."""

    tree: LazyTree

    def __getitem__(self, node: int) -> Proposal:
        if node not in self.tree.open.shape.proposals:
            raise KeyError(node)
        self.tree.token(node)
        return self.tree.open.proposal(node, self.tree.seen)

    def __iter__(self) -> Iterator[int]:
        return iter(self.tree.open.shape.proposals)

    def __len__(self) -> int:
        return len(self.tree.open.shape.proposals)


@attrs.frozen(eq=False)
class LazyTargets(LazyRows):
    """Stands for the target's distributions `[nodes, vocab]`; `after(text)` gives the one of a node."""

    tree: LazyTree
    after: Callable[[Sequence[int]], Tensor]

    def complete(self) -> Tensor:
        return torch.stack([self.row(node) for node in range(len(self))])

    def row(self, node: int) -> Tensor:
        return self.after(self.tree.text(node))

    def __len__(self) -> int:
        return len(self.tree)
