"""`FollowedCosts`: costs of passes that are corrected by what the rounds of a decoder take."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, log

import attrs
import numpy as np
from jaxtyping import Float

from draftwood.base.validators import probability
from draftwood.decoding.round_records import Round
from draftwood.protocols.pass_costs import PassCosts, PassTable

ALL_SIZES, ONE_SIZE, PARTS = 4.0, 4.0, 4.0
"""Rounds that the measured costs count for: of all sizes together, of one size against the others, and of
each part outside of target passes."""

RENEWED = 8
"""Rounds after which the corrections come into effect."""

CONTEXT = 16
"""Tokens of a text within which passes cost the same."""

FARTHEST = log(2.0)
"""How far one round may lie from what was expected of it, as a logarithm, to count with its own time."""


@attrs.define(eq=False)
class FollowedCosts:
    """Costs that follow the clock while a decoder writes; give them to it in the place of `PassCosts`.

    Passes are measured for some seconds, and the machine changes: other work comes, memory and clock rates
    differ. Each round shows what its size takes now. Target passes have a factor for all sizes and one for
    each size against the others, so that a size that has not been seen changes with the rest. All else in a
    round is the sum of ordinary rounds' rest, that of rounds with a tree, and the layers, each with a factor.
    Factors are those of least squares, drawn to 1 by a few rounds, and older rounds count less.

    The law of the text stays what it is: what a round took is known before the next one's tokens are. But
    with the clock the trees depend on the machine, so a sampled text is not the same at the next run with
    its seed.

    Attributes:
        measured: the costs to begin with.
        memory: how much a past round counts, round by round.
        now: the corrected costs.
    """

    measured: PassCosts = attrs.field(validator=attrs.validators.instance_of(PassCosts))
    memory: float = attrs.field(default=0.98, kw_only=True, validator=probability)
    now: PassCosts = attrs.field(init=False)
    _sizes: Float[np.ndarray, " sizes"] = attrs.field(init=False)
    _seen: Float[np.ndarray, " sizes"] = attrs.field(init=False)
    _off: Float[np.ndarray, " sizes"] = attrs.field(init=False)
    _products: Float[np.ndarray, "3 3"] = attrs.field(init=False)
    _taken: Float[np.ndarray, " 3"] = attrs.field(init=False)
    _rounds: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.now = self.measured
        self._sizes = np.array(sorted({nodes for nodes, *_ in self.measured.target.points}), dtype=float)
        self._seen, self._off = np.zeros((2, len(self._sizes)))
        self._products, self._taken = np.zeros((3, 3)), np.zeros(3)

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
        self._seen *= self.memory
        self._off *= self.memory
        place = int(np.abs(self._sizes - nodes).argmin())
        factor = self._target_factors[place]
        self._seen[place] += 1
        self._off[place] += _near(log(max(record.target_seconds, 1e-9) / target), around=factor)
        if (others := rest + layers) > 0:
            parts = np.array([rest, 0.0, 0.0] if nodes == 1 else [0.0, rest, layers]) / others
            found = max(record.seconds - record.target_seconds, 1e-9) / others
            around = log(max(float(parts @ self._other_factors), 1e-3))
            self._products = self.memory * self._products + np.outer(parts, parts)
            self._taken = self.memory * self._taken + exp(_near(log(found), around=around)) * parts
        self._rounds += 1
        if self._rounds % RENEWED == 0:
            self.now = self._corrected()

    @property
    def _target_factors(self) -> Float[np.ndarray, " sizes"]:
        """Returns the logarithms of the factors of target passes by size."""
        of_all = self._off.sum() / (self._seen.sum() + ALL_SIZES)
        own: Float[np.ndarray, " sizes"] = (self._off - self._seen * of_all) / (self._seen + ONE_SIZE)
        return of_all + own

    @property
    def _other_factors(self) -> Float[np.ndarray, " 3"]:
        """Returns the factors of an ordinary round's rest, of that with a tree, and of layers."""
        factors: Float[np.ndarray, " 3"] = np.linalg.solve(
            self._products + PARTS * np.eye(3), self._taken + PARTS
        )
        return factors.clip(min=0.1)

    def _corrected(self) -> PassCosts:
        by_size = dict(zip(self._sizes.tolist(), np.exp(self._target_factors).tolist(), strict=True))
        ordinary, with_tree, layer = self._other_factors.tolist()
        measured = self.measured
        target = _scaled(measured.target, by_size, otherwise=1.0)
        assert target is not None
        return attrs.evolve(
            measured,
            target=target,
            draft=_scaled(measured.draft, {}, otherwise=layer),
            rest=_scaled(measured.rest, {1: ordinary}, otherwise=with_tree),
        )


def _near(value: float, *, around: float) -> float:
    """Returns `value`, or what is as far as one round may lie from `around`."""
    return min(max(value, around - FARTHEST), around + FARTHEST)


@lru_cache(maxsize=256)
def _expected(
    costs: PassCosts, nodes: int, calls: int, rows: int, context: float
) -> tuple[float, float, float]:
    """Returns the seconds of a round's target pass, of its rest and of its layers."""
    at = {"rows": rows, "context": context}
    layers = 0.0
    if calls:
        # A first layer has one node to expand, and the others are taken to be alike.
        wide = max((nodes - 1) // calls, 1)
        layers = costs.draft_seconds(1, **at) + (calls - 1) * costs.draft_seconds(wide, **at)
    return costs.target(nodes, **at), costs.rest_seconds(nodes, **at), layers


def _scaled(
    table: PassTable | None, by_nodes: Mapping[float, float], *, otherwise: float
) -> PassTable | None:
    if table is None:
        return None
    points = [
        (nodes, rows, context, seconds * by_nodes.get(nodes, otherwise))
        for nodes, rows, context, seconds in table.points
    ]
    return attrs.evolve(table, points=points)
