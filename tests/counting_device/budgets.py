"""Limits of a round's requests to the device, by strategy and rows: the figures that were measured.

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
EAGLE3: dict[str, Any] = {"draft": "llama-7m-eagle3"}
BLOCK: dict[str, Any] = {"draft": "llama-7m-dspark"}
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
    "EAGLE-3, chain 5": Call(policy=Chain(5), **SAMPLED, **EAGLE3),
    "EAGLE-3, layered DySpec 16": Call(policy=LayeredDySpec(16), **SAMPLED, **EAGLE3),
    "block drafter, chain 5": Call(policy=Chain(5), **SAMPLED, **BLOCK),
    "block drafter, layered DySpec 16": Call(policy=LayeredDySpec(16), **SAMPLED, **BLOCK),
}


@attrs.frozen
class Budget:
    """The average requests of a round to the device.

    Attributes:
        launches: kernels.
        outside: kernels outside model passes.
        waits: of the host for the device.
        blocking: copies to the device that the host waits for.
    """

    launches: float
    outside: float
    waits: float
    blocking: float

    @classmethod
    def of(cls, counted: CountedRounds) -> Budget:
        """Returns the requests of these rounds."""
        figures = (
            counted.a_round(Kind.LAUNCH),
            counted.a_round(Kind.LAUNCH, in_pass=False),
            counted.a_round(Kind.WAIT),
            counted.a_round(Kind.BLOCKING_COPY),
        )
        return cls(*(round(figure, 1) for figure in figures))


BUDGETS: Mapping[tuple[str, int], Budget] = {
    ("chain 5", 1): Budget(705.0, 33.0, 6.0, 0.0),
    ("chain 5", 8): Budget(707.0, 35.0, 6.0, 0.0),
    ("chain 5, greedy", 1): Budget(711.0, 39.0, 6.0, 0.0),
    ("chain 5, greedy", 8): Budget(714.0, 42.0, 6.0, 0.0),
    ("layered DySpec 16", 1): Budget(668.0, 31.0, 5.5, 0.0),
    ("layered DySpec 16", 8): Budget(990.0, 73.0, 9.5, 0.0),
    ("layered DySpec 16, greedy", 1): Budget(828.5, 51.5, 7.5, 0.0),
    ("layered DySpec 16, greedy", 8): Budget(1071.5, 84.5, 10.5, 0.0),
    ("layered DySpec 64", 1): Budget(1048.0, 61.0, 10.5, 0.0),
    ("layered DySpec 64", 8): Budget(1536.5, 129.5, 20.0, 0.0),
    ("layered DySpec 64, greedy", 1): Budget(1176.5, 84.5, 12.0, 0.0),
    ("layered DySpec 64, greedy", 8): Budget(1343.0, 111.0, 14.0, 0.0),
    ("Sequoia 16, class order", 1): Budget(708.0, 36.0, 6.0, 0.0),
    ("Sequoia 16, class order", 8): Budget(710.0, 38.0, 6.0, 0.0),
    ("layered DySpec 16, recurrent", 1): Budget(472.0, 27.0, 3.0, 0.0),
    ("layered DySpec 16, recurrent", 8): Budget(712.5, 70.0, 5.5, 0.0),
    ("layered DySpec 16, hybrid", 1): Budget(454.0, 27.0, 3.0, 0.0),
    ("layered DySpec 16, hybrid", 8): Budget(933.0, 111.0, 8.0, 0.0),
    ("EAGLE-3, chain 5", 1): Budget(765.0, 72.0, 6.0, 0.0),
    ("EAGLE-3, chain 5", 8): Budget(766.0, 73.0, 6.0, 0.0),
    ("EAGLE-3, layered DySpec 16", 1): Budget(446.0, 37.0, 2.0, 0.0),
    ("EAGLE-3, layered DySpec 16", 8): Budget(689.0, 64.0, 5.0, 0.0),
    ("block drafter, chain 5", 1): Budget(469.0, 59.0, 6.0, 0.0),
    ("block drafter, chain 5", 8): Budget(470.0, 60.0, 6.0, 0.0),
    ("block drafter, layered DySpec 16", 1): Budget(434.5, 31.5, 2.5, 0.0),
    ("block drafter, layered DySpec 16", 8): Budget(460.0, 52.0, 5.0, 0.0),
}
"""By the name of a call and its rows."""
