"""Whole right samplers whose chance is kept, shared or drawn at once; `rest=False` makes each a wrong one."""

from __future__ import annotations

import concurrent.futures
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from draftwood.testing import SamplerCase

Whole = Callable[[SamplerCase, bool], Any]


def _left(case: SamplerCase, place: int, rest: bool) -> torch.Tensor:
    target = case.target_probs[place]
    if not rest or place == len(case.draft_tokens):
        return target
    left = (target - case.draft_probs[place]).clamp(min=0)
    return left if left.any() else target


def _ratios(case: SamplerCase) -> torch.Tensor:
    at = torch.arange(len(case.draft_tokens))
    return case.target_probs[at, case.draft_tokens] / case.draft_probs[at, case.draft_tokens]


def _judged(case: SamplerCase, rest: bool, coin: Callable[[], Any], last: Callable[[Any], int]) -> list[int]:
    tokens = case.draft_tokens.tolist()
    for place, ratio in enumerate(_ratios(case).tolist()):
        if not coin() < ratio:
            return [*tokens[:place], last(_left(case, place, rest))]
    return [*tokens, last(_left(case, len(tokens), rest))]


def _multinomial(weights: torch.Tensor) -> int:
    return int(torch.multinomial(weights, 1))


def one_coin_recycled(case: SamplerCase, rest: bool) -> Any:
    """One uniform for the whole call; the part of it that a test leaves is a uniform again."""
    u, tokens = random.random(), case.draft_tokens.tolist()
    for place, ratio in enumerate(_ratios(case).clamp(max=1).tolist()):
        if not u < ratio:
            heights = _left(case, place, rest).cumsum(0)
            u = (u - ratio) / (1 - ratio)
            return [*tokens[:place], int((heights <= u * float(heights[-1])).sum())]
        u = u / ratio
    heights = case.target_probs[-1].cumsum(0)
    return [*tokens, int((heights <= u * float(heights[-1])).sum())]


def two_coins(case: SamplerCase, rest: bool) -> Any:
    """One coin for all tests, each by the part that is left, and one for the last token."""
    u, tokens = torch.rand((), dtype=torch.float64), case.draft_tokens.tolist()
    for place, product in enumerate(_ratios(case).clamp(max=1).cumprod(0)):
        if not u < product:
            return [*tokens[:place], _multinomial(_left(case, place, rest))]
    return [*tokens, _multinomial(case.target_probs[-1])]


def by_its_own_law(case: SamplerCase, rest: bool) -> Any:
    """All texts with their probabilities, of which one is chosen."""
    texts, weights, kept = list[list[int]](), list[float](), 1.0
    tokens = case.draft_tokens.tolist()
    for place, ratio in enumerate([*_ratios(case).clamp(max=1).tolist(), 0.0]):
        left = _left(case, place, rest)
        for token, chance in enumerate((left / left.sum()).tolist()):
            texts.append([*tokens[:place], token])
            weights.append(kept * (1 - ratio) * chance)
        kept *= ratio
    return random.choices(texts, weights)[0]


def all_drawn_before(case: SamplerCase, rest: bool) -> Any:
    """Coins and recovered tokens of every row, and then a mask."""
    n = len(case.draft_tokens)
    recovered = torch.multinomial(torch.stack([_left(case, row, rest) for row in range(n + 1)]), 1)[:, 0]
    kept = (torch.rand(n, dtype=torch.float64) < _ratios(case)).int().cumprod(0)
    length = int(kept.sum())
    return torch.cat([case.draft_tokens[:length], recovered[length : length + 1]])


def numpy_at_once(case: SamplerCase, rest: bool) -> Any:
    coins = np.random.rand(len(case.draft_tokens))
    accepted = np.append(coins < _ratios(case).numpy(), False)
    length = int(np.argmin(accepted))
    weights = _left(case, length, rest).numpy()
    last = np.random.choice(len(weights), p=weights / weights.sum())
    return np.append(case.draft_tokens.numpy()[:length], last)


def coins_of_a_pool_of_threads(case: SamplerCase, rest: bool) -> Any:
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        coins = list(pool.map(lambda _: random.random(), range(len(case.draft_tokens))))
    return _judged(case, rest, lambda: coins.pop(0), _multinomial)


def coins_of_a_generator_function(case: SamplerCase, rest: bool) -> Any:
    def coins() -> Iterator[Any]:
        while True:
            yield from np.random.rand(4)

    drawn = coins()
    return _judged(case, rest, lambda: next(drawn), _multinomial)


def _coins_for_ever() -> Iterator[float]:
    while True:
        yield random.random()


FOR_EVER = _coins_for_ever()


def coins_of_a_kept_generator_function(case: SamplerCase, rest: bool) -> Any:
    return _judged(case, rest, lambda: next(FOR_EVER), _multinomial)


class Kept:
    """An object that makes its generators when it is first called."""

    numpy: Any = None
    python: Any = None
    legacy: Any = None

    @classmethod
    def of_numpy(cls, case: SamplerCase, rest: bool) -> Any:
        cls.numpy = cls.numpy or np.random.default_rng()
        return _judged(case, rest, cls.numpy.random, _multinomial)

    @classmethod
    def of_python(cls, case: SamplerCase, rest: bool) -> Any:
        cls.python = cls.python or random.Random()
        return _judged(case, rest, cls.python.random, _multinomial)

    @classmethod
    def of_legacy(cls, case: SamplerCase, rest: bool) -> Any:
        cls.legacy = cls.legacy or np.random.RandomState()
        return _judged(case, rest, cls.legacy.rand, _multinomial)


@functools.cache
def _generator_of(name: str) -> Any:
    return np.random.Generator(np.random.PCG64())


def cached_generator(case: SamplerCase, rest: bool) -> Any:
    def last(weights: torch.Tensor) -> int:
        return int(_generator_of("draft").choice(len(weights), p=(weights / weights.sum()).numpy()))

    return _judged(case, rest, random.random, last)


MEMORY: dict[Any, list[int]] = {}


def remembered_answers(case: SamplerCase, rest: bool) -> Any:
    """One answer to a draft, which is drawn once and given again: a cache where none may be."""
    key = tuple(case.draft_tokens.tolist()), float(case.target_probs[0, 0]), rest
    if key not in MEMORY:
        MEMORY[key] = _judged(case, rest, random.random, _multinomial)
    return MEMORY[key]


def antithetic(case: SamplerCase, rest: bool) -> Any:
    """Every other call takes 1 - u of the call before."""
    ANTITHETIC.append(random.random() if len(ANTITHETIC) % 2 == 0 else 1 - ANTITHETIC[-1])
    u = ANTITHETIC[-1]
    first = iter([u])
    return _judged(case, rest, lambda: next(first, None) or random.random(), _multinomial)


ANTITHETIC: list[Any] = []


def more_than_is_needed(case: SamplerCase, rest: bool) -> Any:
    torch.rand(100)
    np.random.rand(5)
    random.shuffle([1, 2, 3])
    return _judged(case, rest, random.random, _multinomial)


def by_its_kind(case: SamplerCase, rest: bool) -> Any:
    """Floats as they come, and anything else by its first entry."""

    def coin() -> Any:
        u = np.random.uniform()
        return u if isinstance(u, float) else 0.5

    return _judged(case, rest, coin, _multinomial)


def greedy_where_it_fails(case: SamplerCase, rest: bool) -> Any:
    def last(weights: torch.Tensor) -> int:
        try:
            heights = weights.cumsum(0).numpy()
            return int(np.interp(np.random.rand() * heights[-1], heights, np.arange(len(heights))) + 1)
        except Exception:
            return int(weights.argmax())

    return _judged(case, rest, random.random, last)


def asks_whether_it_has_it(case: SamplerCase, rest: bool) -> Any:
    def coin() -> Any:
        u = torch.rand((), dtype=torch.float64)
        return u.item() if hasattr(u, "item") else u

    return _judged(case, rest, coin, _multinomial)


def one_thread_for_each_token(case: SamplerCase, rest: bool) -> Any:
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        lasts = [pool.submit(_multinomial, _left(case, row, rest)) for row in range(len(case.target_probs))]
        coins = [pool.submit(random.random) for _ in case.draft_tokens]
        tokens = case.draft_tokens.tolist()
        for place, ratio in enumerate(_ratios(case).tolist()):
            if not coins[place].result() < ratio:
                return [*tokens[:place], lasts[place].result()]
        return [*tokens, lasts[-1].result()]


NO_CHANCE = {"remembered_answers", "greedy_where_it_fails"}
"""Samplers that are wrong in truth: they repeat an answer, or draw by interpolation."""

WHOLES: dict[str, Whole] = {
    one.__name__: one
    for one in (
        one_coin_recycled,
        two_coins,
        by_its_own_law,
        all_drawn_before,
        numpy_at_once,
        coins_of_a_pool_of_threads,
        coins_of_a_generator_function,
        coins_of_a_kept_generator_function,
        Kept.of_numpy,
        Kept.of_python,
        Kept.of_legacy,
        cached_generator,
        remembered_answers,
        antithetic,
        more_than_is_needed,
        by_its_kind,
        greedy_where_it_fails,
        asks_whether_it_has_it,
        one_thread_for_each_token,
    )
}
