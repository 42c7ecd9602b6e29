"""A head whose drafts are hardly ever accepted is told after the text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from draftwood.apps.generate.weak_head import warning_of


def statistics(accepted: int, rounds: int, drafted: int = 4) -> Any:
    outcomes = [SimpleNamespace(accepted=int(n < accepted), drafted=drafted) for n in range(rounds)]
    records = [SimpleNamespace(rows=[SimpleNamespace(outcome=outcome)]) for outcome in outcomes]
    return SimpleNamespace(rounds=records)


@pytest.mark.parametrize(
    ("accepted", "rounds", "warned"),
    [(8, 100, False), (7, 100, True), (20, 100, False), (0, 39, False), (0, 40, True), (1, 40, False)],
)
def test_fewer_than_chance_allows_is_told(accepted: int, rounds: int, warned: bool) -> None:
    said = warning_of(statistics(accepted, rounds), target="big", head="head")
    assert (said is not None) == warned
    if said is not None:
        assert f"In {rounds} rounds tokens of the head were accepted {accepted} times" in said
        assert "draftwood check-head big head" in said


def test_rounds_without_drafts_say_nothing() -> None:
    assert warning_of(statistics(0, 100, drafted=0), target="big", head="head") is None
