"""Finds the threshold of a test without a coin: a token is accepted where some number is large enough."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from draftwood.testing.samplers.known_mistakes import Mistake, Step

_TEST = "accept with probability min(1, T / D)."

_FEWEST = 4
"""Accepted tokens, and rejected ones, without which no threshold is told."""


def _target(step: Step) -> float:
    return float(step.target[step.token])


def _draft(step: Step) -> float:
    return float(step.draft[step.token])


def _entropy(weights: Tensor) -> Tensor:
    return -weights.xlogy(weights).sum()


def _times_entropy(step: Step) -> float:
    return _target(step) * float(_entropy(step.target).exp())


_NUMBERS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("T is at least", _target),
    ("D is at least", _draft),
    ("T / D is at least", lambda step: _target(step) / max(_draft(step), 1e-300)),
    ("T - D is at least", lambda step: _target(step) - _draft(step)),
    (
        "T is at least the target's largest probability times",
        lambda step: _target(step) / float(step.target.max()),
    ),
    ("T is at least the exponential of the target's negative entropy times", _times_entropy),
    ("the target's entropy is at most", lambda step: -float(_entropy(step.target))),
    ("the draft's entropy is at most", lambda step: -float(_entropy(step.draft))),
    ("the draft's largest probability is at least", lambda step: float(step.draft.max())),
)

_RANKS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    ("target", lambda step: -float((step.target > _target(step)).sum())),
    ("draft", lambda step: -float((step.draft > _draft(step)).sum())),
)


def thresholds(accepted: Sequence[Step], rejected: Sequence[Step]) -> Iterator[Mistake]:
    """Yields the tests by a threshold that accept and reject these steps.

    Args:
        accepted: the steps whose token is always accepted.
        rejected: those whose token never is; with the others all steps that were seen.
    """
    if min(len(accepted), len(rejected)) < _FEWEST:
        return
    found = list(_of_one_number(accepted, rejected))
    yield from found or _typical(accepted, rejected)


def _of_one_number(accepted: Sequence[Step], rejected: Sequence[Step]) -> Iterator[Mistake]:
    for rule, number in (*_NUMBERS, *_RANKS):
        lowest, highest = min(map(number, accepted)), max(map(number, rejected))
        if lowest <= highest:
            continue
        ratio = _at_least((lowest + highest) / 2, number)
        if (rule, number) in _NUMBERS:
            # An entropy is negated, so that what is accepted has the larger number.
            ends = (-lowest, -highest) if rule.endswith("at most") else (highest, lowest)
            says = f"it accepts where {rule} {_between(*ends)}, without a coin; {_TEST}"
            yield Mistake(says, ratio=ratio)
        elif lowest - highest == 1:
            kept = f"{round(1 - lowest)} most likely tokens" if lowest else "most likely token"
            yield Mistake(f"it accepts the {rule}'s {kept}, without a coin; {_TEST}", ratio=ratio)


def _between(low: float, high: float) -> str:
    """Returns the range of a threshold in words: one number where both ends are printed alike."""
    first, last = (f"{0.0 if abs(end) < 1e-9 else end:.2g}" for end in (low, high))
    return f"about {first}" if first == last else f"a number from {first} to {last}"


def _typical(accepted: Sequence[Step], rejected: Sequence[Step]) -> Iterator[Mistake]:
    """Yields the test of Medusa's typical acceptance, which has two numbers."""
    least, factor = max(map(_target, rejected)), max(map(_times_entropy, rejected))
    if all(_target(step) > least or _times_entropy(step) > factor for step in accepted):
        yield Mistake(
            "it accepts where T is at least the smaller of a number and a multiple of the exponential of the "
            f"target's negative entropy, as typical acceptance does, which is not lossless; {_TEST}",
            ratio=lambda step: float(_target(step) > least or _times_entropy(step) > factor),
        )


def _at_least(least: float, number: Callable[[Step], float]) -> Callable[[Step], float]:
    return lambda step: float(number(step) >= least)
