"""Texts that run into a loop: where one begins, so that what follows is not counted as guessed."""

from __future__ import annotations

from collections.abc import Sequence

_LONGEST = 32  # tokens of a loop
_TIMES = 3  # how often it must have come again


def loop_start(text: Sequence[int]) -> int:
    """Returns the place from which `text` only repeats what precedes it; its length where it does not.

    A loop is up to 32 tokens that come at least three more times, to the end of the text.
    """
    found = len(text)
    for period in range(1, min(_LONGEST, len(text) // 2) + 1):
        place = len(text)
        while place > period and text[place - 1] == text[place - 1 - period]:
            place -= 1
        if len(text) - place >= _TIMES * period:
            found = min(found, place)
    return found
