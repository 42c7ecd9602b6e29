"""The best static tree for a verifier that judges all siblings of a node at once, by measured chances."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftwood import Outcome, Randomness, SamplingParams, SpeculativeDecoder, TokenTree
from draftwood.base.errors import InvalidInput
from draftwood.methods.watched_verifier import WatchedVerifier
from draftwood.strategies.path_chances import path_chances
from draftwood.strategies.policies.shapes import RankPath, Shape, as_text
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.walk import TreeWalk

Chances = NDArray[np.float64]

LEVELS = 4
"""Depths that are told apart: children of the root, their children, ..., and all that lies deeper."""

RANKS = (1, 3)
"""Parents are told apart by their own rank: 0, then up to 2, then larger ones."""

FEW = 50.0
"""A share of few parents leans on what was seen elsewhere, which counts for so many parents on the path."""


WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Siblings of the root's children in the trees that are tried."""

_BELOW = ((1, 2, 4, 1, 3, 6), (1, 1, 2))
"""Children of the nodes of the next level, in turns, and of all deeper ones."""

_LONGEST = 16


def _parents(rank: int) -> int:
    return sum(rank >= first for first in RANKS)


@attrs.define(eq=False)
class SiblingShares:
    """The shares that siblings receive of what their parent receives, measured on trees that were judged.

    A child's chance to be on the accepted path, over its parent's, depends on how many siblings there are,
    on its rank among them, on the depth, and on how likely the parent was. A verifier from the leaves up
    gives a node the same chance whatever hangs below it, so a tree's tokens are a sum over its nodes of
    products of such shares.

    Attributes:
        widest: most siblings of a node seen so far.
    """

    # By depth, kind of parent and number of siblings: the sums of parents' chances and of siblings'.
    _seen: dict[tuple[int, int, int], tuple[Chances, Chances]] = attrs.field(factory=dict, init=False)
    _tables: dict[tuple[int, int], Chances] = attrs.field(factory=dict, init=False)

    @property
    def widest(self) -> int:
        return max((count for _, _, count in self._seen), default=0)

    def add(self, tree: TokenTree, chances: Sequence[float]) -> None:
        """Count one judged tree.

        Args:
            tree: whose siblings were drawn by laws that know their tokens' first chances.
            chances: of every node to be on the path, `[nodes]`; see `draftwood.strategies.path_chances`.
        """
        ranks, depths = sibling_ranks(tree), tree.depths.tolist()
        for node, (depth, rank) in enumerate(zip(depths, ranks, strict=True)):
            if not (children := tree.children(node)):
                continue
            place = (min(depth, LEVELS - 1), _parents(rank) if depth else 0, len(children))
            given, received = self._seen.setdefault(place, (np.zeros(1), np.zeros(len(children))))
            given += chances[node]
            for child in children:
                received[ranks[child]] += chances[child]
        self._tables.clear()

    def table(self, depth: int, parent_rank: int) -> Chances:
        """Returns the shares of siblings whose parent is at `depth` (the root: 0) and has this rank.

        Returns:
            float64 `[widest, widest]`: for 1, 2, ... siblings, the share of every rank; 0 beyond.
        """
        place = (min(depth, LEVELS - 1), _parents(parent_rank) if depth else 0)
        if place not in self._tables:
            self._tables[place] = self._interpolated(*place)
        return self._tables[place]

    def _interpolated(self, depth: int, parents: int) -> Chances:
        """Numbers of siblings that were not seen lie between those that were."""
        known = np.zeros((self.widest + 1, self.widest))
        seen = [0]
        for count in range(1, self.widest + 1):
            share = self._share(depth, parents, count)
            if share is not None:
                known[count, :count] = share
                seen.append(count)
        for count in range(1, self.widest + 1):
            below = max(one for one in seen if one <= count)
            above = min((one for one in seen if one >= count), default=below)
            if below < count < above:
                part = (count - below) / (above - below)
                known[count] = (1 - part) * known[below] + part * known[above]
        return known[1:]

    def _share(self, depth: int, parents: int, count: int) -> Chances | None:
        """The share of every rank at this place; None where so many siblings were not seen.

        What was seen at all depths below the root counts for `FEW` parents at a depth, and what was seen
        there for `FEW` of one kind.
        """
        kinds = range(len(RANKS) + 1)
        places = [[(depth, parents)]]
        if depth:
            places = [[(level, other) for level in range(1, LEVELS) for other in kinds]]
            places += [[(depth, other) for other in kinds], [(depth, parents)]]
        share: Chances | None = None
        for wanted in places:
            seen = [self._seen[*one, count] for one in wanted if (*one, count) in self._seen]
            given = sum(float(chances[0]) for chances, _ in seen)
            received = sum((siblings for _, siblings in seen), np.zeros(count))
            if share is not None:
                share = (received + FEW * share) / (given + FEW)
            elif given > 0:
                share = received / given
        return share


def sibling_ranks(tree: TokenTree) -> list[int]:
    """The rank of every node among its siblings by draft probability, as `StaticTree(sort=True)` ranks them;
    0 for the root."""
    ranks, tokens = [0] * len(tree), tree.tokens.tolist()
    for node in range(len(tree)):
        if children := tree.children(node):
            probs = tree.proposals[node].conditional(0, ())
            order = sorted(children, key=lambda child: (-float(probs[tokens[child]]), child))
            for rank, child in enumerate(order):
                ranks[child] = rank
    return ranks


def probe_shapes(budget: int) -> list[Shape]:
    """Returns shapes of up to `budget` nodes with many numbers of siblings at many places; chains first."""
    shapes: list[Shape] = []
    for chains in (chains for chains in (1, 4) if chains <= budget):
        length = min(budget // chains, _LONGEST)
        shapes.append(tuple((rank,) + (0,) * depth for depth in range(length) for rank in range(chains)))
    for turn, width in enumerate(width for width in WIDTHS if width <= budget):
        paths: list[RankPath] = [(rank,) for rank in range(width)]
        for number, path in enumerate(paths):  # which grows
            counts = _BELOW[0] if len(path) == 1 else _BELOW[1]
            count = min(counts[(turn + number) % len(counts)], budget - len(paths))
            paths += [(*path, rank) for rank in range(count)]
        shapes.append(tuple(paths))
    return shapes


def measured_shares(
    target: Any,
    drafter: Any,
    prompts: Sequence[Sequence[int]],
    *,
    shapes: Iterable[Shape],
    verifier: TreeWalk,
    sampling: SamplingParams,
    draft_sampling: SamplingParams | None = None,
    tokens: int = 32,
    seed: int = 0,
    shares: SiblingShares | None = None,
) -> SiblingShares:
    """Measures shares of siblings while the pair writes texts after `prompts` with sorted trees.

    Args:
        target, drafter: as `SpeculativeDecoder` takes them.
        prompts: of calibration, not of a test.
        shapes: of the trees.
        verifier: whose chances are measured.
        sampling: of the target.
        draft_sampling: of the draft; default: the target's.
        tokens: of a text.
        seed: of the first prompt's draws; each further prompt has the next.
        shares: what was measured before, to which this is added.
    """
    shares = SiblingShares() if shares is None else shares
    for shape in shapes:
        watched = _Watched(verifier, shares)
        decoder = SpeculativeDecoder(target, drafter, StaticTree(shape, sort=True), watched)
        for number, prompt in enumerate(prompts):
            decoder.generate(
                [prompt],
                max_new_tokens=tokens,
                sampling=sampling,
                draft_sampling=draft_sampling or sampling,
                seed=seed + number,
            )
    return shares


@attrs.frozen
class ShapeFit:
    """Fits the `shape` of a recipe of sorted trees that `verifier` judges; see
    `draftwood.methods.recipe.Fit`.

    Attributes:
        depth: levels at most.
    """

    verifier: TreeWalk
    depth: int = 16
    option = "shape"

    def __call__(
        self,
        target: Any,
        drafter: Any,
        prompts: Sequence[Sequence[int]],
        *,
        budgets: Sequence[int],
        sampling: SamplingParams,
        draft_sampling: SamplingParams,
        tokens: int,
        seed: int,
        watch: Callable[[Sequence[Any]], Iterable[Any]],
    ) -> dict[int, str]:
        shares = measured_shares(
            target,
            drafter,
            prompts,
            shapes=watch(probe_shapes(max(budgets))),
            verifier=self.verifier,
            sampling=sampling,
            draft_sampling=draft_sampling,
            tokens=tokens,
            seed=seed,
        )
        return {
            budget: as_text(best_sorted_shape(shares, budget=budget, depth=self.depth)[0])
            for budget in budgets
        }


@attrs.frozen(eq=False)
class _Watched(WatchedVerifier):
    """Counts the chances in every tree that is judged."""

    shares: SiblingShares

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        self.shares.add(tree, path_chances(self.judge, tree, target_probs, rng).tolist())
        outcome: Outcome = self.judge.verify(tree, target_probs, rng)
        return outcome


def best_sorted_shape(shares: SiblingShares, *, budget: int, depth: int) -> tuple[Shape, float]:
    """The shape with the most tokens a round expected, for siblings ranked by draft probability.

    As `best_shape` does for Sequoia, but a node's number of siblings counts: what the first receives
    depends on how many there are. The dynamic programme runs over levels, kinds of parents, numbers of
    siblings, ranks and nodes: O(levels * siblings² * budget²).

    Args:
        shares: measured.
        budget: nodes at most, the root not counted, at least 1.
        depth: levels at most, at least 1.

    Returns:
        The nodes' rank paths, level by level, and the tokens expected of a round. Nodes that never were
        accepted are left out, but for (0,).

    Raises:
        InvalidInput: a budget or depth below 1, or nothing measured.

    Source: draftwood, after Sequoia, section 3.1 (arXiv 2402.12374).
    """
    if budget < 1 or depth < 1:
        raise InvalidInput(f"budget is {budget} and depth {depth}; give at least 1 for both.")
    if not shares.widest:
        raise InvalidInput("No tree was measured; add some to the shares first.")
    kinds = [0, *RANKS]  # a rank of every kind of parents
    plans: list[dict[int, _Plan]] = []  # from the deepest level up
    below = {kind: np.zeros(budget + 1) for kind in range(len(kinds))}
    for level in reversed(range(min(depth, budget))):
        ranks = kinds if level else [0]
        plan = {_parents(rank): _planned(shares.table(level, rank), below, budget) for rank in ranks}
        plans.insert(0, plan)
        below = {kind: one.values for kind, one in plan.items()}
    paths: list[RankPath] = []
    open_: list[tuple[RankPath, int]] = [((), budget)]
    while open_:
        path, nodes = open_.pop()
        if len(path) == len(plans):
            continue
        for rank, spent in enumerate(plans[len(path)][_parents(path[-1]) if path else 0].split(nodes)):
            paths.append((*path, rank))
            open_.append(((*path, rank), spent - 1))
    return tuple(sorted(paths or [(0,)], key=lambda path: (len(path), path))), 1 + float(below[0][budget])


@attrs.frozen(eq=False)
class _Plan:
    """A plan by which a kind of parents spends nodes on children.

    Attributes:
        values: the most tokens for so many nodes, `[budget + 1]`.
        counts: numbers of siblings that bring it, `[budget + 1]`.
        spent: for a number of siblings, by rank and nodes left for it and later ones: nodes for it and
            what hangs below it.
    """

    values: Chances
    counts: NDArray[np.int64]
    spent: dict[int, NDArray[np.int64]]

    def split(self, nodes: int) -> list[int]:
        """Nodes of every sibling, with what hangs below it."""
        count, parts = int(self.counts[nodes]), []
        for rank in range(count):
            parts.append(int(self.spent[count][rank, nodes]))
            nodes -= parts[-1]
        return parts


def _planned(table: Chances, below: dict[int, Chances], budget: int) -> _Plan:
    """The best use of up to `budget` nodes below a parent whose children receive these shares."""
    values, counts = np.zeros(budget + 1), np.zeros(budget + 1, dtype=np.int64)
    left = np.arange(budget + 1)[:, None] - np.arange(1, budget + 1)  # after a child took 1, 2, ... nodes
    spent: dict[int, NDArray[np.int64]] = {}
    for count in range(1, min(len(table), budget) + 1):
        chosen = np.zeros((count, budget + 1), dtype=np.int64)
        behind = np.zeros(budget + 1)  # the value of the siblings of higher ranks; every one takes a node
        for rank in reversed(range(count)):
            child = table[count - 1, rank] * (1 + below.get(_parents(rank), below[0])[:-1])
            gains = np.where(left >= count - 1 - rank, child + behind[left.clip(min=0)], -np.inf)
            chosen[rank], behind = gains.argmax(1) + 1, gains.max(1)
        spent[count] = chosen
        better = behind > values
        values, counts = np.where(better, behind, values), np.where(better, count, counts)
    return _Plan(values, counts, spent)
