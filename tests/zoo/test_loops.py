"""Where a text begins to repeat itself, and what prompt lookup guesses of one."""

from __future__ import annotations

import pytest

from draftwood.zoo.heads.floors import looked_up
from draftwood.zoo.heads.loops import loop_start


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ([1, 2, 3, 4, 5], 5),
        ([9, 8, 7, 7, 7, 7], 3),
        ([9, 7, 7, 7], 4),  # twice again is no loop
        ([5, 1, 2, 1, 2, 1, 2, 1, 2], 3),
        ([1, 2, 1, 2, 1, 2, 1, 2, 3], 9),
        ([], 0),
    ],
)
def test_a_loop_begins_where_all_that_follows_repeats(text: list[int], start: int) -> None:
    assert loop_start(text) == start


def test_prompt_lookup_guesses_what_followed_the_longest_match() -> None:
    assert looked_up([1, 2, 3, 1, 2, 3, 1, 2], 3) == 4
    assert looked_up([4, 5, 6, 2, 2, 7, 2, 9], 3) == 0
    # After 1 came 3 last, but after 0, 1 came 2.
    assert looked_up([0, 1, 2, 5, 1, 3, 0, 1, 2], 8) == 1
