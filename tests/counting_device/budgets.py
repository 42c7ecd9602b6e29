"""What a round may ask of the device, by strategy and rows: as much as it did when it was measured.

`python -m tests.counting_device` prints what it asks now; a smaller number belongs here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.counting_device.counts import Kind
from tests.counting_device.rounds import Call, CountedRounds

ROUNDS = 2
"""Counted, behind one that is not."""

ROWS = (1, 8)

SAMPLED: dict[str, Any] = {"verifier": RecursiveRejection()}
LIKELIEST: dict[str, Any] = {"verifier": Greedy(), "temperature": 0.0}
RECURRENT: dict[str, Any] = {"target": "mamba2-5m", "draft": "mamba2-draft"}
HYBRID: dict[str, Any] = {"target": "bamba-6m", "draft": "mamba2-draft"}

CALLS: Mapping[str, Call] = {
    "chain 5": Call(policy=Chain(5), **SAMPLED),
    "chain 5, greedy": Call(policy=Chain(5, "top-k"), **LIKELIEST),
    "layered DySpec 16": Call(policy=LayeredDySpec(16), **SAMPLED),
    "layered DySpec 16, greedy": Call(policy=LayeredDySpec(16, law="top-k"), **LIKELIEST),
    "layered DySpec 64": Call(policy=LayeredDySpec(64), **SAMPLED),
    "layered DySpec 64, greedy": Call(policy=LayeredDySpec(64, law="top-k"), **LIKELIEST),
    "Sequoia 16, class order": Call(policy=Sequoia(16), verifier=ClassOrderedTraversal()),
    "layered DySpec 16, recurrent": Call(policy=LayeredDySpec(16), **SAMPLED, **RECURRENT),
    "layered DySpec 16, hybrid": Call(policy=LayeredDySpec(16), **SAMPLED, **HYBRID),
}


@attrs.frozen
class Budget:
    """What a round asks of the device, on average.

    Attributes:
        launches: kernels.
        outside: those of them outside model passes.
        waits: of the host for the device.
        blocking: copies to the device that the host waits for.
    """

    launches: float
    outside: float
    waits: float
    blocking: float

    @classmethod
    def of(cls, counted: CountedRounds) -> Budget:
        """What these rounds asked for."""
        figures = (
            counted.a_round(Kind.LAUNCH),
            counted.a_round(Kind.LAUNCH, in_pass=False),
            counted.a_round(Kind.WAIT),
            counted.a_round(Kind.BLOCKING_COPY),
        )
        return cls(*(round(figure, 1) for figure in figures))


BUDGETS: Mapping[tuple[str, int], Budget] = {
    ("chain 5", 1): Budget(1014.0, 342.0, 14.0, 2.0),
    ("chain 5", 8): Budget(2405.0, 1733.0, 91.0, 2.0),
    ("chain 5, greedy", 1): Budget(944.0, 272.0, 19.0, 2.0),
    ("chain 5, greedy", 8): Budget(1877.5, 1205.5, 138.0, 4.0),
    ("layered DySpec 16", 1): Budget(851.5, 319.5, 110.0, 70.0),
    ("layered DySpec 16", 8): Budget(3104.5, 2327.5, 1050.0, 646.0),
    ("layered DySpec 16, greedy", 1): Budget(1173.0, 396.0, 23.5, 2.0),
    ("layered DySpec 16, greedy", 8): Budget(2676.0, 1689.0, 171.0, 9.5),
    ("layered DySpec 64", 1): Budget(1307.5, 740.5, 415.0, 294.0),
    ("layered DySpec 64", 8): Budget(7797.5, 6705.5, 4146.0, 2841.5),
    ("layered DySpec 64, greedy", 1): Budget(1756.0, 664.0, 37.0, 2.0),
    ("layered DySpec 64, greedy", 8): Budget(3699.0, 2467.0, 252.0, 12.0),
    ("Sequoia 16, class order", 1): Budget(2185.5, 1513.5, 149.0, 16.0),
    ("Sequoia 16, class order", 8): Budget(10246.5, 9574.5, 1040.5, 97.0),
    ("layered DySpec 16, recurrent", 1): Budget(632.0, 226.5, 97.0, 66.5),
    ("layered DySpec 16, recurrent", 8): Budget(2131.5, 1568.0, 814.0, 549.5),
    ("layered DySpec 16, hybrid", 1): Budget(531.0, 183.0, 70.0, 48.0),
    ("layered DySpec 16, hybrid", 8): Budget(2104.5, 1519.5, 729.0, 483.5),
}
"""By the name of a call and its rows."""
