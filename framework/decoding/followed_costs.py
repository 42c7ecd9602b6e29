"""`FollowedCosts`: costs of passes that are corrected by what the rounds of a decoder take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import log
from typing import Any

import attrs
import numpy as np
from jaxtyping import Float

from draftwood.base.validators import probability
from draftwood.decoding.round_records import Round
from draftwood.protocols.pass_costs import CONTEXT, PassCosts, PassTable

ALL_SIZES, ONE_SIZE, PARTS = 2.0, 2.0, 2.0
"""Rounds that the measured costs count for: of all sizes together, of one size against the others, and of
each part outside of target passes."""

RENEWED = 16
"""Rounds after which the corrections come into effect."""

FARTHEST = 2.0
"""A round counts as at most so many times what was expected of it, and as at least that part of it."""

MATTERS = 0.02
"""Changes of a factor that come into effect, at least."""


@attrs.define(eq=False)
class FollowedCosts:
    """Costs that follow the clock while a decoder writes; give them to it in the place of `PassCosts`.

    Passes are measured for some seconds, and the machine changes: other work comes, memory and clock rates
    differ. Each round shows what its size takes now. Target passes have a factor for all sizes and one for
    each size against the others, so that a size that has not been seen changes with the rest. All else in a
    round is the sum of ordinary rounds' rest, that of rounds with a tree, and the layers, each with a factor.
    Factors come from least squares, drawn to 1 by a few rounds, and older rounds count less.

    The law of the text stays the same, since the time of a round is known before the next one's tokens. But
    the trees depend on the clock, so a sampled text is not the same at the next run with its seed.

    Attributes:
        measured: the costs to begin with.
        memory: weight of a round after one more, as a share of its weight before.
        now: the corrected costs.
    """

    measured: PassCosts = attrs.field(validator=attrs.validators.instance_of(PassCosts))
    memory: float = attrs.field(default=0.98, kw_only=True, validator=probability)
    now: PassCosts = attrs.field(init=False)
    _places: dict[int, int] = attrs.field(factory=dict, init=False)  # by nodes, of the nearest measured size
    _seen: list[float] = attrs.field(init=False)
    _off: list[float] = attrs.field(init=False)
    _products: Float[np.ndarray, "3 3"] = attrs.field(init=False)
    _taken: Float[np.ndarray, " 3"] = attrs.field(init=False)
    _factors: Factors = attrs.field(init=False)
    _rounds: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.now = self.measured
        sizes = self._sizes
        self._seen, self._off = [0.0] * len(sizes), [0.0] * len(sizes)
        self._products, self._taken = np.zeros((3, 3)), np.zeros(3)
        self._factors = Factors((1.0,) * len(sizes), (1.0, 1.0, 1.0))

    @property
    def _sizes(self) -> list[int]:
        return sorted({nodes for nodes, *_ in self.measured.target.points})

    def observe(self, record: Round, *, context: float = 0) -> None:
        """Take what a round took into account; the prefill of a prompt is left out.

        Args:
            record: of the round.
            context: mean committed tokens of its rows.
        """
        if record.prefill or not record.rows:
            return
        nodes = 1 + max(row.outcome.drafted for row in record.rows)
        at = len(record.rows), CONTEXT * round(context / CONTEXT)
        target, rest, layers = _expected(self.measured, nodes, record.draft_calls, *at)
        if target <= 0:  # no factor makes more of nothing
            return
        place = self._places.get(nodes)
        if place is None:
            sizes = self._sizes
            place = self._places[nodes] = min(range(len(sizes)), key=lambda n: abs(sizes[n] - nodes))
        memory = self.memory
        self._seen, self._off = [memory * n for n in self._seen], [memory * off for off in self._off]
        self._seen[place] += 1
        self._off[place] += log(_near(record.target_seconds / target, self._factors.target[place]))
        if (others := rest + layers) > 0:
            # At the end of a text the draft may be asked for nodes that are cut.
            drafted = nodes > 1 or record.draft_calls > 0
            parts = (0.0, rest / others, layers / others) if drafted else (1.0, 0.0, 0.0)
            around = sum(part * factor for part, factor in zip(parts, self._factors.others, strict=True))
            found = _near((record.seconds - record.target_seconds) / others, around)
            row = np.array(parts)
            self._products = memory * self._products + row[:, None] * row
            self._taken = memory * self._taken + found * row
        self._rounds += 1
        if self._rounds % RENEWED == 0:
            self._renew()

    def _renew(self) -> None:
        off, seen = np.array(self._off), np.array(self._seen)
        of_all = off.sum() / (seen.sum() + ALL_SIZES)
        target = np.exp(of_all + (off - seen * of_all) / (seen + ONE_SIZE))
        others = np.linalg.solve(self._products + PARTS * np.eye(3), self._taken + PARTS).clip(min=0.1)
        found = Factors(tuple(target.tolist()), tuple(others.tolist()))
        if found.far_from(self._factors):  # policies keep what they worked out from the same costs
            self._factors, self.now = found, found.applied(self.measured)


@attrs.frozen
class Factors:
    """Factors by which the parts of rounds take longer than measured.

    Attributes:
        target: by size, of target passes.
        others: of an ordinary round's rest, of the rest of a round with a tree, and of layers.
    """

    target: tuple[float, ...]
    others: tuple[float, ...]

    def far_from(self, earlier: Factors) -> bool:
        """Returns whether one differs by more than can matter."""
        pairs = zip(self.target + self.others, earlier.target + earlier.others, strict=True)
        return any(abs(log(one / other)) > MATTERS for one, other in pairs)

    def applied(self, costs: PassCosts) -> PassCosts:
        """Returns the costs that they make of these."""
        sizes = sorted({nodes for nodes, *_ in costs.target.points})
        ordinary, with_tree, layer = self.others
        by_size = dict(zip(sizes, self.target, strict=True))
        return PassCosts(
            _scaled(costs.target, by_size, otherwise=1.0),
            costs.draft and _scaled(costs.draft, {}, otherwise=layer),
            costs.rest and _scaled(costs.rest, {1: ordinary}, otherwise=with_tree),
            machine=costs.machine,
        )


def _near(found: float, around: float) -> float:
    """Returns `found`, or the nearest number that one round may count with."""
    return min(max(found, around / FARTHEST), around * FARTHEST)


@lru_cache(maxsize=256)
def _expected(
    costs: PassCosts, nodes: int, calls: int, rows: int, context: float
) -> tuple[float, float, float]:
    """Returns the seconds of a round's target pass, of its rest and of its layers."""
    at: dict[str, Any] = {"rows": rows, "context": context}
    return costs.target(nodes, **at), costs.rest_seconds(nodes, **at), costs.tree_seconds(nodes, calls, **at)


def _scaled(table: PassTable, by_nodes: Mapping[int, float], *, otherwise: float) -> PassTable:
    points = [
        (nodes, rows, context, seconds * by_nodes.get(nodes, otherwise))
        for nodes, rows, context, seconds in table.points
    ]
    return attrs.evolve(table, points=points)
