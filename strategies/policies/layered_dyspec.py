"""DySpec's greedy tree at the price of a shallow one: as many draft calls as the tree has layers."""

from __future__ import annotations

import heapq
from collections.abc import Generator

import attrs
import torch
from torch import Tensor

from draftwood import Proposal, Randomness, Request, TokenTree, TreeBuilder, WithoutReplacement
from draftwood.strategies.acceptance_vectors import as_acceptance
from draftwood.strategies.laws import as_law
from draftwood.strategies.policies.dyspec import GreedyTree, sampled_alone, sampled_or_top, start_children
from draftwood.validators import at_least, probability


@attrs.frozen
class LayeredDySpec(GreedyTree):
    """The tree of `DySpec`, layer by layer.

    A slot's value is fixed before its token is known and never exceeds its ancestors' values. So it
    suffices to draw, in every layer, the slots whose value reaches the `budget`-th largest so far,
    and to keep the `budget` largest at the end: with the noise tied to the node this is the heap's
    tree node for node. Dropping by value looks at no token, so it biases nothing.

    Attributes:
        budget: nodes in the tree.
        depth: layers at most; None leaves the depth to the values.
        threshold: slots of no more than this value are left out, so that the tree shrinks where the
            draft is unsure (DySpec, algorithm 2, under a budget).
        law, acceptance: as for `DySpec`.

    Source: draftwood; DySpec's appendix B.1 leaves this open. With law `"top-k"`: OPT-Tree (arXiv
    2406.17276).
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    threshold: float = attrs.field(default=0.0, validator=probability)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    acceptance: tuple[float, ...] = attrs.field(default=(), converter=as_acceptance, validator=sampled_alone)
    source = "draftwood (DySpec, appendix B.1); OPT-Tree"

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        values = [float("inf")]  # of the slot that every node was drawn in
        best = [self.threshold] * self.budget  # the largest values so far; best[0] is the bar for new ones
        level, depth = [0], 0
        while level and depth != self.depth:
            probs = yield tree.request(level)
            below = []
            for node, children in start_children(
                self.law, level, probs, self.budget, self.acceptance
            ).items():
                # Rounding must not lift a slot above its own node, which would then be dropped first.
                while (value := min(path_probs[node] * children.next_value, values[node])) > best[0]:
                    token, chance = children.draw(rng)
                    below.append(tree.add(node, token))
                    values.append(value)
                    path_probs.append(path_probs[node] * chance)
                    heapq.heapreplace(best, value)
                if children.tokens:
                    tree.proposals[node] = children.proposal()
            level, depth = [node for node in below if path_probs[node] > best[0]], depth + 1
        grown = tree.finish()
        if len(grown) <= self.budget + 1:
            return grown
        # Of equal values the earlier node stays, so that no token decides.
        ranked = sorted(range(len(values)), key=lambda node: -values[node])
        return grown.subtree(torch.tensor(sorted(ranked[: self.budget + 1])))
