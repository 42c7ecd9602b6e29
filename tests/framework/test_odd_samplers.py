"""Right samplers written in odd ways pass or get no verdict; wrong ones with rare faults are caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from draftwood import Deterministic, SamplingParams
from draftwood.testing import LawBroken, SamplerCase, measure_sampler, prove_sampler, sampler_models
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from tests.framework.foreign_samplers import residual
from tests.framework.other_samplers import padded_batch

ALL = sampler_models()
FEW = {name: ALL[name] for name in ("plain", "a target that forbids tokens", "a draft near the target")}
PLAIN = {"plain": ALL["plain"]}
BATCH: dict[str, Any] = {"samples": 60_000, "batched": True, "dtype": torch.float32, "models": PLAIN}


def coin() -> torch.Tensor:
    return torch.rand((), dtype=torch.float64)


def drawn(weights: torch.Tensor) -> int:
    return int(torch.multinomial(weights, 1))


def leviathan(
    case: SamplerCase,
    draw: Callable[[torch.Tensor], int] = drawn,
    rejects: Callable[[int, int, torch.Tensor, torch.Tensor], bool | None] = lambda *_: None,
    left: Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor] = lambda _, __, t, d: residual(t, d),
) -> list[int]:
    """Leviathan's rule; the functions get the place, the token, and the target's and the draft's rows."""
    tokens = case.draft_tokens.tolist()
    for place, token in enumerate(tokens):
        step = (place, token, case.target_probs[place], case.draft_probs[place])
        told = rejects(*step)
        rejected = not coin() * step[3][token] < step[2][token] if told is None else told
        if rejected:
            return [*tokens[:place], draw(left(*step))]
    return [*tokens, draw(case.target_probs[-1])]


def numpy_in_place(case: SamplerCase) -> Any:
    p, q, tokens = case.target_probs.numpy(), case.draft_probs.numpy(), case.draft_tokens.numpy()
    n, out = len(tokens), np.full(len(tokens) + 1, -1)
    coins = np.random.rand(n)
    for i in range(n):
        coins[i] *= q[i, tokens[i]]
        if coins[i] < p[i, tokens[i]]:
            out[i] = tokens[i]
            continue
        p[i] -= q[i]
        np.maximum(p[i], 0, out=p[i])
        out[i] = np.random.choice(len(p[i]), p=p[i] / p[i].sum())
        return out[out >= 0]
    out[n] = np.random.choice(p.shape[1], p=p[n] / p[n].sum())
    return out


def numpy_inverse(weights: torch.Tensor) -> int:
    heights = np.cumsum(weights.numpy())
    return int(np.searchsorted(heights, np.random.rand() * heights[-1], side="right"))


def sorted_first(weights: torch.Tensor) -> int:
    values, order = torch.sort(weights, descending=True)
    heights = values.cumsum(0)
    place = torch.searchsorted(heights, torch.rand(1, dtype=torch.float64) * heights[-1], right=True)
    return int(order[place])


def alias_method(weights: torch.Tensor) -> int:
    n = len(weights)
    heights, other = [float(x) * n for x in weights / weights.sum()], list(range(n))
    small = [i for i, x in enumerate(heights) if x < 1]
    large = [i for i, x in enumerate(heights) if x >= 1]
    while small and large:
        low, high = small.pop(), large.pop()
        other[low] = high
        heights[high] -= 1 - heights[low]
        (small if heights[high] < 1 else large).append(high)
    heights = [1.0 if i in small + large else x for i, x in enumerate(heights)]
    column = random.randrange(n)
    return column if random.random() < heights[column] else other[column]


def until_one_fits(weights: torch.Tensor) -> int:
    most = float(weights.max())
    while True:
        token = random.randrange(len(weights))
        if random.random() < float(weights[token]) / most:
            return token


def logits_of_minus_infinity(case: SamplerCase) -> Any:
    target, draft = case.target_logits.log_softmax(-1), case.draft_probs.log()
    left = target[-1]
    length = len(case.draft_tokens)
    for place, token in enumerate(case.draft_tokens.tolist()):
        if not coin().log() < target[place, token] - draft[place, token]:
            length, left = place, (target[place].exp() - draft[place].exp()).clamp(min=0).log()
            break
    noise = torch.empty_like(left).exponential_().log()
    return [*case.draft_tokens[:length].tolist(), int((left - noise).argmax())]


def padded_vocabulary(case: SamplerCase) -> Any:
    wider: dict[str, Any] = {
        name: torch.nn.functional.pad(getattr(case, name), (0, 5)) for name in ("target_probs", "draft_probs")
    }
    return leviathan(attrs.evolve(case, **wider))


def one_hot_draft(case: SamplerCase) -> Any:
    certain = torch.nn.functional.one_hot(case.draft_tokens, case.target_probs.shape[-1]).double()
    return leviathan(attrs.evolve(case, draft_probs=certain))


def by_vmap(case: SamplerCase) -> torch.Tensor:
    n = case.draft_tokens.shape[1]

    def one(p, q, tokens, coins, noise):
        ratio = (p[:n].gather(1, tokens[:, None]) / q.gather(1, tokens[:, None]))[:, 0]
        length = (coins < ratio).long().cumprod(0).sum()
        none = torch.cat([q, torch.zeros_like(q[:1])])
        left = p.index_select(0, length[None])[0] - none.index_select(0, length[None])[0]
        last = (left.clamp(min=0) / noise).argmax()
        place = torch.arange(n + 1)
        whole = torch.cat([tokens, tokens[:1]])
        return torch.where(place < length, whole, torch.where(place == length, last, -1))

    rows, vocab = len(case.draft_tokens), case.target_probs.shape[-1]
    return torch.vmap(one)(
        case.target_probs,
        case.draft_probs,
        case.draft_tokens,
        torch.rand(rows, n),
        torch.empty(rows, vocab).exponential_(),
    )


RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "numpy in place": (numpy_in_place, {}),
    "numpy's searchsorted": (lambda case: leviathan(case, numpy_inverse), {}),
    "sorted": (lambda case: leviathan(case, sorted_first), {}),
    "alias method": (lambda case: leviathan(case, alias_method), {}),
    "logits of minus infinity": (logits_of_minus_infinity, {}),
    "a padded vocabulary": (padded_vocabulary, {}),
    "a one-hot draft": (one_hot_draft, {"law": Deterministic}),
    "a tuple of tensors": (lambda case: tuple(map(torch.tensor, leviathan(case))), {}),
    "an array": (lambda case: np.array(leviathan(case), np.int32), {}),
    "one row": (lambda case: torch.tensor([leviathan(case)], dtype=torch.int16), {}),
    "vmap": (by_vmap, BATCH),
}


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("error")
def test_a_right_sampler_written_in_an_odd_way_passes(name: str) -> None:
    sampler, options = RIGHT[name]
    assert prove_sampler(sampler, **{"models": FEW} | options).fault == ""


def test_a_sampler_that_draws_until_a_draw_fits_gets_no_verdict_but_by_samples() -> None:
    def sampler(case: SamplerCase) -> Any:
        return leviathan(case, until_one_fits)

    def reversed_question(case: SamplerCase) -> Any:
        def rejects(_: int, token: int, target: torch.Tensor, draft: torch.Tensor) -> bool:
            while (u := random.random()) < 0.5:
                pass
            return not (2 * u - 1) * float(draft[token]) < float(target[token])

        return leviathan(case, rejects=rejects)

    for one in (sampler, reversed_question):
        with pytest.raises(CannotEnumerate, match="give samples="):
            prove_sampler(one, models=PLAIN)
        report: Any = measure_sampler(one, models=PLAIN, samples=2000)
        assert report.p_value > 1e-6


def row_of_another(place: int) -> Any:
    """A batched sampler whose first or last row is judged by another row's target."""

    def sampler(case: SamplerCase) -> torch.Tensor:
        out = padded_batch(case)
        if len(out) > 1:
            out[place] = padded_batch(attrs.evolve(case, target_probs=case.target_probs.roll(1, 0)))[place]
        return out

    return sampler


def only_a_mixed_batch(case: SamplerCase) -> torch.Tensor:
    """Greedy rows are sampled where others are sampled too."""
    out = padded_batch(case)
    greedy = torch.tensor([one.temperature == 0 for one in case.settings])
    if greedy.any() and not greedy.all():
        out[greedy] = padded_batch(attrs.evolve(case, target_probs=case.target_logits.softmax(-1)))[greedy]
    return out


WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "from the fourth token on": (
        lambda case: leviathan(case, left=lambda place, _, t, d: t if place > 2 else residual(t, d)),
        {"parents": range(4), "models": PLAIN},
    ),
    "where the filter cut the token": (
        lambda case: leviathan(case, left=lambda _, token, t, d: t if t[token] == 0 else residual(t, d)),
        {},
    ),
    "where draft and target are equal": (
        lambda case: leviathan(
            case,
            rejects=lambda _, __, t, d: True if torch.equal(t, d) else None,
            left=lambda _, __, t, d: t if not torch.equal(t, d) else torch.eye(len(t)).double()[t.argmax()],
        ),
        {"models": {"equal": ALL["draft and target equal"]}},
    ),
    "where a token is 0": (
        lambda case: leviathan(case, rejects=lambda _, token, t, d: True if token == 0 else None),
        {},
    ),
    "the target in half precision": (
        lambda case: leviathan(attrs.evolve(case, target_probs=case.target_probs.half().double())),
        {},
    ),
    "all accepted": (
        lambda case: (
            out
            if len(out := leviathan(case)) <= len(case.draft_tokens)
            else [*out[:-1], drawn(case.target_probs[0])]
        ),
        {},
    ),
    "the first row of a batch": (row_of_another(0), BATCH),
    "the last row of a batch": (row_of_another(-1), BATCH),
    "a batch of greedy and sampled rows": (
        only_a_mixed_batch,
        BATCH | {"settings": (SamplingParams(1.0), SamplingParams(0.0))},
    ),
}


NAMED = {
    "where the filter cut the token": "of a token that the target forbids it draws from the target",
    "where a token is 0": "with the number 0 is always rejected",
    "the target in half precision": "the target's probabilities are rounded to float16",
    "all accepted": "comes from the first row",
}


@pytest.mark.parametrize("name", WRONG)
def test_a_rare_fault_is_caught(name: str) -> None:
    sampler, options = WRONG[name]
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, **{"models": FEW} | options)
    assert NAMED.get(name, "") in (caught.value.likely or "")
    assert ("row of a batch" in str(caught.value)) == name.endswith("row of a batch")
