"""Which known mistake a biased sampler's law looks like: the laws of wrong samplers, computed to compare."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.samplers.sampler_cases import Draft

Emitted = dict[tuple[int, ...], float]

MISTAKES = {
    "target": "after a rejection it draws from the target; draw from the residual max(T - D, 0).",
    "ignored": "it accepts with the target's probability alone; the draft was drawn, so accept with T / D.",
    "inverse": "it accepts with D / T; accept with T / D.",
    "draft": "after a rejection it draws from the draft; draw from the residual max(T - D, 0).",
    "all": "it accepts every drafted token.",
    "rejected": "after a rejection it draws from the target without the rejected token, the rule for drafts "
    "that are not drawn; draw from the residual max(T - D, 0).",
    "bonus": "the token behind a draft that is accepted as a whole comes from the row before the last.",
    "first bonus": "the token behind a draft that is accepted as a whole comes from the first row.",
}
"""Of a sampler for chains, by the name under which `wrong_law` knows it."""


def wrong_law(draft: Draft, mistake: str) -> Emitted:
    """The law of what a sampler for chains with this mistake emits on one draft."""

    def run(rng: Randomness) -> tuple[int, ...]:
        return _wrong(draft, rng, mistake)

    law: Emitted = {}
    for weight, text in enumerate_outcomes(run):
        law[text] = law.get(text, 0.0) + weight
    return law


def _wrong(draft: Draft, rng: Randomness, mistake: str) -> tuple[int, ...]:
    out: list[int] = []
    tokens = draft.case.draft_tokens.tolist()
    proposed = draft.case.draft_probs.double()
    for index, token in enumerate(tokens):
        target, drawn = draft.target_probs[index], proposed[index]
        t, d = float(target[token]), float(drawn[token])
        ratio = {"ignored": t, "inverse": d / t if t else 1.0, "all": 1.0}.get(mistake, t / d)
        if not rng.accept(min(ratio, 1.0)):
            return (*out, rng.choose(_left(target, drawn, token, mistake)))
        out.append(token)
    row = {"bonus": -2, "first bonus": 0}.get(mistake, -1)
    return (*out, rng.choose(draft.target_probs[row]))


def _left(target: Tensor, drawn: Tensor, token: int, mistake: str) -> Tensor:
    left = (target - drawn).clamp(min=0)
    if mistake == "draft":
        left = drawn
    elif mistake == "rejected":
        left = target.clone()
        left[token] = 0
    return left if mistake != "target" and left.any() else target


def likely_mistake(possible: Sequence[Draft], emitted: Sequence[Emitted], tolerance: float) -> str:
    """The mistake whose law on every draft is the sampler's, in a sentence; empty if none is, or no chain."""
    if any(draft.case.parents.tolist() != list(range(len(draft.case.parents))) for draft in possible):
        return ""
    for mistake, sentence in MISTAKES.items():
        if all(
            _off(wrong_law(draft, mistake), law) <= tolerance
            for draft, law in zip(possible, emitted, strict=True)
        ):
            return sentence
    return ""


def _off(one: Emitted, other: Emitted) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys())
