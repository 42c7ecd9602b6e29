"""Trees of the draft's most likely paths, which several policies grow and cut in their own ways."""

from __future__ import annotations

from collections.abc import Iterable

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import Deterministic, TokenTree, TreeBuilder


class LikelyPaths:
    """A growing tree whose children are the draft's best continuations; its law is `Deterministic`.

    Every choice is a function of the draft's distributions alone, so nodes may be dropped for any reason
    that is one too.

    Attributes:
        tree: all nodes so far.
        path_probs: the draft's probability of the path to every node; never above that of its parent.
    """

    def __init__(self, root: int) -> None:
        self.tree = TreeBuilder(root)
        self.path_probs = [1.0]

    def extend(
        self,
        level: list[int],
        probs: Float[Tensor, "nodes vocab"],
        *,
        branching: int,
        count: int | None = None,
    ) -> list[int]:
        """Add the `count` most likely (None: all) of the `branching` best continuations of every node.

        Args:
            level: nodes, each extended once.
            probs: their draft distributions `[nodes, vocab]`; tokens of probability 0 are left out.
            branching: continuations of one node at most; fewer where the vocabulary is smaller.
            count: new nodes at most.

        Returns:
            The new nodes, the most likely path first; of equal ones the earlier node's.
        """
        top = probs.topk(min(branching, probs.shape[-1]))
        above = torch.tensor([self.path_probs[v] for v in level], dtype=torch.float64, device=probs.device)
        # Rounding must not lift a path above its own beginning, which would then be dropped first.
        values = torch.minimum(above.unsqueeze(1) * top.values, above.unsqueeze(1)).flatten()
        order = values.argsort(descending=True, stable=True)[:count]
        indices, chances = order.tolist(), values[order].tolist()
        children: dict[int, list[int]] = {}
        new = []
        for index, token, chance in zip(indices, top.indices.flatten()[order].tolist(), chances, strict=True):
            if chance <= 0:
                break
            node = level[index // top.values.shape[-1]]
            children.setdefault(node, []).append(token)
            new.append(self.tree.add(node, token))
            self.path_probs.append(chance)
        for node, tokens in children.items():
            self.tree.proposals[node] = Deterministic(tokens, probs.shape[-1], probs.dtype, probs.device)
        return new

    def best(self, count: int | None) -> list[int]:
        """The `count` most likely drafted nodes (None: all), the most likely first.

        They hang together, and of siblings the first ones are among them: no node is worth more than its
        parent or an earlier sibling, and of equal ones the earlier stands first.
        """
        return sorted(range(1, len(self.tree)), key=lambda node: -self.path_probs[node])[:count]

    def finish(self, keep: Iterable[int]) -> TokenTree:
        """The tree of the nodes `keep`, which hold their parents, and the root."""
        tree = self.tree.finish().subtree(torch.tensor([0, *sorted(keep)]))
        # Where an earlier sibling is dropped, the law of those that stay must name them alone.
        laws = {
            node: attrs.evolve(law, tokens=tree.tokens[tree.children(node)].tolist())
            for node, law in tree.proposals.items()
            if isinstance(law, Deterministic)
        }
        return attrs.evolve(tree, proposals=laws)
