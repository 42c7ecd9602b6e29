"""Levels that depend only on the draft's distributions, so that a drafter can grow all of them in one call.

Where a policy draws nothing and keeps the most likely paths, what it will ask for in the next level is known
as soon as the draft has answered. It then says so by a `LevelPlan` (`TreeBuilder.open`): a drafter that can
goes on by itself (`Drafter.planned_levels`), what it found comes back as `Levels`, and the policy's own
`grow` makes the tree of them.
"""

from __future__ import annotations

from functools import lru_cache

import attrs
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from draftwood.base.validators import at_least, probability

Nodes = NDArray[np.int64]

Candidates = tuple[list[int], list[int], list[float]]
"""Numbers, tokens and chances of the candidates below one node."""

NO_CHILDREN: Candidates = ([], [], [])

BLOCK = 64
"""Tokens of a block, whose most likely one says whether others of it can be among the best."""


@attrs.frozen
class LevelPlan:
    """A rule that makes each level of most likely paths from the level above.

    Level 0 is the root. The `branching` most likely continuations of every expanded node are candidates of
    the next level. A candidate's value is the draft's probability of the path to it. Each level keeps its
    `candidates` most valuable candidates. It expands those that are among the `budget` most valuable of all
    levels so far and above `threshold`, the `width` most valuable at most.

    Attributes:
        depth: levels below the root.
        width: maximum number of expanded nodes per level.
        branching: maximum number of candidates below one node.
        budget: maximum number of nodes of the tree, excluding the root.
        candidates: maximum number of candidates per level; None: no limit.
        threshold: candidates of this value or less are left out.
    """

    depth: int = attrs.field(validator=at_least(1))
    width: int = attrs.field(validator=at_least(1))
    branching: int = attrs.field(validator=at_least(1))
    budget: int = attrs.field(validator=at_least(1))
    candidates: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    threshold: float = attrs.field(default=0.0, validator=probability)

    def widths(self, most: int, *, vocab_size: int) -> tuple[int, ...]:
        """Nodes that are asked for in every level, the root first, where a level has `most` at most.

        Levels below which the tree has no nodes are left out.
        """
        widths = [1]
        for level in range(1, min(self.depth, self.budget)):
            widths.append(min(most, self.useful(level), self.count(widths[-1], vocab_size)))
        return tuple(widths)

    def useful(self, level: int) -> int:
        """Nodes of a level below the root that may have children in the tree: its most valuable ones.

        A child is worth no more than its parent, the parent's ancestors and the better nodes of the parent's
        level. They all precede it in the tree, so the parent's rank in its level is at most `budget - level`.
        """
        return max(min(self.width, self.budget - level), 0)

    def count(self, nodes: int, vocab_size: int) -> int:
        """Candidates that count below so many nodes."""
        return min(self.budget, self.candidates or self.budget, nodes * min(self.branching, vocab_size))

    def candidates_of(
        self, probs: Float[Tensor, "rows nodes vocab"], paths: Float[Tensor, "rows nodes"]
    ) -> tuple[Int[Tensor, "rows count"], Int[Tensor, "rows count"], Float[Tensor, "rows count"]]:
        """The candidates below the nodes of a level, the most valuable first. Tensor code without a wait.

        Args:
            probs: the draft's distributions, float32.
            paths: float64, the values of the nodes; 0 for one that leads nowhere.

        Returns:
            Their tokens, the numbers of their parents among the nodes, and their values in float64.
        """
        rows, nodes, vocab = probs.shape
        count = self.count(nodes, vocab)
        blocks = vocab // BLOCK
        if self.branching < count or vocab % BLOCK or nodes * blocks < count:
            top = probs.topk(min(self.branching, vocab))
            values = _below(paths.unsqueeze(2), top.values)
            best = values.flatten(1).topk(count)
            parents = best.indices // values.shape[2]
            return top.indices.flatten(1).gather(1, best.indices), parents, best.values
        # The best tokens lie in the best blocks: two short searches instead of a long one a node.
        blockwise = probs.view(rows, nodes * blocks, BLOCK)
        peaks = _below(paths.unsqueeze(2), blockwise.amax(2).view(rows, nodes, blocks)).flatten(1)
        chosen = peaks.topk(count).indices
        above = chosen // blocks
        inside = blockwise.gather(1, chosen.unsqueeze(2).expand(-1, -1, BLOCK))
        best = _below(paths.gather(1, above).unsqueeze(2), inside).flatten(1).topk(count)
        block = best.indices // BLOCK
        tokens = chosen.gather(1, block) % blocks * BLOCK + best.indices % BLOCK
        return tokens, above.gather(1, block), best.values


class GrowingLevels:
    """Levels as they grow by a plan: tensor code of fixed shapes without a wait, for tracing too."""

    def __init__(self, plan: LevelPlan, rows: int, device: torch.device) -> None:
        """Start from the roots only."""
        self._plan = plan
        self._paths = torch.ones(rows, 1, dtype=torch.float64, device=device)
        self._best = self._paths.new_full((rows, plan.budget), plan.threshold)
        self._found: list[tuple[Tensor, Tensor, Tensor]] = []

    @property
    def depth(self) -> int:
        """Levels below the root that have candidates."""
        return len(self._found)

    def take(self, probs: Float[Tensor, "rows nodes vocab"]) -> None:
        """The draft's distributions of the nodes that were expanded last, the roots at first."""
        found = self._plan.candidates_of(probs, self._paths)
        self._best = torch.cat([self._best, found[2]], 1).topk(self._plan.budget).values
        self._found.append(found)

    def expand(self, width: int) -> tuple[Int[Tensor, "rows width"], Int[Tensor, "rows width"]]:
        """Expand the first candidates of the last level: their tokens, and their parents above."""
        tokens, parents, values = self._found[-1]
        values = values[:, :width]
        # A node that is not among the best leads nowhere.
        leads = (values >= self._best[:, -1:]) & (values > self._plan.threshold)
        self._paths = torch.where(leads, values, 0.0)
        return tokens[:, :width], parents[:, :width]

    def packed(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "rows levels candidates 3"]:
        """Tokens, parents and values of all candidates: one tensor, for one copy to the host.

        Float32 holds tokens of any vocabulary too, since it counts to 2**24.
        """
        return torch.stack([part.to(dtype) for part in self.apart()], 3)

    def apart(self) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens, parents and values of all candidates, `[rows, levels, candidates]` each."""
        most = max(values.shape[1] for _, _, values in self._found)
        tokens, parents, values = (
            torch.stack([pad(found[part], (0, most - found[part].shape[1])) for found in self._found], 1)
            for part in range(3)
        )
        return tokens, parents, values


def _below(paths: Tensor, chances: Tensor) -> Tensor:
    """Values of the paths on; rounding must not lift one above its own beginning."""
    return torch.minimum(paths * chances, paths)


@attrs.frozen(eq=False)
class Levels:
    """The candidates of all levels, as a `LevelPlan` defines them, of every row and level the best first.

    Attributes:
        tokens: int64 `[rows, levels, candidates]`.
        parents: int64, of the same shape: index of the parent among the candidates of the level above; on the
            first level 0, the root.
        values: float64, of the same shape; 0 where there is none.
        widths: nodes of every level that were expanded, the root first: the first candidates of the level.
        vocab_size: of the draft's distributions.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    values: NDArray[np.float64]
    widths: tuple[int, ...]
    vocab_size: int

    @classmethod
    def of(cls, packed: Tensor, *, widths: tuple[int, ...], vocab_size: int) -> Levels:
        """Returns the levels of `GrowingLevels.packed`, read back at once."""
        held = packed.cpu().numpy()
        tokens, parents = held[..., 0].astype(np.int64), held[..., 1].astype(np.int64)
        return cls(tokens, parents, held[..., 2].astype(np.float64), widths, vocab_size)

    def nodes(self, *, root: int) -> tuple[Nodes, Nodes]:
        """Tokens and parents `[rows, nodes]` of all that was expanded below the root, level by level.

        Args:
            root: region index of the roots; the others follow it.
        """
        levels, numbers, starts = _places(self.widths)
        return self.tokens[:, levels, numbers], self.parents[:, levels, numbers] + (root + starts)

    def misses(self, plan: LevelPlan) -> bool:
        """Returns whether a tree of `plan` might hold children of unexpanded nodes, or values are unsound."""
        if np.isnan(self.values).any():
            return True
        most = self.values.shape[2]
        cut = [
            (level, width)
            for level, width in enumerate(self.widths[1:])
            if width < min(plan.useful(level + 1), most)
        ]
        if not cut:
            return False
        levels, first_left_out = zip(*cut, strict=True)
        return bool((self.values[:, levels, first_left_out] > self.bars(plan)[:, None]).any())

    def children(self, row: int, *, least: float = 0.0) -> dict[tuple[int, int], Candidates]:
        """The candidates of one row below every node that was expanded, the most valuable first.

        Args:
            row: index of the row.
            least: candidates of a lower value are left out.

        Returns:
            By level and number of the node (-1 and 0 for the root): the numbers, tokens and chances of the
            candidates below it.
        """
        found: dict[tuple[int, int], Candidates] = {}
        above = [1.0]
        for level, (tokens, parents, values) in enumerate(
            zip(self.tokens[row].tolist(), self.parents[row].tolist(), self.values[row].tolist(), strict=True)
        ):
            for number, (token, parent, value) in enumerate(zip(tokens, parents, values, strict=True)):
                if value > 0 and value >= least:
                    numbers, below, chances = found.setdefault((level - 1, parent), ([], [], []))
                    numbers.append(number)
                    below.append(token)
                    chances.append(value / above[parent])
            above = values
        return found

    def bars(self, plan: LevelPlan) -> NDArray[np.float64]:
        """Returns every row's least value of a node in its tree; the threshold where there is room."""
        values = self.values.reshape(len(self.values), -1)
        if values.shape[1] < plan.budget:
            return np.full(len(values), plan.threshold)
        least = np.partition(values, -plan.budget, 1)[:, -plan.budget]
        return np.asarray(np.maximum(least, plan.threshold))


@lru_cache
def _places(widths: tuple[int, ...]) -> tuple[Nodes, Nodes, Nodes]:
    """Returns the places of all nodes that were expanded below the root, level by level.

    Returns:
        Their levels, their numbers in them, and the number from which parents are counted: the first node of
        the level above, or 0 for the root. Each is `[nodes]`.
    """
    below = np.array(widths[1:], np.int64)
    levels = np.arange(len(below)).repeat(below)
    firsts = below.cumsum() - below
    starts = np.concatenate([[0], 1 + firsts])[: len(below)]
    return levels, np.arange(len(levels)) - firsts[levels], starts[levels]
