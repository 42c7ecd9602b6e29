"""Compares a round's law with the target's, to the full depth of the tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from draftwood.testing.models.toy import NextTokenModel

Text = tuple[int, ...]


@attrs.frozen
class RoundDeviation:
    """The text whose probability is furthest from the target's: what it is, and what it should be."""

    text: Text
    actual: float
    expected: float

    @property
    def error(self) -> float:
        off = abs(self.actual - self.expected)
        return off if off == off else float("inf")  # NaN compares with nothing, and is the worst


def largest_deviation(
    emitted: Mapping[Text, float], target: NextTokenModel, *, prompt: Sequence[int], temperature: float = 1.0
) -> RoundDeviation:
    """Returns the largest deviation of one round's law from the target's.

    The target itself writes what follows a round, so a text s begins with the probability W(s) = A(s) +
    the chance that the round ended on the way to s, times what the target makes of the rest. Here A(s) is
    the chance that the round emits s or more. Every s that a round may emit is looked at.

    Args:
        emitted: the probability of every sequence of tokens that the round emits.
        target: whose law should come out.
        prompt: the text before, the root included.
        temperature: of the target.
    """
    at_least: dict[Text, float] = {}
    longer_than: dict[Text, float] = {}
    for text, chance in emitted.items():
        for length in range(len(text) + 1):
            at_least[text[:length]] = at_least.get(text[:length], 0.0) + chance
            if length < len(text):
                longer_than[text[:length]] = longer_than.get(text[:length], 0.0) + chance
    actual: dict[Text, float] = {(): at_least.get((), 0.0)}
    expected: dict[Text, float] = {(): 1.0}
    worst = RoundDeviation((), actual[()], 1.0)
    for text in sorted(longer_than, key=len):
        # Rounds that ended at or before `text`; the target takes over from there.
        left = actual[text] - longer_than[text]
        row = target.probs([*prompt, *text], temperature)
        emitted_here = [
            longer[-1] for longer in at_least if len(longer) == len(text) + 1 and longer[:-1] == text
        ]
        for token in sorted({*row.nonzero().flatten().tolist(), *emitted_here}):
            p = float(row[token])
            longer = (*text, token)
            actual[longer] = at_least.get(longer, 0.0) + left * p
            expected[longer] = expected[text] * p
            deviation = RoundDeviation(longer, actual[longer], expected[longer])
            if not deviation.error <= worst.error:
                worst = deviation
    return worst
