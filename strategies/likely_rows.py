"""Trees of the draft's most likely paths for all rows at once; `likely_paths` has them for one."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from torch import Tensor

from draftwood import Deterministic, Requests, TreeBatch, TreesBuilder
from draftwood.row_growth import Level, aligned, widened
from draftwood.strategies.policies.level_draws import Numbers, top_tokens


class LikelyRows:
    """Growing trees whose children are the draft's best continuations; their law is `Deterministic`.

    Attributes:
        level: the nodes that are extended next.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        self._trees = TreesBuilder(roots)
        self._path_probs = np.ones((len(roots), 1))
        self.level = self._trees.roots

    def extend(self, *, branching: int, count: int | None = None) -> Generator[Requests, Tensor, Numbers]:
        """Ask for the level and add the `count` (None: all) most likely of the `branching` best
        continuations of every node.

        Returns:
            The new nodes `[rows, m]`, the most likely path first, of equal ones the earlier node's.
        """
        probs = yield from self._trees.ask(self.level)
        tokens, chances = top_tokens(probs, branching)
        above = self.level.of(self._path_probs)[:, :, None]
        # Rounding must not lift a path above its own beginning, which would then be dropped first.
        values = np.minimum(above * chances, above).reshape(len(tokens), -1)
        order = np.argsort(-values, axis=1, kind="stable")[:, :count]
        parents = np.repeat(self.level.nodes, tokens.shape[2], 1)
        parents, tokens, values = (
            np.take_along_axis(of, order, 1) for of in (parents, tokens.reshape(values.shape), values)
        )
        new = self._trees.add(parents, tokens, values > 0)
        self._path_probs = widened(self._path_probs, int(self._trees.sizes.max()))
        rows, columns = np.nonzero(new >= 0)
        self._path_probs[rows, new[rows, columns]] = values[rows, columns]
        return new

    def go_on(self, nodes: Numbers, budget: int | None) -> bool:
        """Extend those of `nodes` next that are among the `budget` best; False where none is."""
        # What the budget leaves out now leads to nothing that it would take in later.
        best = self._best(budget)
        keep = (nodes >= 0) & np.take_along_axis(best, np.maximum(nodes, 0), 1)
        self.level = Level(aligned(nodes, keep))
        return not self.level.empty

    def finish(self, budget: int | None) -> TreeBatch:
        """The trees of the `budget` most likely nodes."""
        trees = self._trees.finish(Deterministic)
        return trees.kept(self._best(budget))

    def _best(self, budget: int | None) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Which nodes `[rows, nodes]` are the roots or among the `budget` most likely ones of their row."""
        n = self._path_probs.shape[1]
        valid = np.arange(n) < self._trees.sizes[:, None]
        if budget is None or n <= budget + 1:
            return valid
        ranked = np.where(valid, -self._path_probs, np.inf)
        ranked[:, 0] = -np.inf
        order = np.argsort(ranked, axis=1, kind="stable")[:, : budget + 1]
        keep = np.zeros_like(valid)
        np.put_along_axis(keep, order, True, 1)
        return keep & valid
