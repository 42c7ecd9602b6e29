"""The verdict on a head, from the measurements of it and of its parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.heads.floors import Floors
from draftwood.zoo.heads.parts import Added
from draftwood.zoo.heads.settings import Found
from draftwood.zoo.heads.verdict import Grade, Verdict, verdict_of
from tests.strategies import block_heads, test_p_eagle
from tests.zoo.test_broken_heads import target, texts


def with_parts(
    first: float, *gains: float, error: float = 0.005, pieces: Sequence[Added] = (), head: Any = None
) -> Verdict:
    """The verdict on a head of which so many first tokens are right, whose parts add so much."""
    head = head or test_p_eagle.random_head(test_p_eagle.KINDS["plain"])
    found = [Found(name="as configured", by_depth=(first, first), gain=0.0, likelier=0.0, clear=False)]
    added = [
        Added(name=f"part {number}", by_depth=(0.1, 0.1), gain=gain, error=error)
        for number, gain in enumerate(gains)
    ]
    floors = Floors(unigram=0.04, lookup=0.1)
    return verdict_of(test_p_eagle.target(), head, SHORT_TEXTS, found, floors, [*added, *pieces])


SHORT_TEXTS = [Rows(tokens=torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]), prompt=2, temperature=0.0)]


@pytest.mark.parametrize(
    ("first", "gains", "grade", "sentence"),
    [
        (0.5, (0.3, 0.02), Grade.right, "above what needs no head"),
        (0.5, (0.3, 0.001), Grade.weak, "without part 1 its guesses are no worse"),
        (0.5, (0.3, -0.009), Grade.weak, "without part 1 its guesses are no worse"),
        (0.5, (0.3, -0.02), Grade.broken, "without part 1 its guesses are better, by 0.020 nats"),
        (0.15, (0.3, 0.02), Grade.weak, "a chain of 2 gains 0.17 tokens per round. Each of its parts helps"),
        (0.15, (0.3, 0.001), Grade.broken, "0.150 of first tokens are right, .* without part 1"),
        (0.05, (0.3, 0.02), Grade.broken, "no more than 0.060 by chance"),
    ],
)
def test_the_three_verdicts(first: float, gains: tuple[float, ...], grade: Grade, sentence: str) -> None:
    verdict = with_parts(first, *gains)
    assert verdict.grade is grade, verdict.sentence
    assert re.search(sentence, verdict.sentence), verdict.sentence
    assert verdict.broken == (grade is Grade.broken)


def test_a_part_harms_by_more_than_chance() -> None:
    assert not with_parts(0.5, 0.3, -0.02, error=0.02).broken


def test_a_part_of_another_scale() -> None:
    def of(right: float) -> Verdict:
        part = Added(
            name="the part",
            by_depth=(0.1,),
            gain=0.3,
            error=0.01,
            weaker=0.2,
            weaker_error=0.02,
            weaker_right=right,
        )
        return with_parts(0.5, 0.3, pieces=[part])

    assert of(0.03).broken
    assert of(0.01).grade is Grade.weak
    assert "with less of the part its guesses are likelier, by 0.200 nats" in of(0.01).sentence
    assert of(-0.01).grade is Grade.right


def judged(head: Any, second: float) -> Verdict:
    """The verdict on a head with these second tokens right, six tenths of first ones, in one setting."""
    found = [Found(name="as configured", by_depth=(0.6, second), gain=0.0, likelier=0.0, clear=False)]
    return verdict_of(target(), head, texts(), found, Floors(unigram=0.1, lookup=0.1), [])


def test_a_head_that_does_not_know_the_first_token_may_miss_the_second() -> None:
    """Its guess of a second token is that of all first ones; a wrong mask shows below what needs no head."""
    of_depths = block_heads.random_head(block_heads.config(markov_rank=0))
    corrected = block_heads.random_head(block_heads.config(markov_rank=3))
    for blind in (test_p_eagle.random_head(test_p_eagle.KINDS["plain"]), of_depths):
        assert not judged(blind, 0.15).broken
        assert judged(blind, 0.05).broken
    assert judged(corrected, 0.15).broken
