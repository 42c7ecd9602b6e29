"""Rounds in which a policy drafts nothing, compared with ordinary decoding."""

from __future__ import annotations

from collections import Counter
from functools import partial
from statistics import median
from types import FrameType
from typing import Any

from draftwood import SamplingParams, SpeculativeDecoder, TreePolicy
from draftwood.drafters import ModelDrafter
from draftwood.policies import Ordinary, ThroughputDySpec
from draftwood.testing.models.toy import ToyBackend
from draftwood.verifiers import Greedy
from tests.strategies.profiled import profiled
from tests.strategies.test_throughput_dyspec import TOYS, costs

NEVER_PAYS = costs(5.0)


def calls_of_a_round(policy: TreePolicy) -> float:
    """Calls of Python functions in a round of sixteen rows."""
    target, draft = ToyBackend(TOYS.target), ToyBackend(TOYS.draft)
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), policy, Greedy(), pass_costs=NEVER_PAYS)
    rounds = decoder.stream(
        [[row % 12, 1] for row in range(16)],
        max_new_tokens=40,
        sampling=SamplingParams(temperature=0.0),
        seed=range(16),
        eos_token_id=[],
    )
    for _ in range(6):  # the prompt, and what is done once
        next(rounds)
    counts = []
    for _ in range(8):  # in two of them it asks whether a tree pays
        events = Counter[str]()

        def note(_frame: FrameType, event: str, _of: Any, events: Counter[str] = events) -> None:
            events[event] += 1

        profiled(partial(next, rounds), note)
        counts.append(events["call"])
    return median(counts)


def test_a_round_without_draft_calls_little_more_than_ordinary_decoding() -> None:
    ordinary = calls_of_a_round(Ordinary())
    # 16 for each row: its view, and what the round taught.
    assert ordinary < calls_of_a_round(ThroughputDySpec(32, law="top-k")) < ordinary + 16 * 16
