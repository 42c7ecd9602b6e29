"""Finds the mistakes of a sampler of chains in each of its parts: test, residual and last token."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.testing.samplers.continued_laws import Emitted
from draftwood.testing.samplers.known_blocks import (
    BLOCK_RESIDUAL,
    BLOCK_TEST,
    BLOCK_TESTS,
    TOKEN_RESIDUAL,
)
from draftwood.testing.samplers.known_mistakes import Mistake, Step
from draftwood.testing.samplers.known_parts import DRAWS, LASTS, RIGHT, TESTS
from draftwood.testing.samplers.sampler_cases import Draft
from draftwood.testing.samplers.threshold_tests import thresholds

_PARTS = (
    "its tests (it does not accept with min(1, T / D))",
    "the token after a rejection (it is not drawn from the residual max(T - D, 0))",
    "the token after a draft that is accepted as a whole (it is not drawn from the target)",
)

_UNREACHED = (
    "it never tests a token",
    "it never rejects a token, so that nothing is known of the token after a rejection",
    "it never accepts a whole draft, so that nothing is known of the token after one",
)

_SHOWN = 1e-3
"""Probability on some draft with which a part must be reached to be called right."""


@attrs.frozen(eq=False)
class _Seen:
    """One step of a sampler on a draft, as its law shows it.

    Attributes:
        step: the step.
        reached: the probability that it is made.
        accepted: the probability that it is made and its token accepted.
        left: float64 `[vocab]`: the probabilities of the tokens after its rejection.
        last: float64 `[vocab]`: of the tokens after a whole draft; None before the last step.
    """

    step: Step
    reached: float
    accepted: float
    left: Tensor
    last: Tensor | None


def of_its_parts(evidence: Sequence[tuple[Draft, Emitted]], tolerance: float) -> tuple[list[Mistake], str]:
    """Returns the samplers whose every part has the law that was seen, and a sentence on the right parts.

    There are none where a part has the law of no known rule. The sentence is empty where no part is right, or
    where the law has no such parts.
    """
    seen = _all_steps(evidence)
    if not seen:
        return [], ""
    known = (*TESTS, *BLOCK_TESTS)
    tests = _explaining(known, lambda rule: all(_tested_so(rule, one, tolerance) for one in seen))
    tests = tests or list(thresholds(*_certain(seen, tolerance)))
    draws = _explaining(
        (*DRAWS, BLOCK_RESIDUAL), lambda rule: all(_drawn_so(rule, one, tolerance) for one in seen)
    )
    lasts = _explaining(LASTS, lambda rule: all(_ended_so(rule, one, tolerance) for one in seen))
    whole = [_together(*parts) for parts in itertools.product(tests, draws, lasts)]
    right = (
        (RIGHT, BLOCK_TEST),
        (RIGHT, BLOCK_RESIDUAL) if set(tests) & set(BLOCK_TESTS) else (RIGHT,),
        (RIGHT,),
    )
    reached = (
        max(one.reached for one in seen),
        max(float(one.left.sum()) for one in seen),
        max(float(one.last.sum()) for one in seen if one.last is not None),
    )
    parts = zip((tests, draws, lasts), right, strict=True)
    good = [any(rule in allowed for rule in rules) for rules, allowed in parts]
    return whole, _told(good, [chance > _SHOWN for chance in reached])


def tests_without_a_coin(evidence: Sequence[tuple[Draft, Emitted]], tolerance: float) -> bool:
    """Returns whether a sampler of chains accepts some tokens always and all others never."""
    return all(_certain(_all_steps(evidence), tolerance))


def _all_steps(evidence: Sequence[tuple[Draft, Emitted]]) -> list[_Seen]:
    """Returns the steps of all drafts; none where a draft has no steps as a chain has."""
    steps = [list(_steps(draft, law)) for draft, law in evidence]
    return list(itertools.chain.from_iterable(steps)) if all(steps) else []


def _explaining(rules: Sequence[Mistake], explains: Callable[[Mistake], bool]) -> list[Mistake]:
    return [RIGHT] if explains(RIGHT) else [rule for rule in rules if explains(rule)]


def _together(test: Mistake, draw: Mistake, last: Mistake) -> Mistake:
    told = [test, draw, last]
    if draw is BLOCK_RESIDUAL and test in BLOCK_TESTS:
        told = [last] if test is BLOCK_TEST else [test, last]
    elif test is BLOCK_TEST and draw is not RIGHT:
        told = [draw, last]
    elif test in BLOCK_TESTS and draw is RIGHT and test is not BLOCK_TEST:
        told = [test, TOKEN_RESIDUAL, last]
    says = " Another mistake: ".join(rule.says for rule in told if rule.says)
    return Mistake(says, test.ratio, draw.left, last.last)


def _certain(seen: Sequence[_Seen], tolerance: float) -> tuple[list[Step], list[Step]]:
    """Returns the steps that always accept and those that never do; none where a step does both."""
    made = [one for one in seen if one.reached > tolerance]
    accepted = [one.step for one in made if one.reached - one.accepted <= tolerance]
    rejected = [one.step for one in made if one.accepted <= tolerance]
    return (accepted, rejected) if len(accepted) + len(rejected) == len(made) else ([], [])


def _told(good: Sequence[bool], reached: Sequence[bool]) -> str:
    """Returns the sentence on the parts: those that are wrong, right, and never reached."""
    wrong = [part for part, right in zip(_PARTS, good, strict=True) if not right]
    if not 0 < len(wrong) < len(_PARTS):
        return ""
    rest = ["the rest is right"] if any(map(all, zip(good, reached, strict=True))) else []
    unknown = [why for why, known in zip(_UNREACHED, reached, strict=True) if not known]
    return f"no known mistake, but one in {' and in '.join(wrong)}; {', and '.join([*rest, *unknown])}."


def _steps(draft: Draft, law: Emitted) -> Iterator[_Seen]:
    """Yields the steps of a draft of a chain; nothing where a text is not of its tokens and one more."""
    tokens = draft.case.draft_tokens.tolist()
    if draft.case.parents.tolist() != list(range(len(tokens))):
        return
    rows = draft.target_probs.double()
    after = torch.zeros_like(rows)
    for text, chance in law.items():
        if not 1 <= len(text) <= len(tokens) + 1 or list(text[:-1]) != tokens[: len(text) - 1]:
            return
        if not 0 <= text[-1] < rows.shape[1]:
            return
        after[len(text) - 1, text[-1]] += chance
    reached = after.sum(1).flip(0).cumsum(0).flip(0).tolist()
    step = Step(rows, draft.case.draft_probs.double(), tokens, 0)
    for index in range(len(tokens)):
        yield _Seen(
            attrs.evolve(step, index=index),
            reached[index],
            reached[index + 1],
            after[index],
            after[-1] if index == len(tokens) - 1 else None,
        )


def _tested_so(rule: Mistake, seen: _Seen, tolerance: float) -> bool:
    chance = min(max(rule.ratio(seen.step), 0.0), 1.0)
    return abs(seen.reached * chance - seen.accepted) <= tolerance


def _drawn_so(rule: Mistake, seen: _Seen, tolerance: float) -> bool:
    weights = rule.left(seen.step)
    chance = seen.left.sum()
    return _near(weights / weights.sum() * chance, seen.left, tolerance)


def _ended_so(rule: Mistake, seen: _Seen, tolerance: float) -> bool:
    if seen.last is None:
        return True
    weights = rule.last(seen.step)
    return weights is not None and _near(weights / weights.sum() * seen.last.sum(), seen.last, tolerance)


def _near(one: Tensor, other: Tensor, tolerance: float) -> bool:
    return bool(((one - other).abs() <= tolerance).all()) or not bool(other.any())
