"""Wrong samplers of chains whose mistakes have no rule of their own, or look like another's on few models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.testing import SamplerCase
from tests.framework.foreign_samplers import residual

TESTS, TOKEN, LAST = "in its tests", "in the token after a rejection", "in the token after a draft"


@attrs.frozen(eq=False)
class Place:
    """One step of a chain: the target's and the draft's row, the drafted token, its place, and the case."""

    t: Tensor
    d: Tensor
    token: int
    place: int
    case: SamplerCase

    @property
    def ratio(self) -> Tensor:
        return self.t[self.token] / self.d[self.token]

    @property
    def ratios(self) -> Tensor:
        """The ratios of the steps up to this one."""
        tokens = self.case.draft_tokens[: self.place + 1]
        at = torch.arange(len(tokens))
        return self.case.target_probs[at, tokens] / self.case.draft_probs[at, tokens]


def coin() -> Tensor:
    return torch.rand((), dtype=torch.float64)


def chain(
    *,
    kept: Callable[[Place], Any] = lambda at: coin() < at.ratio,
    left: Callable[[Place], Tensor] = lambda at: residual(at.t, at.d),
    last: Callable[[SamplerCase], Tensor] = lambda case: case.target_probs[-1],
    seen: Callable[[SamplerCase], SamplerCase] = lambda case: case,
) -> Callable[[SamplerCase], list[int]]:
    """A sampler of chains with its own test, weights after a rejection, last weights, or view of the case."""

    def sampler(case: SamplerCase) -> list[int]:
        case = seen(case)
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            at = Place(case.target_probs[place], case.draft_probs[place], token, place, case)
            if not kept(at):
                return [*tokens[:place], int(torch.multinomial(left(at), 1))]
        return [*tokens, int(torch.multinomial(last(case), 1))]

    return sampler


def entropy(weights: Tensor) -> Tensor:
    return -torch.xlogy(weights, weights).sum()


def rank(weights: Tensor, token: int) -> int:
    return int((weights > weights[token]).sum())


def greedy(weights: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(weights.argmax(), len(weights)).double()


def top_p(weights: Tensor, p: float) -> Tensor:
    largest, order = weights.sort(descending=True)
    return torch.zeros_like(weights).index_copy(0, order, largest * (largest.cumsum(0) - largest < p))


def row_cooled(row: int) -> Callable[[SamplerCase], SamplerCase]:
    def seen(case: SamplerCase) -> SamplerCase:
        rows = case.target_probs.clone()
        rows[row] = rows[row] ** 2 / (rows[row] ** 2).sum()
        return attrs.evolve(case, target_probs=rows)

    return seen


def draft_flipped(dim: int) -> Callable[[SamplerCase], SamplerCase]:
    return lambda case: attrs.evolve(case, draft_probs=case.draft_probs.flip(dim))


THRESHOLDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "T of 0.3": (chain(kept=lambda at: at.t[at.token] >= 0.3), ("where T is at least a number from",)),
    "T of 0.5": (chain(kept=lambda at: at.t[at.token] >= 0.5), ("where T is at least a number from",)),
    "T of 0.1": (chain(kept=lambda at: at.t[at.token] >= 0.1), ("where T is at least a number from",)),
    "D of 0.4": (chain(kept=lambda at: at.d[at.token] >= 0.4), ("where D is at least about 0.4",)),
    "a ratio of 0.7": (chain(kept=lambda at: at.ratio >= 0.7), ("where T / D is at least a number from",)),
    "half of the largest": (
        chain(kept=lambda at: at.t[at.token] >= at.t.max() / 2),
        ("where T is at least the target's largest probability times",),
    ),
    "by entropy only": (
        chain(kept=lambda at: at.t[at.token] >= 0.3 * (-entropy(at.t)).exp()),
        ("where T is at least the exponential of the target's negative entropy",),
    ),
    "typical": (
        chain(
            kept=lambda at: at.t[at.token] >= (0.3 * (-entropy(at.t)).exp()).clamp(max=0.09),
            left=lambda at: at.t,
        ),
        ("typical acceptance", "Another mistake: after a rejection it draws from the target;"),
    ),
    "two likeliest": (chain(kept=lambda at: rank(at.t, at.token) < 2), ("the target's 2 most likely",)),
    "draft's likeliest": (
        chain(kept=lambda at: rank(at.d, at.token) < 1),
        ("the draft's most likely token",),
    ),
    "a sure target": (chain(kept=lambda at: entropy(at.t) < 0.7), ("the target's entropy is at most",)),
    "a sure draft": (chain(kept=lambda at: at.d.max() > 0.8), ("the draft's largest probability is at",)),
    "T of 0.3, else greedy": (
        chain(
            kept=lambda at: at.t[at.token] >= 0.3,
            left=lambda at: greedy(at.t),
            last=lambda case: greedy(case.target_probs[-1]),
        ),
        (
            "where T is at least a number from",
            "after a rejection it takes the target's most likely token",
            "accepted as a whole is the target's most likely one",
        ),
    ),
    "near in total variation": (chain(kept=lambda at: (at.t - at.d).abs().sum() < 0.6), (TESTS,)),
    "near in relative entropy": (
        chain(kept=lambda at: torch.xlogy(at.t, at.t / at.d.clamp(min=1e-9)).sum() < 0.2),
        (TESTS,),
    ),
    "more than the draft's best": (
        chain(kept=lambda at: at.t[at.token] >= 0.6 * at.t[at.d.argmax()]),
        (TESTS,),
    ),
}
"""Tests without a coin, with words of their names."""

UNRULED: dict[str, tuple[Any, tuple[str, ...]]] = {
    "a ratio with a small number": (
        chain(kept=lambda at: coin() < at.t[at.token] / (at.d[at.token] + 0.05)),
        (TESTS,),
    ),
    "the likeliest always": (
        chain(kept=lambda at: rank(at.t, at.token) < 1 or coin() < at.ratio),
        (TESTS,),
    ),
    "likely ones always": (chain(kept=lambda at: at.t[at.token] > 0.8 or coin() < at.ratio), (TESTS,)),
    "unlikely ones never": (chain(kept=lambda at: at.t[at.token] > 0.1 and coin() < at.ratio), (TESTS,)),
    "the first always": (chain(kept=lambda at: at.place == 0 or coin() < at.ratio), (TESTS,)),
    "the lowest ratio": (chain(kept=lambda at: coin() < at.ratios.min()), (TESTS,)),
    "the mean ratio": (chain(kept=lambda at: coin() < at.ratios.mean()), (TESTS,)),
    "the geometric mean": (
        chain(kept=lambda at: coin() < at.ratios.prod() ** (1 / len(at.ratios))),
        (TESTS,),
    ),
    "draft rows exchanged": (chain(seen=draft_flipped(0)), (TESTS, TOKEN)),
    "draft tokens exchanged": (chain(seen=draft_flipped(-1)), (TESTS, TOKEN)),
    "the draft of the token before": (
        chain(kept=lambda at: coin() < at.t[at.token] / at.d.roll(1)[at.token]),
        (TESTS,),
    ),
    "the first row cooled": (chain(seen=row_cooled(0)), (TESTS, TOKEN)),
    "the second row cooled": (chain(seen=row_cooled(1)), (TESTS, TOKEN)),
    "the last row cooled": (chain(seen=row_cooled(-1)), ("temperature (0.5) in the last token",)),
    "a residual of at least 0.05": (chain(left=lambda at: (at.t - at.d).clamp(min=0.05)), (TOKEN,)),
    "small parts of the residual dropped": (
        chain(left=lambda at: residual(at.t, at.d) * (residual(at.t, at.d) > 0.3) + 1e-12),
        (TOKEN,),
    ),
    "a tenth of T below D": (
        chain(left=lambda at: torch.where(at.t > at.d, at.t - at.d, 0.1 * at.t)),
        (TOKEN,),
    ),
    "the mean draft": (chain(left=lambda at: residual(at.t, at.case.draft_probs.mean(0))), (TOKEN,)),
    "the residual of a top-p": (chain(left=lambda at: residual(top_p(at.t, 0.8), at.d)), (TOKEN,)),
    "a top-p for the last token": (chain(last=lambda case: top_p(case.target_probs[-1], 0.8)), (LAST,)),
    "both rows for the last token": (
        chain(last=lambda case: case.target_probs[-1] * case.draft_probs[-1]),
        (LAST,),
    ),
}
"""Mistakes without a rule, with the parts that are wrong, or words of the name of the same law."""

CHOSEN: dict[str, tuple[Any, tuple[str, ...]]] = {
    "the target after a rejection": (
        chain(kept=lambda at: coin() < at.t[at.token], left=lambda at: at.t),
        ("it draws from the target",),
    ),
    "taken as drawn": (chain(), ("though the siblings were chosen and not drawn",)),
    "greedy at the end": (
        chain(
            kept=lambda at: coin() < at.t[at.token],
            left=lambda at: at.t.index_fill(0, torch.tensor(at.token), 0),
            last=lambda case: greedy(case.target_probs[-1]),
        ),
        ("after an accepted leaf is the target's most likely one",),
    ),
    "by the draft": (chain(kept=lambda at: coin() < at.d[at.token]), ("",)),
}
"""Mistakes where the drafted tokens are the most likely ones, and not drawn."""
