"""Finds the known mistake that explains a biased sampler: its law is compared with wrong samplers' laws."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.samplers.sampler_cases import Draft

Emitted = dict[tuple[int, ...], float]


@attrs.frozen(eq=False)
class _Step:
    """One test of a chain: target and draft rows, the drafted token, and where it is."""

    targets: Tensor
    drafts: Tensor
    tokens: Sequence[int]
    index: int

    @property
    def target(self) -> Tensor:
        return self.targets[self.index]

    @property
    def draft(self) -> Tensor:
        return self.drafts[self.index]

    @property
    def token(self) -> int:
        return self.tokens[self.index]

    def moved(self, by: int) -> _Step:
        """Returns the step with the target's row `by` rows later, within its rows."""
        rows = torch.arange(len(self.targets)).add(by).clamp(0, len(self.targets) - 1)
        return attrs.evolve(self, targets=self.targets[rows])


def _ratio(step: _Step) -> float:
    target, draft = float(step.target[step.token]), float(step.draft[step.token])
    return target / draft if draft else 1.0


def _residual(step: _Step) -> Tensor:
    left = (step.target - step.draft).clamp(min=0)
    return left if left.any() else step.target


def _without_token(step: _Step) -> Tensor:
    left = step.target.clone()
    left[step.token] = 0
    return left if left.any() else step.target


def _certain(weights: Tensor) -> Tensor:
    return torch.zeros_like(weights).index_fill(0, weights.argmax(), 1)


def _sharpened(weights: Tensor, temperature: float) -> Tensor:
    sharp = weights ** (1 / temperature)
    return sharp / sharp.sum()


@attrs.frozen(eq=False)
class Mistake:
    """A sampler for chains that is wrong in one place.

    Attributes:
        says: the mistake and its remedy, in a sentence.
        ratio: of a step, the chance that its token is accepted, at most 1.
        left: of a step, the weights from which a token is drawn after a rejection.
        last: the weights from which the token after the last one is drawn; None for none.
        shared: whether all steps are tested with one coin.
    """

    says: str
    ratio: Callable[[_Step], float] = _ratio
    left: Callable[[_Step], Tensor] = _residual
    last: Callable[[_Step], Tensor | None] = lambda step: step.targets[-1]
    shared: bool = False


_KNOWN = (
    Mistake(
        "after a rejection it draws from the target; draw from the residual max(T - D, 0).",
        left=lambda step: step.target,
    ),
    Mistake(
        "it accepts with the target's probability T; the draft was drawn, so accept with T / D.",
        ratio=lambda step: float(step.target[step.token]),
    ),
    Mistake(
        "it takes the draft for certain (it accepts with T and draws from T without the rejected token), but "
        "the draft was drawn; accept with T / D and draw from max(T - D, 0).",
        ratio=lambda step: float(step.target[step.token]),
        left=_without_token,
    ),
    Mistake("it accepts with D / T; accept with T / D.", ratio=lambda step: 1 / max(_ratio(step), 1e-300)),
    Mistake(
        "after a rejection it draws from the draft; draw from the residual max(T - D, 0).",
        left=lambda step: step.draft,
    ),
    Mistake("it accepts every drafted token; accept with T / D.", ratio=lambda step: 1.0),
    Mistake(
        "it accepts no drafted token and draws from the residual; accept with T / D.", ratio=lambda step: 0.0
    ),
    Mistake(
        "after a rejection it draws from the target without the rejected token, the rule for drafts that are "
        "not drawn; draw from the residual max(T - D, 0).",
        left=_without_token,
    ),
    Mistake(
        "after a rejection it draws from max(D - T, 0), the residual's other side; draw from max(T - D, 0).",
        left=lambda step: _or((step.draft - step.target).clamp(min=0), step.target),
    ),
    Mistake(
        "after a rejection it draws from |T - D|; draw from max(T - D, 0).",
        left=lambda step: _or((step.target - step.draft).abs(), step.target),
    ),
    Mistake(
        "after a rejection it takes the residual's most likely token; draw from the residual.",
        left=lambda step: _certain(_residual(step)),
    ),
    Mistake(
        "after a rejection it draws from the residual of the first step; take that of the rejected step.",
        left=lambda step: _residual(attrs.evolve(step, index=0)),
    ),
    Mistake(
        "it tests and draws by the target's rows shifted by one: the row after the drafted token; take the "
        "row before it.",
        ratio=lambda step: _ratio(step.moved(1)),
        left=lambda step: _residual(step.moved(1)),
    ),
    Mistake(
        "it tests by the target's row after the drafted token; take the row before it.",
        ratio=lambda step: _ratio(step.moved(1)),
    ),
    Mistake(
        "after a rejection it draws from the residual of the target's next row; take the row that was "
        "tested.",
        left=lambda step: _residual(step.moved(1)),
    ),
    Mistake(
        "it tests by the parent's row of the target; take the row of the step itself.",
        ratio=lambda step: _ratio(step.moved(-1)),
        left=lambda step: _residual(step.moved(-1)),
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the row before the last; take the "
        "last.",
        last=lambda step: step.targets[-2],
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the first row; take the last.",
        last=lambda step: step.targets[0],
    ),
    Mistake(
        "the token after a draft that is accepted as a whole is the target's most likely one; draw it.",
        last=lambda step: _certain(step.targets[-1]),
    ),
    Mistake(
        "the token after a draft that is accepted as a whole comes from the draft; draw it from the target.",
        last=lambda step: step.drafts[-1],
    ),
    Mistake(
        "all steps are tested with one coin, so that acceptances depend on each other; take a coin a step.",
        shared=True,
    ),
    Mistake(
        "it is greedy: it accepts the target's most likely token and emits that after a rejection; draw.",
        ratio=lambda step: float(step.target.argmax() == step.token),
        left=lambda step: _certain(step.target),
        last=lambda step: _certain(step.targets[-1]),
    ),
    *(
        Mistake(
            f"the {side} has an extra temperature ({temperature}); target and draft as they were drawn "
            "belong into test and residual.",
            ratio=lambda step, side=side, temperature=temperature: _ratio(_cooled(step, side, temperature)),  # type: ignore[misc]
            left=lambda step, side=side, temperature=temperature: _residual(_cooled(step, side, temperature)),  # type: ignore[misc]
        )
        for side in ("draft", "target")
        for temperature in (0.5, 0.7, 2.0)
    ),
)


def _or(weights: Tensor, otherwise: Tensor) -> Tensor:
    return weights if weights.any() else otherwise


def _cooled(step: _Step, side: str, temperature: float) -> _Step:
    rows = step.drafts if side == "draft" else step.targets
    cooled = torch.stack([_sharpened(row, temperature) for row in rows])
    return attrs.evolve(step, drafts=cooled) if side == "draft" else attrs.evolve(step, targets=cooled)


def _law(draft: Draft, mistake: Mistake) -> Emitted:
    """Returns the law of the tokens that a sampler with this mistake emits on one draft."""

    def run(rng: Randomness) -> tuple[int, ...]:
        tokens = draft.case.draft_tokens.tolist()
        step = _Step(draft.target_probs.double(), draft.case.draft_probs.double(), tokens, 0)
        lowest = 1.0
        for index in range(len(tokens)):
            step = attrs.evolve(step, index=index)
            chance = min(mistake.ratio(step), 1.0)
            if mistake.shared:
                # Accepted so far: the coin is uniform below the lowest chance.
                chance, lowest = min(chance / lowest, 1.0) if lowest else 0.0, min(lowest, chance)
            if not rng.accept(chance):
                return (*tokens[:index], rng.choose(mistake.left(step)))
        last = mistake.last(step)
        return (*tokens, rng.choose(last)) if last is not None else tuple(tokens)

    law: Emitted = {}
    for weight, text in enumerate_outcomes(run):
        law[text] = law.get(text, 0.0) + weight
    return law


def likely_mistake(possible: Sequence[Draft], emitted: Sequence[Emitted], tolerance: float) -> str:
    """The mistake whose law on every draft is the sampler's, in a sentence; empty if none is, or no chain.

    Where several have this law none is named.
    """
    if any(draft.case.parents.tolist() != list(range(len(draft.case.parents))) for draft in possible):
        return ""
    found = [
        mistake.says
        for mistake in _KNOWN
        if all(
            _off(_law(draft, mistake), law) <= tolerance for draft, law in zip(possible, emitted, strict=True)
        )
    ]
    return found[0] if len(found) == 1 else ""


def _off(one: Emitted, other: Emitted) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys())
