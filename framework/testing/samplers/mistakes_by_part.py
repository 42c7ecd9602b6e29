"""Finds the mistakes of a sampler of chains in each of its parts: test, residual and last token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.testing.samplers.continued_laws import Emitted
from draftwood.testing.samplers.known_mistakes import Mistake, Step
from draftwood.testing.samplers.known_parts import DRAWS, LASTS, RIGHT, TESTS
from draftwood.testing.samplers.sampler_cases import Draft


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


def of_its_parts(evidence: Sequence[tuple[Draft, Emitted]], tolerance: float) -> tuple[Mistake | None, str]:
    """Returns the sampler whose every part has the law that was seen, and what is known of its parts.

    The first is None where a part has the law of no known rule, or of several. The second is then a sentence
    that says which parts are right; it is empty where none is, or where the law has no such parts.
    """
    seen: list[_Seen] = []
    for draft, law in evidence:
        steps = list(_steps(draft, law))
        if not steps:
            return None, ""
        seen += steps
    tests = _explaining(TESTS, lambda rule: all(_tested_so(rule, one, tolerance) for one in seen))
    draws = _explaining(DRAWS, lambda rule: all(_drawn_so(rule, one, tolerance) for one in seen))
    lasts = _explaining(LASTS, lambda rule: all(_ended_so(rule, one, tolerance) for one in seen))
    found = {"ratio": tests, "left": draws, "last": lasts}
    if all(len(rules) == 1 for rules in found.values()):
        says = [rule.says for (rule,) in found.values() if rule.says]
        told = " Another mistake: ".join(says)
        return Mistake(told, tests[0].ratio, draws[0].left, lasts[0].last), ""
    return None, _told([name for name, rules in found.items() if RIGHT not in rules])


def _explaining(rules: Sequence[Mistake], explains: Callable[[Mistake], bool]) -> list[Mistake]:
    return [RIGHT] if explains(RIGHT) else [rule for rule in rules if explains(rule)]


def _told(wrong: Sequence[str]) -> str:
    parts = {
        "ratio": "its tests (it does not accept with min(1, T / D))",
        "left": "the token after a rejection (it is not drawn from the residual max(T - D, 0))",
        "last": "the token after a draft that is accepted as a whole (it is not drawn from the target)",
    }
    if not 0 < len(wrong) < len(parts):
        return ""
    return f"no known mistake, but one in {' and in '.join(parts[one] for one in wrong)}; the rest is right."


def _steps(draft: Draft, law: Emitted) -> Iterator[_Seen]:
    """Yields the steps of a draft; nothing where a text is not of the draft's tokens and one more."""
    tokens = draft.case.draft_tokens.tolist()
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
