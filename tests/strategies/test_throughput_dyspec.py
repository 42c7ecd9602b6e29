"""`ThroughputDySpec`: its rate by modelled time against fixed trees and ordinary decoding; its states."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest

from draftwood import InvalidInput, Request, SamplingParams, SpeculativeDecoder, TreePolicy
from draftwood.decoding.pass_time import PassTime
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain, LayeredDySpec, ThroughputDySpec
from draftwood.testing.models.proof_models import proof_models
from draftwood.testing.models.toy import ToyBackend
from draftwood.verifiers import RecursiveRejection

TOYS = proof_models(31, vocab_size=12, target=3.0, draft=2.0, mix=0.8)
CHEAP, DEAR = PassTime(1, 0.005), PassTime(1, 0.6)
DRAFT = PassTime(0.05, 0.002)


class Counted(ModelDrafter):
    """Counts the nodes of every call."""

    def __init__(self, backend: ToyBackend) -> None:
        super().__init__(backend)
        self.sizes: list[int] = []

    def distributions(self, requests: Sequence[Request | None]):  # type: ignore[no-untyped-def]
        self.sizes.append(sum(len(request) for request in requests if request is not None))
        return super().distributions(requests)


def rate(policy: TreePolicy, target_time: PassTime, *, rows: int, tokens: int) -> tuple[float, float]:
    """Tokens for a unit of modelled time, and drafted nodes of a row's round."""
    drafter = Counted(ToyBackend(TOYS.draft))
    decoder = SpeculativeDecoder(ToyBackend(TOYS.target), drafter, policy, RecursiveRejection())
    written = time = nodes = turns = 0.0
    rounds = decoder.stream(
        [[row % 12, 1] for row in range(rows)],
        max_new_tokens=tokens,
        sampling=SamplingParams(temperature=1.0),
        seed=range(rows),
        eos_token_id=[],
    )
    for one in rounds:
        if one.prefill:
            continue
        drafted = sum(row.outcome.drafted for row in one.rows)
        written += sum(len(row.tokens) for row in one.rows)
        time += target_time(len(one.rows) + drafted)
        nodes, turns = nodes + drafted, turns + len(one.rows)
    return written / (time + sum(map(DRAFT, drafter.sizes))), nodes / turns


@pytest.mark.parametrize("rows", [1, 6])
@pytest.mark.parametrize("target_time", [CHEAP, DEAR], ids=["cheap", "dear"])
def test_it_keeps_up_with_the_best_fixed_tree_and_with_ordinary_decoding(
    rows: int, target_time: PassTime
) -> None:
    policy = ThroughputDySpec(16, target_time=target_time, draft_time=DRAFT)
    found, nodes = rate(policy, target_time, rows=rows, tokens=200)
    fixed = [
        rate(other, target_time, rows=rows, tokens=200)[0]
        for other in (Chain(2), Chain(4), LayeredDySpec(4), LayeredDySpec(8), LayeredDySpec(16))
    ]
    ordinary = rows / target_time(rows)
    assert found > 0.9 * max(ordinary, *fixed)
    if target_time is DEAR and rows > 1:
        assert ordinary > max(fixed)  # so this case does show decoding without trees
        assert nodes < 0.7
    else:
        assert found > ordinary


def test_some_rows_try_more_than_pays_and_the_rest_do_not() -> None:
    policy = ThroughputDySpec(target_time=DEAR)
    states = [attrs.evolve(policy.first_state(), age=age) for age in (23, 23, 23, 23, 23)]
    plans = policy.share(states)
    assert sorted(plan.depth for plan in plans) == [0, 0, 0, 2, 2]
    assert {plan.depth for plan in policy.share([attrs.evolve(state, age=24) for state in states])} == {0}


def test_a_state_of_another_policy_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no ThroughputState"):
        ThroughputDySpec().plan([(1, 2)])  # type: ignore[list-item]
