"""Trees of the draft's most likely paths, which several policies grow and cut in their own ways."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from operator import itemgetter

from draftwood import Deterministic, Growing, LevelPlan, Siblings, TokenTree, TreeBuilder


class LikelyPaths:
    """A growing tree whose children are the draft's best continuations; its law is `Deterministic`.

    Every choice only depends on the draft's distributions, so nodes may be dropped for any reason
    that is one too.

    Attributes:
        tree: all nodes so far.
        path_probs: the draft's probability of the path to every node; never above that of its parent.
    """

    def __init__(self, root: int) -> None:
        self.tree = TreeBuilder(root)
        self.path_probs = [1.0]

    def extend(
        self, level: Sequence[int], drawn: Sequence[Siblings], *, count: int, above: float = 0.0
    ) -> list[int]:
        """Add the `count` most likely of the continuations of all nodes of a level.

        Args:
            level: nodes, each extended once.
            drawn: their most likely continuations.
            count: new nodes at most.
            above: paths that are no more likely than this are left out.

        Returns:
            The new nodes, the most likely path first; of equal ones the earlier node's.
        """
        found = []
        for node, siblings in zip(level, drawn, strict=True):
            of_node = self.path_probs[node]
            # Rounding must not lift a path above its own beginning, which would then be dropped first.
            found += [
                (min(of_node * chance, of_node), node, token)
                for token, chance in zip(siblings.tokens, siblings.chances, strict=True)
            ]
            self.tree.siblings[node] = siblings
        found.sort(key=itemgetter(0), reverse=True)
        new = []
        for path_prob, node, token in found[:count]:
            if path_prob <= above:
                break
            new.append(self.tree.add(node, token))
            self.path_probs.append(path_prob)
        return new

    def best(self, count: int, *, above: float = 0.0) -> list[int]:
        """The `count` most likely drafted nodes, the most likely first.

        They hang together, and of siblings the first ones are among them: no node is worth more than its
        parent or an earlier sibling, and of equal ones the earlier comes first.
        """
        ranked = sorted(range(1, len(self.tree)), key=self.path_probs.__getitem__, reverse=True)[:count]
        return [node for node in ranked if self.path_probs[node] > above]

    def finish(self, keep: Iterable[int]) -> TokenTree:
        """The tree of the nodes `keep`, which hold their parents, and the root."""
        self.tree.keep([0, *sorted(keep)])
        return self.tree.finish()


def most_likely_tree(root: int, plan: LevelPlan, *, announced: bool = True) -> Growing:
    """Grow the tree that `plan` describes: of all levels' candidates the `budget` most likely paths.

    Args:
        root: the last token of the text.
        plan: how one level leads to the next.
        announced: whether the draft is told of it, so that one that can grows all levels in one go.
    """
    paths, level = LikelyPaths(root), [0]
    best = [plan.threshold] * plan.budget  # the largest values so far, as a heap
    count = min(plan.budget, plan.candidates or plan.budget)
    for depth in range(1, plan.depth + 1):
        drawn = yield paths.tree.open(level, Deterministic, plan.branching, plan=plan if announced else None)
        # What the budget leaves out now leads to nothing that it would take in later.
        new = paths.extend(level, drawn, count=count, above=best[0])
        for node in new:
            heapq.heappushpop(best, paths.path_probs[node])
        level = [node for node in new[: plan.useful(depth)] if paths.path_probs[node] >= best[0]]
        if not level:
            break
    return paths.finish(paths.best(plan.budget, above=plan.threshold))
