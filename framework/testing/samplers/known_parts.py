"""Known mistakes in one part of a sampler of chains: test, token after a rejection, or last token."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from draftwood.testing.samplers.known_mistakes import KNOWN, Mistake, Step, residual_of

RIGHT = Mistake("")

_TEST = "accept with probability min(1, T / D)."
_DRAW = "draw from the residual max(T - D, 0)."
_LAST = "draw it from the target's last row."


def _at(weights: Tensor, step: Step) -> float:
    return float(weights[step.token])


def _uniform(step: Step) -> Tensor:
    return torch.ones_like(step.target)


def _without_end(step: Step) -> Tensor:
    """The residual as it is, where a search beyond its sum finds token 0."""
    left = (step.target - step.draft).clamp(min=0)
    left[0] += 1 - left.sum()
    return left


def _of_cumulative_draft(step: Step) -> Tensor:
    """The residual of the target to all rows of the draft up to this one, one after the other."""
    left = step.target
    for row in step.drafts[: step.index + 1]:
        left = residual_of(left, row)
    return left


_TESTS: tuple[tuple[str, Callable[[Step], float]], ...] = (
    (
        "it accepts where the coin is above T / D, and rejects below",
        lambda step: 1 - min(_at(step.target, step) / _at(step.draft, step), 1.0),
    ),
    (
        "it accepts with T / (T + D)",
        lambda step: _at(step.target, step) / (_at(step.target, step) + _at(step.draft, step)),
    ),
    ("it accepts with T / max(T)", lambda step: _at(step.target, step) / float(step.target.max())),
    ("it accepts with min(T, D)", lambda step: _at(torch.minimum(step.target, step.draft), step)),
    ("it accepts with T D", lambda step: _at(step.target * step.draft, step)),
    ("it accepts with 1 - D", lambda step: 1 - _at(step.draft, step)),
    ("it accepts with 1 - T", lambda step: 1 - _at(step.target, step)),
    ("it accepts with T - D", lambda step: max(_at(step.target - step.draft, step), 0.0)),
    (
        "it compares the coin with log T - log D, and not the logarithm of the coin",
        lambda step: max(_log(step.target, step) - _log(step.draft, step), 0.0),
    ),
    (
        "it compares the logarithm of the coin with T - D, not with log T - log D",
        lambda step: math.exp(min(_at(step.target - step.draft, step), 0.0)),
    ),
    (
        "it accepts every token alike, with the sum of min(T, D)",
        lambda step: float(torch.minimum(step.target, step.draft).sum()),
    ),
    (
        "it tests by the last row of the target",
        lambda step: _at(step.targets[-1], step) / _at(step.draft, step),
    ),
    (
        "it tests every token by the first row of the target",
        lambda step: _at(step.targets[0], step) / _at(step.draft, step),
    ),
    (
        "it tests every token by the first row of the draft",
        lambda step: _at(step.target, step) / max(_at(step.drafts[0], step), 1e-300),
    ),
    (
        "it tests by the first drafted token at every step",
        lambda step: float(step.target[step.tokens[0]]) / max(float(step.draft[step.tokens[0]]), 1e-300),
    ),
    (
        "it accepts wherever the target gives the token any probability",
        lambda step: float(_at(step.target, step) > 0),
    ),
    (
        "it accepts the tokens whose probability T is at least that of any token of the draft's choice",
        lambda step: float(_at(step.target, step) >= float(step.target[step.draft.argmax()])),
    ),
)


def _log(weights: Tensor, step: Step) -> float:
    return math.log(max(_at(weights, step), 1e-300))


_DRAWS: tuple[tuple[str, Callable[[Step], Tensor]], ...] = (
    ("it draws uniformly from the vocabulary", _uniform),
    (
        "it draws from T where T > D, without taking D away",
        lambda step: step.target * (step.target > step.draft),
    ),
    ("it takes the target's most likely token", lambda step: _one_hot(step.target)),
    ("it draws from T / D", lambda step: step.target / step.draft.clamp(min=1e-12)),
    ("it draws from max(T, D)", lambda step: torch.maximum(step.target, step.draft)),
    ("it draws from min(T, D)", lambda step: torch.minimum(step.target, step.draft)),
    ("it draws from T + D", lambda step: step.target + step.draft),
    ("it draws from T D", lambda step: step.target * step.draft),
    ("it draws from the softmax of T - D", lambda step: (step.target - step.draft).softmax(0)),
    ("it draws from the softmax of T", lambda step: step.target.softmax(0)),
    ("it draws from T (1 - D)", lambda step: step.target * (1 - step.draft)),
    (
        "it draws from T less the part of D of the rejected token only",
        lambda step: _less_at(step.target, step.draft, step.token),
    ),
    (
        "it draws from the residual to the draft's first row",
        lambda step: residual_of(step.target, step.drafts[0]),
    ),
    (
        "it draws from the residual to the draft's last row",
        lambda step: residual_of(step.target, step.drafts[-1]),
    ),
    ("it draws from the residual to all rows of the draft so far", _of_cumulative_draft),
    (
        "it uses the residual without dividing by its sum, and a search beyond it finds token 0",
        _without_end,
    ),
    ("it draws from the residual's square", lambda step: residual_of(step.target, step.draft) ** 2),
    ("it draws from the draft's row after", lambda step: step.draft_moved(1).draft),
    ("it draws from the target's row after", lambda step: step.moved(1).target),
    ("it draws from the target's row before", lambda step: step.moved(-1).target),
    ("it takes the rejected token", lambda step: _one(step.target, step.token)),
    ("it takes the draft's most likely token", lambda step: _one_hot(step.draft)),
    ("it takes token 0", lambda step: _one(step.target, 0)),
    (
        "it draws from the draft without the rejected token",
        lambda step: step.draft.index_fill(0, torch.tensor(step.token), 0),
    ),
)

_LASTS: tuple[tuple[str, Callable[[Step], Tensor]], ...] = (
    ("is drawn uniformly from the vocabulary", _uniform),
    ("is the last drafted token again", lambda step: _one(step.target, step.token)),
    ("is always token 0", lambda step: _one(step.target, 0)),
    ("is the draft's most likely one", lambda step: _one_hot(step.draft)),
    (
        "is drawn from the target without the last drafted token",
        lambda step: step.targets[-1].index_fill(0, torch.tensor(step.token), 0),
    ),
    (
        "is drawn from the residual of the target's last row and the draft's last row",
        lambda step: residual_of(step.targets[-1], step.draft),
    ),
    ("is drawn from the draft's first row", lambda step: step.drafts[0]),
    ("is drawn from the softmax of the probabilities", lambda step: step.targets[-1].softmax(0)),
    ("is drawn from the mean of all rows", lambda step: step.targets.mean(0)),
)


def _one(weights: Tensor, token: int) -> Tensor:
    return torch.zeros_like(weights).index_fill(0, torch.tensor(token), 1)


def _one_hot(weights: Tensor) -> Tensor:
    return _one(weights, int(weights.argmax()))


def _less_at(target: Tensor, draft: Tensor, token: int) -> Tensor:
    left = target.clone()
    left[token] = max(float(target[token] - draft[token]), 0.0)
    return left


_KNOWN_OF_ONE_PART = [one for one in KNOWN if not one.shared]

TESTS = [
    *(one for one in _KNOWN_OF_ONE_PART if one.left is RIGHT.left and one.last is RIGHT.last),
    *(Mistake(f"{says}; {_TEST}", ratio=rule) for says, rule in _TESTS),
]
"""Mistakes in the test of a drafted token only."""

DRAWS = [
    *(one for one in _KNOWN_OF_ONE_PART if one.ratio is RIGHT.ratio and one.last is RIGHT.last),
    *(Mistake(f"after a rejection {says}; {_DRAW}", left=rule) for says, rule in _DRAWS),
]
"""Mistakes in the token after a rejection only."""

LASTS = [
    *(one for one in _KNOWN_OF_ONE_PART if one.ratio is RIGHT.ratio and one.left is RIGHT.left),
    *(
        Mistake(f"the token after a draft that is accepted as a whole {says}; {_LAST}", last=rule)
        for says, rule in _LASTS
    ),
]
"""Mistakes in the token after a whole draft only."""
