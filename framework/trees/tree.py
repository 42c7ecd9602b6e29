"""`TokenTree`: the draft tree of one row, and `TreeBuilder`, which grows one node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from draftwood.base.errors import InvalidTree
from draftwood.laws.proposals import Deterministic, Proposal
from draftwood.trees.level_plan import LevelPlan
from draftwood.trees.request import Request
from draftwood.trees.siblings import Opening, Siblings


def depths_of(parents: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Depth of every node `[n]` from its `parents` `[n]` (-1 at the root), in depth-many steps."""
    depths = torch.zeros_like(parents)
    above = parents.clone()
    while bool((above >= 0).any()):
        depths += above >= 0
        above = torch.where(above >= 0, parents[above.clamp(min=0)], above)
    return depths


def ancestor_mask(parents: Int[Tensor, "*rows n"]) -> Bool[Tensor, "*rows n n"]:
    """`mask[i, j]` is True where node j is node i or one of its ancestors; bool `[..., n, n]`.

    `parents` `[..., n]` with -1 (or any negative number) where the parent is not among the nodes.
    Pointer doubling: the number of steps is the logarithm of n, none of them looks at the data.
    """
    n = parents.shape[-1]
    mask = torch.eye(n, dtype=torch.bool, device=parents.device).expand(*parents.shape, n).clone()
    # Slot n is a sink that stands for "above the root"; its row of the mask is empty.
    jump = torch.where(parents < 0, n, parents)
    sink = parents.new_full((*parents.shape[:-1], 1), n)
    for _ in range(max(n - 1, 0).bit_length()):
        padded = torch.cat([mask, mask.new_zeros(*mask.shape[:-2], 1, n)], dim=-2)
        mask = mask | padded.gather(-2, jump.unsqueeze(-1).expand(*jump.shape, n))
        jump = torch.cat([jump, sink], dim=-1).gather(-1, jump)
    return mask


@attrs.frozen(eq=False)
class TokenTree:
    """A draft tree under the last committed token, for one row.

    A *node* is its index in `tokens`, the root being 0; paths, children and outcomes are made of these. Three
    more numbers come up elsewhere. A *request number* counts the nodes whose draft distributions were asked
    for (`Request`). A *region index* counts what a row's `extend` calls appended since the last commit
    (`StateBackend.extend`). A *column* is the index along the second dimension of one padded batch
    `[rows, nodes]`. The four are the same for a tree that is extended by one call and asked for in order.

    Attributes:
        tokens: `[capacity]` int64; `tokens[0]` is the root, the last committed token.
        parents: `[capacity]` int64; `parents[0] = -1` and `parents[i] < i`. Siblings stand in the order
            in which they were drawn, which matters to verifiers.
        proposals: for every node that has children, the law and distribution they were drawn from.
        size: number of valid nodes; later entries are padding, so that a captured pass can run any tree up to
            the capacity. Default: all.
        depths: `[capacity]` int64, the root at 0; derived from `parents` by default.
        note: information about the growth that a policy that learns needs when it sees the outcome; an
            immutable value that nobody else reads.
    """

    tokens: Int[Tensor, " capacity"]
    parents: Int[Tensor, " capacity"]
    proposals: Mapping[int, Proposal] = attrs.field(factory=dict)
    size: int = attrs.field(default=attrs.Factory(lambda self: len(self.tokens), takes_self=True))
    depths: Int[Tensor, " capacity"] = attrs.field(
        default=attrs.Factory(lambda self: depths_of(self.parents), takes_self=True), repr=False
    )
    note: object = None
    # What grew it, which `evolve` does not hand on.
    _builder: TreeBuilder | None = attrs.field(default=None, init=False, repr=False)

    def __len__(self) -> int:
        return self.size

    @property
    def builder(self) -> TreeBuilder | None:
        """Returns the builder that grew the tree, or None if the tree was changed since."""
        return self._builder

    @property
    def depth(self) -> int:
        """Depth of the deepest node; 0 for a bare root."""
        return int(max(self.depths[: self.size].tolist()))

    @cached_property
    def _children(self) -> list[list[int]]:
        children: list[list[int]] = [[] for _ in range(self.size)]
        for node, parent in enumerate(self.parents[: self.size].tolist()):
            if parent >= 0:
                children[parent].append(node)
        return children

    def children(self, node: int) -> list[int]:
        """Children of `node` in the order in which they were drawn."""
        return self._children[node]

    @property
    def leaves(self) -> list[int]:
        """Nodes without children."""
        return [node for node, children in enumerate(self._children) if not children]

    def path(self, node: int) -> list[int]:
        """Nodes from the root to `node`, both included."""
        parents = self.parents.tolist()
        path = []
        while node >= 0:
            path.append(node)
            node = parents[node]
        return path[::-1]

    @property
    def ancestor_mask(self) -> Bool[Tensor, "size size"]:
        """bool `[size, size]`: row i sees itself and its ancestors."""
        return ancestor_mask(self.parents[: self.size])

    def truncated(self, depth: int) -> TokenTree:
        """The tree without nodes deeper than `depth`: whether a node stays depends on no token."""
        if self.depth <= depth:
            return self
        return self.subtree((self.depths[: self.size] <= depth).nonzero().flatten())

    def subtree(self, keep: Int[Tensor, " kept"]) -> TokenTree:
        """The tree of the nodes `keep` (ascending, ancestors included, the root first).

        A law keeps describing the siblings that stay as long as the dropped ones were drawn last.
        """
        new_number = torch.full((self.size + 1,), -1, dtype=torch.int64, device=keep.device)
        new_number[keep] = torch.arange(len(keep), device=keep.device)
        parents = new_number[self.parents[keep]]  # the root's -1 reads the last entry, which stays -1
        with_children = set(parents.tolist())
        laws = {int(new_number[node]): law for node, law in self.proposals.items()}
        return TokenTree(
            tokens=self.tokens[keep],
            parents=parents,
            proposals={node: law for node, law in laws.items() if node in with_children and node >= 0},
            depths=self.depths[keep],
            note=self.note,
        )

    def validated(self, vocab_size: int | None) -> TokenTree:
        """This tree, or `InvalidTree` naming the first node that breaks its shape.

        Call it where a tree enters from outside; trees that draftwood's own builder made are sound.
        """
        n = self.size
        if not 1 <= n <= len(self.tokens) or self.tokens.shape != self.parents.shape:
            raise InvalidTree(
                f"A tree of size {n} needs tokens and parents of one length >= size, "
                f"not {tuple(self.tokens.shape)} and {tuple(self.parents.shape)}."
            )
        sound = (self.parents[1:n] >= 0) & (
            self.parents[1:n] < torch.arange(1, n, device=self.parents.device)
        )
        in_vocabulary = (self.tokens[:n] >= 0) & (
            self.tokens[:n] < (vocab_size or torch.iinfo(torch.int64).max)
        )
        if bool((self.parents[0] == -1) & sound.all() & in_vocabulary.all()):
            return self
        parents, tokens = self.parents[:n].tolist(), self.tokens[:n].tolist()
        if parents[0] != -1:
            raise InvalidTree(f"The root's parent is {parents[0]}; node 0 must have parent -1.")
        for node, parent in enumerate(parents[1:], start=1):
            if not 0 <= parent < node:
                raise InvalidTree(
                    f"Node {node} has parent {parent}; a parent must come before its child and only "
                    "node 0 is a root."
                )
        for node, token in enumerate(tokens):
            if token < 0 or (vocab_size is not None and token >= vocab_size):
                raise InvalidTree(f"Node {node} holds token {token}, outside the vocabulary of {vocab_size}.")
        return self


class TreeBuilder:
    """Grows a tree node by node and numbers its requests. Nodes are plain integers, the root is 0.

    Attributes:
        tokens, parents, depths: of every node so far.
        siblings: the law and distribution of the children of a node, where the driver drew them.
        proposals: the laws of other nodes with children.
    """

    def __init__(self, root: int) -> None:
        self.tokens = [int(root)]
        self.parents = [-1]
        self.depths = [0]
        self.siblings: dict[int, Siblings] = {}
        self.proposals: dict[int, Proposal] = {}
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def request(self, nodes: Sequence[int], *, drafter: str | None = None) -> Request:
        """Ask for the draft distributions of `nodes`; each may be asked for once, after its parent.

        `drafter` names one of several drafters, which a policy declares in `asks`. Each of them may be asked
        for a node once.
        """
        opening = self.open(nodes, Deterministic, drafter=drafter)
        return Request(
            tokens=torch.tensor(opening.tokens, dtype=torch.int64),
            parents=torch.tensor(opening.parents, dtype=torch.int64),
            drafter=drafter,
        )

    def open(
        self,
        nodes: Sequence[int],
        law: type[Proposal],
        counts: int | Sequence[int] = 0,
        *,
        ahead: int = 0,
        total: int | None = None,
        floors: Sequence[float] | None = None,
        plan: LevelPlan | None = None,
        drafter: str | None = None,
    ) -> Opening:
        """Ask for children of `nodes`, drawn by `law`; each may be opened once, after its parent.

        The answer is a list with the `Siblings` of each node. `add_siblings` puts them into the tree.

        Args:
            nodes: of the tree.
            law: the class of a law.
            counts: children that are drawn at once, one number or one for each node; there are fewer where
                fewer tokens have probability above 0.
            ahead, total, floors, plan: as in `Opening`.
            drafter: as for `request`.
        """
        numbers = self._numbers
        for node in nodes:
            numbers[node] = len(numbers)
        tokens: list[int] = []
        parents: list[int] = []
        for node in nodes:
            tokens.append(self.tokens[node])
            parents.append(numbers.get(self.parents[node], -1))
        each = [counts] * len(tokens) if isinstance(counts, int) else counts
        return Opening(tokens, parents, law, each, ahead, total, floors, plan, drafter)

    def add(self, parent: int, token: int) -> int:
        """A new last child of `parent`; returns its number."""
        self.tokens.append(int(token))
        self.parents.append(parent)
        self.depths.append(self.depths[parent] + 1)
        return len(self.tokens) - 1

    def add_children(self, parent: int, tokens: Sequence[int], proposal: Proposal) -> list[int]:
        """Children of `parent` in drawn order together with the law they were drawn from."""
        if not tokens:
            return []
        self.proposals[parent] = proposal
        return [self.add(parent, token) for token in tokens]

    def add_siblings(self, parent: int, siblings: Siblings, count: int | None = None) -> list[int]:
        """The first `count` (None: all) of the children that were drawn for `parent`."""
        tokens = siblings.tokens if count is None else siblings.tokens[:count]
        if not tokens:
            return []
        first, count = len(self.tokens), len(tokens)
        self.siblings[parent] = siblings
        self.tokens.extend(map(int, tokens))
        self.parents += [parent] * count
        self.depths += [self.depths[parent] + 1] * count
        return list(range(first, first + count))

    def add_last(self, parent: int, siblings: Siblings) -> int:
        """The child of `parent` that was drawn last."""
        self.siblings[parent] = siblings
        return self.add(parent, siblings.tokens[-1])

    def keep(self, nodes: Sequence[int]) -> None:
        """Drop all nodes but these, which come in ascending order with all their ancestors, the root first.

        A law keeps describing the siblings that stay as long as the dropped ones were drawn last.
        """
        new = {node: number for number, node in enumerate(nodes)}
        self.tokens = [self.tokens[node] for node in nodes]
        self.depths = [self.depths[node] for node in nodes]
        self.parents = [new.get(self.parents[node], -1) for node in nodes]
        above = set(self.parents)
        self.siblings = {
            new[node]: one
            for node, one in self.siblings.items()
            if new.get(node, -1) in above and node in new
        }
        self.proposals = {
            new[node]: law
            for node, law in self.proposals.items()
            if new.get(node, -1) in above and node in new
        }

    def finish(self, *, note: object = None) -> TokenTree:
        """The tree grown so far, with this `TokenTree.note`."""
        tokens, parents, depths = map(
            torch.from_numpy, np.array([self.tokens, self.parents, self.depths], np.int64)
        )
        laws = _Laws(self) if self.siblings else self.proposals
        tree = TokenTree(tokens, parents, laws, size=len(self.tokens), depths=depths, note=note)
        object.__setattr__(tree, "_builder", self)
        return tree


class _Laws(Mapping[int, Proposal]):
    """The laws of a grown tree, each made when it is asked for."""

    def __init__(self, builder: TreeBuilder) -> None:
        self._made, self._siblings = dict(builder.proposals), dict(builder.siblings)
        self._tokens, self._parents = list(builder.tokens), list(builder.parents)

    def __getitem__(self, node: int) -> Proposal:
        if node not in self._made:
            pairs = zip(self._tokens, self._parents, strict=True)
            self._made[node] = self._siblings[node].proposal(
                [token for token, above in pairs if above == node]
            )
        return self._made[node]

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._made.keys() | self._siblings.keys()))

    def __len__(self) -> int:
        return len(self._made.keys() | self._siblings.keys())
