"""Acceptance vectors as options: their form, and what they must satisfy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from draftwood.base.errors import InvalidInput

CERTAINTY_POWER = 16
"""A child drawn with probability p from what its siblings left is all but certain as p to this power is."""
_CERTAINTY_FROM = 0.4  # below, the power is under 1e-6; dropped, so that rounding orders no equal slots


def certainty(chance: float) -> float:
    """Returns how certain a child drawn with this probability, after its siblings, is to be accepted."""
    return chance**CERTAINTY_POWER if chance >= _CERTAINTY_FROM else 0.0


def check_acceptance(acceptance: Sequence[float]) -> None:
    """Raise `InvalidInput` unless the entries are in [0, 1] and sum to at most 1."""
    if not acceptance:
        raise InvalidInput("acceptance is empty; give the chance of every child, the first one first.")
    for rank, chance in enumerate(acceptance):
        if not 0 <= chance <= 1:
            raise InvalidInput(f"acceptance[{rank}] is {chance}; give chances in [0, 1].")
    if sum(acceptance) > 1 + 1e-6:
        raise InvalidInput(
            f"acceptance sums to {sum(acceptance):.4g}; at most one sibling is accepted, so give at most 1."
        )


def as_acceptance(values: Sequence[float] | str) -> tuple[float, ...]:
    words = values.split(",") if isinstance(values, str) else values
    try:
        return tuple(float(value) for value in words)
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"acceptance is {values!r:.80}; give numbers such as 0.5,0.2,0.1.") from error


def validate_acceptance(_: object, __: object, values: tuple[float, ...]) -> None:
    check_acceptance(values)


def conditional_acceptance(acceptance: Sequence[float]) -> Iterator[float]:
    """The chance of every child once its earlier siblings have failed."""
    left = 1.0
    for chance in acceptance:
        yield chance / left if left > chance else 1.0
        left = max(left - chance, 0.0)
