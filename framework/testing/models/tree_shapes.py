"""Trees of a fixed shape in every law, on which a verifier is proved without any policy."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import PerChild, Proposal, draw_children
from draftwood.laws.randomness import CounterRandomness, Randomness
from draftwood.protocols import TreePolicy
from draftwood.testing.models.lazy_trees import TreeLaw
from draftwood.testing.models.toy import NextTokenModel
from draftwood.trees.request import Request
from draftwood.trees.tree import TokenTree, TreeBuilder

Shape: TypeAlias = "tuple[Shape, ...]"
"""The shapes of a node's children in drawn order: `()` is a leaf, `((), ())` a node with two leaves."""

CHAINS: dict[str, Shape] = {"one": ((),), "chain of 2": (((),),)}
DEEP_CHAINS: dict[str, Shape] = {"chain of 4": (((((),),),),)}
LONG_CHAIN: Shape = (((((((((),),),),),),),),)
BRANCHING: dict[str, Shape] = {
    "two": ((), ()),
    "three": ((), (), ()),
    "two, the first with a child": (((),), ()),
    "two, the second with a child": ((), ((),)),
    "one with two": (((), ()),),
    "a chain below each of two": (((),), ((),)),
}

DEEP: dict[str, Shape] = {
    "chain of 4 and a leaf": ((((((),),),), ())),
    "a chain of 2 below each of two": ((((),),), (((),),)),
    "a pair below each of two": (((), ()), ((), ())),
}


def are_paths(shape: Shape) -> bool:
    """Returns whether one node at most branches, into chains of one length."""
    while len(shape) == 1:
        shape = shape[0]
    return len(set(shape)) <= 1 and all(_is_chain(below) for below in shape)


def _is_chain(shape: Shape) -> bool:
    while len(shape) == 1:
        shape = shape[0]
    return not shape


@attrs.frozen
class ShapedPolicy(TreePolicy):
    """Grows `shape`, with children drawn by `law`; fewer where the law runs out of tokens.

    With `adaptive`, siblings after one with an odd token are left out.
    """

    shape: Shape
    law: type[Proposal]
    adaptive: bool = False

    @property
    def independent_paths(self) -> bool:  # type: ignore[override]
        return not self.adaptive and are_paths(self.shape)

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        level = [(0, self.shape)]
        while level := [(node, shape) for node, shape in level if shape]:
            probs = yield tree.request([node for node, _ in level])
            below: list[tuple[int, Shape]] = []
            for (node, shape), p in zip(level, probs, strict=True):
                (drawn,) = draw_children(self.law, p.unsqueeze(0), count=len(shape), rng=rng)
                odd = next((k for k, token in enumerate(drawn.tokens) if token % 2), len(shape))
                tokens = drawn.tokens[: odd + 1] if self.adaptive else drawn.tokens
                below += zip(tree.add_children(node, tokens, drawn.proposal), shape, strict=False)
            level = below
        return tree.finish()


class TooNarrow(InvalidInput):
    """A draft leaves fewer tokens open than a shape has children."""


@attrs.define(eq=False)
class ShapeTrees(TreeLaw):
    """All trees of one shape, whose tokens are drawn by `law` as a verifier looks at them.

    Attributes:
        form: the shape.
        children_law: of the children of every node.
        drafts: models that propose; laws of several drafters draw from all, others from the first.
        prompt: the text before; its last token is the root.
        temperature: of the draft.
        depth_first: whether nodes are numbered branch by branch, so that siblings are not consecutive.
        padding: number of meaningless entries after the last node.
    """

    form: Shape
    children_law: type[Proposal]
    drafts: Sequence[NextTokenModel]
    prompt: Sequence[int] = (0,)
    temperature: float = 1.0
    depth_first: bool = False
    padding: int = 0
    shape: TokenTree = attrs.field(init=False)
    _ranks: list[int] = attrs.field(init=False)
    _laws: dict[tuple[int, ...], Proposal] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        parents, self._ranks = _numbered(self.form, self.depth_first)
        nothing = [0] * self.padding
        bare = TokenTree(
            torch.tensor([self.prompt[-1], *[0] * (len(parents) - 1), *nothing]),
            torch.tensor([*parents, *nothing]),
            size=len(parents),
            depths=torch.tensor([*_depths(parents), *nothing]),
        )
        # The laws come with the tokens; what counts here is which nodes have one.
        inner = {node: PerChild(()) for node in range(len(bare)) if bare.children(node)}
        self.shape = attrs.evolve(bare, proposals=inner)

    def before(self, node: int) -> Sequence[int]:
        parent = int(self.shape.parents[node])
        earlier = self.shape.children(parent)[: self._ranks[node]]
        return [*self.shape.path(parent), *earlier]

    def law(self, node: int, seen: Mapping[int, int]) -> tuple[Sequence[int], Tensor]:
        *_, parent = self.shape.path(node)[:-1]
        rank = self._ranks[node]
        earlier = [seen[sibling] for sibling in self.shape.children(parent)[:rank]]
        p = self.proposal(parent, seen).conditional(rank, earlier).double()
        tokens = p.nonzero().flatten().tolist()
        return tokens, p[tokens]

    def proposal(self, node: int, seen: Mapping[int, int]) -> Proposal:
        text = tuple(seen[above] for above in self.shape.path(node))
        key = (len(self.shape.children(node)), *text)
        if key not in self._laws:
            self._laws[key] = self._proposed([*self.prompt[:-1], *text], len(self.shape.children(node)))
        return self._laws[key]

    def _proposed(self, text: Sequence[int], count: int) -> Proposal:
        sampling = SamplingParams(self.temperature)
        ps = sampling.distribution(torch.stack([draft.logits(text) for draft in self.drafts]))
        p = ps if self.children_law.several_drafters else ps[0]
        # Which tokens come is another's to say; a law does not depend on them.
        (drawn,) = draw_children(
            self.children_law, p.unsqueeze(0), count=count, rng=CounterRandomness.seeded(0)
        )
        if len(drawn.tokens) < count:
            raise TooNarrow(
                f"After {tuple(text)} the draft has {len(drawn.tokens)} tokens for {count} children; "
                "give one whose support is wider."
            )
        return drawn.proposal


def _numbered(form: Shape, depth_first: bool) -> tuple[list[int], list[int]]:
    """The parent of every node, and its rank among its siblings."""
    parents, ranks, open_nodes = [-1], [0], [(0, form)]
    if depth_first:

        def visit(node: int, below: Shape) -> None:
            for rank, child in enumerate(below):
                parents.append(node)
                ranks.append(rank)
                visit(len(parents) - 1, child)

        visit(0, form)
        return parents, ranks
    for node, below in open_nodes:
        for rank, child in enumerate(below):
            parents.append(node)
            ranks.append(rank)
            open_nodes.append((len(parents) - 1, child))
    return parents, ranks


def _depths(parents: Sequence[int]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths
