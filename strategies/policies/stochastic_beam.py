"""Stochastic beam search: the tree of sequences drawn without replacement."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import (
    Randomness,
    Request,
    RowGrowth,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    TreesBuilder,
    WithoutReplacement,
)
from draftwood.randomness import UniformRandomness, ahead_of_rows
from draftwood.row_growth import Level, aligned
from draftwood.strategies.policies.dyspec import start_children
from draftwood.strategies.policies.level_draws import Numbers, Slots, Values, drawn_at_once, start_slots
from draftwood.validators import at_least


@attrs.frozen
class StochasticBeam(TreePolicy):
    """RSD-S: on every level the first `width` distinct prefixes of sequences drawn from the draft.

    The papers perturb log-probabilities by Gumbel noise. Read as clocks, every sequence strikes after an
    exponential time whose rate is its probability, a prefix when the first of its sequences does, and the
    beam of a level is the `width` prefixes that strike first. That is the order in which prefixes first
    appear in a stream of independent sequences, and it can be drawn level by level without any clock:

    - Given the order of a level's prefixes, how often the stream comes back to those seen already says
      nothing about which prefixes come next, and the other way round.
    - So after j prefixes of a level have appeared, the next new one of the level below is a further child
      of one of them, in proportion to the mass of its children not yet drawn; or it is the first child of
      prefix j + 1, in proportion to the mass of all prefixes that have not appeared.
    - The child itself is then drawn from what is left of its parent's distribution.

    The law of trees is that of stochastic beam search exactly (tests compare both, noise for noise and
    law for law); no Gumbel has to be truncated, which is where its implementations lose their digits, and
    all choices are finite, so that they can be enumerated. A child's token is drawn after it is decided that
    its parent gets one more, and no node is dropped: law P. Siblings stand in the order of their perturbed
    values.

    A prefix after which the draft proposes nothing stays a leaf and its mass is gone.

    Attributes:
        width: prefixes on a level; the tree has up to `width * depth` nodes.
        depth: levels.

    Source: RSD, algorithms 8 and 9 (RSD-S); stochastic beam search, Kool et al. 2019 (arXiv 1903.06059).
    """

    width: int = attrs.field(default=4, validator=at_least(1))
    depth: int = attrs.field(default=4, validator=at_least(1))
    laws = frozenset({WithoutReplacement})
    adaptive = True
    source = "RSD, algorithms 8 and 9"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.width > 1

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        beam, ahead = [0], [0.0]  # the level in order, and the mass of all that appears after each
        for _ in range(self.depth):
            probs = yield tree.request(beam)
            children = list(start_children(WithoutReplacement, beam, probs, self.width, rng).values())
            below: list[int] = []
            ahead_below: list[float] = []
            # What may come next: a further child of a prefix that has appeared, or the next prefix.
            weights = [1.0]
            while len(below) < self.width and sum(weights) > 0:
                index = rng.choose(torch.tensor(weights, dtype=torch.float64))
                parent, drawn = beam[index], children[index]
                if index == len(weights) - 1:
                    # Once the whole beam has appeared, nothing new is to come.
                    weights.append(ahead[index] if index + 1 < len(beam) else 0.0)
                if drawn.next_value == 0:
                    weights[index] = 0.0
                    continue
                token, chance = drawn.draw()
                weights[index] = path_probs[parent] * drawn.next_value
                below.append(tree.add(parent, token))
                path_probs.append(path_probs[parent] * chance)
                ahead_below.append(sum(weights))
            for node, siblings in zip(beam, children, strict=True):
                if siblings.tokens:
                    tree.proposals[node] = siblings.proposal()
            if not below:
                break
            beam, ahead = below, ahead_below
        return tree.finish()

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        if not drawn_at_once(rngs, WithoutReplacement):
            return super().grow_rows(roots, rngs)
        return self._grow_levels(roots, rngs)

    def _grow_levels(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        trees = TreesBuilder(roots)
        level, ahead = trees.roots, np.zeros((len(roots), 1))
        path_probs = np.ones_like(ahead)
        for _ in range(self.depth):
            probs = yield from trees.ask(level)
            slots = start_slots(WithoutReplacement, probs, rngs, level.counts, self.width)
            order = _BeamOrder(path_probs, ahead, level.counts, rngs)
            while len(rows := order.rows(self.width)):
                order.draw(rows, slots)
            parents, tokens, path_probs, ahead = order.drawn()
            parents = np.where(tokens >= 0, np.take_along_axis(level.nodes, parents, 1), -1)
            level = Level(trees.add(parents, tokens, tokens >= 0))
            if level.empty:
                break
        return trees.finish(WithoutReplacement)


class _BeamOrder:
    """Of a level's prefixes, which one the next new prefix of the level below hangs under, for all rows."""

    def __init__(
        self, path_probs: Values, ahead: Values, counts: Numbers, rngs: Sequence[UniformRandomness]
    ) -> None:
        self._path_probs, self._counts, self._rngs = path_probs, counts, rngs
        self._ahead = np.where(np.arange(ahead.shape[1]) < counts[:, None], ahead, 0.0)
        # What may come next: a further child of a prefix that has appeared, or the next prefix.
        self._weights = np.zeros((len(rngs), ahead.shape[1] + 1))
        self._weights[:, 0] = counts > 0
        self._newest = np.zeros(len(rngs), dtype=np.int64)
        self._below = np.zeros(len(rngs), dtype=np.int64)
        self._drawn: list[tuple[Numbers, Numbers, Values, Values]] = []

    def rows(self, width: int) -> Numbers:
        """The rows whose level below is not full and may grow."""
        return np.flatnonzero((self._below < width) & (self._weights.sum(1) > 0))

    def draw(self, rows: Numbers, slots: Slots) -> None:
        """One choice of a prefix in each of these rows, and a child of it where any is left."""
        uniforms = ahead_of_rows([self._rngs[row] for row in rows], 1)[:, 0]
        for row in rows:
            self._rngs[row].skip(1)
        heights = self._weights[rows].cumsum(1)
        index = (heights > (uniforms * heights[:, -1])[:, None]).argmax(1)
        newest = rows[index == self._newest[rows]]
        # Once the whole beam has appeared, nothing new is to come.
        last = self._newest[newest] + 1
        self._weights[newest, last] = np.where(
            last < self._counts[newest], self._ahead[newest, last - 1], 0.0
        )
        self._newest[newest] = last
        live = slots.next_values[rows, index] > 0
        self._weights[rows[~live], index[~live]] = 0.0
        rows, index = rows[live], index[live]
        tokens, chances = (of[:, 0] for of in slots.draw((rows, index), 1)[:2])
        self._weights[rows, index] = self._path_probs[rows, index] * slots.next_values[rows, index]
        step = np.full((4, len(self._rngs)), -1.0)
        step[:, rows] = index, tokens, self._path_probs[rows, index] * chances, self._weights[rows].sum(1)
        self._below[rows] += 1
        self._drawn.append((step[0].astype(np.int64), step[1].astype(np.int64), step[2], step[3]))

    def drawn(self) -> tuple[Numbers, Numbers, Values, Values]:
        """What was drawn, `[rows, m]` each: numbers of the parents in the beam, tokens (-1: none), the
        probabilities of the paths, and the mass of all that appears after each."""
        nothing = np.zeros((len(self._rngs), 0))
        if not self._drawn:
            return nothing.astype(np.int64), nothing.astype(np.int64), nothing, nothing
        parents, tokens, path_probs, ahead = (np.stack(of, 1) for of in zip(*self._drawn, strict=True))
        keep = tokens >= 0
        return (
            aligned(parents, keep, none=0),
            aligned(tokens, keep),
            aligned(path_probs, keep, none=0),
            aligned(ahead, keep, none=0),
        )
