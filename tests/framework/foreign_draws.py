"""Ways to draw a token from weights, but for races, as other people's code does it."""

from __future__ import annotations

import bisect
import itertools
import random
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

F64 = torch.float64


def normal(weights: Tensor) -> Tensor:
    return weights / weights.sum()


def coin() -> Tensor:
    return torch.rand((), dtype=F64)


def python_loop(weights: Tensor) -> int:
    u, height = random.random() * float(weights.sum()), 0.0
    for token, weight in enumerate(weights.tolist()):
        height += weight
        if u < height:
            return token
    return int(weights.argmax())


def loop_downwards(weights: Tensor) -> int:
    u = random.random() * float(weights.sum())
    for token, weight in enumerate(weights.tolist()):
        u -= weight
        if u < 0:
            return token
    return int(weights.argmax())


def bisected(weights: Tensor) -> int:
    heights = list(itertools.accumulate(weights.tolist()))
    return bisect.bisect_right(heights, random.random() * heights[-1])


def cum_weights(weights: Tensor) -> int:
    heights = list(itertools.accumulate(weights.tolist()))
    return random.choices(range(len(heights)), cum_weights=heights, k=1)[0]


def first_above(weights: Tensor) -> int:
    heights = weights.cumsum(-1)
    return int((heights > coin() * heights[-1]).nonzero()[0])


def argmax_of_above(weights: Tensor) -> int:
    return int((normal(weights).cumsum(-1) > torch.rand(1, dtype=F64)).int().argmax())


def counted(weights: Tensor) -> int:
    heights = weights.cumsum(-1).unsqueeze(0)
    return int((heights <= torch.rand(1, 1, dtype=F64) * heights[:, -1:]).sum(-1))


def bucketized(weights: Tensor) -> int:
    heights = weights.cumsum(0)
    return int(torch.bucketize(torch.rand(1, dtype=F64) * heights[-1], heights, right=True))


def digitized(weights: Tensor) -> int:
    heights = np.cumsum(weights.numpy())
    return int(np.digitize(np.random.rand() * heights[-1], heights))


def numpy_argmax_of_above(weights: Tensor) -> int:
    heights = np.cumsum(weights.numpy())
    return int(np.argmax(heights > np.random.rand() * heights[-1]))


def numpy_sum_of_below(weights: Tensor) -> int:
    heights = np.cumsum(weights.numpy()) / float(weights.sum())
    return int((heights <= np.random.random()).sum())


def numpy_method(weights: Tensor) -> int:
    heights = weights.numpy().cumsum()
    return int(heights.searchsorted(np.random.rand() * heights[-1], side="right"))


def log_heights(weights: Tensor) -> int:
    heights = normal(weights).log().logcumsumexp(0)
    return int((heights <= coin().log()).sum())


def batched_heights(weights: Tensor) -> int:
    rows = weights.repeat(2, 1).cumsum(-1)
    u = torch.rand(2, 1, dtype=F64) * rows[:, -1:]
    return int(torch.searchsorted(rows, u, right=True)[0, 0])


def sorted_heights(weights: Tensor) -> int:
    p, order = normal(weights).sort(descending=True)
    u = torch.rand(1, dtype=F64)
    return int(order[(p.cumsum(0) - p <= u).sum() - 1])


def in_float32(weights: Tensor) -> int:
    heights = weights.float().cumsum(0)
    return int(torch.searchsorted(heights, torch.rand(1) * heights[-1], right=True).clamp(max=2))


def residual_by_coins(weights: Tensor) -> int:
    """Each token is taken with its share of what is left."""
    left = float(weights.sum())
    for token, weight in enumerate(weights.tolist()):
        if weight and random.random() * left < weight:
            return token
        left = max(left - weight, 0.0)
    return int(weights.nonzero()[-1])


def by_bernoulli(weights: Tensor) -> int:
    after = weights.flip(0).cumsum(0).flip(0)
    shares = torch.where(weights > 0, weights / after.clamp(min=1e-300), 0.0).clamp(max=1)
    shares[weights.nonzero()[-1]] = 1.0
    return int(torch.bernoulli(shares).argmax())


def reservoir(weights: Tensor) -> int:
    kept, total = 0, 0.0
    for token, weight in enumerate(weights.tolist()):
        total += weight
        if weight and random.random() * total < weight:
            kept = token
    return kept


def halves(weights: Tensor) -> int:
    """Down a binary tree of sums."""
    low, high = 0, len(weights)
    while high - low > 1:
        middle = (low + high) // 2
        left, both = float(weights[low:middle].sum()), float(weights[low:high].sum())
        low, high = (low, middle) if random.random() * both < left else (middle, high)
    return low


def tickets(weights: Tensor) -> int:
    """One of many tickets, of which every token holds its share."""
    edges = [round(float(height) * 2**40) for height in normal(weights).cumsum(0)]
    return bisect.bisect_right(edges, random.randrange(edges[-1]))


def alias(weights: Tensor) -> int:
    p, n = normal(weights) * len(weights), len(weights)
    other, low = list(range(n)), p.clone()
    small, large = [i for i in range(n) if p[i] < 1], [i for i in range(n) if p[i] >= 1]
    while small and large:
        i, j = small.pop(), large.pop()
        other[i] = j
        low[j] -= 1 - low[i]
        (small if low[j] < 1 else large).append(j)
    for i in small + large:
        low[i] = 1
    column = int(torch.randint(n, (1,)))
    return column if coin() < low[column] else other[column]


def alias_of_one_number(weights: Tensor) -> int:
    n = len(weights)
    p, other = [float(x) * n for x in normal(weights)], list(range(n))
    small, large = [i for i in range(n) if p[i] < 1], [i for i in range(n) if p[i] >= 1]
    while small and large:
        i, j = small.pop(), large.pop()
        other[i] = j
        p[j] -= 1 - p[i]
        (small if p[j] < 1 else large).append(j)
    for i in small + large:
        p[i] = 1.0
    u = random.random() * n
    column = int(u)
    return column if u - column < p[column] else other[column]


def rejection(weights: Tensor) -> int:
    most = float(weights.max())
    while True:
        token = int(torch.randint(0, len(weights), ()))
        if coin() * most < weights[token]:
            return token


def rejection_of_few(weights: Tensor) -> int:
    for _ in range(4):
        token = random.randrange(len(weights))
        if random.random() * float(weights.max()) < float(weights[token]):
            return token
    return int(torch.multinomial(weights, 1))


def categorical_of_logits(weights: Tensor) -> int:
    return int(torch.distributions.Categorical(logits=weights.log()).sample())


def categorical_of_shape(weights: Tensor) -> int:
    return int(torch.distributions.Categorical(probs=weights).sample((2,))[1])


def one_hot_categorical(weights: Tensor) -> int:
    return int(torch.distributions.OneHotCategorical(probs=weights).sample().argmax())


def multinomial_distribution(weights: Tensor) -> int:
    return int(torch.distributions.Multinomial(1, probs=weights).sample().argmax())


def multinomial_method(weights: Tensor) -> int:
    return int(weights.multinomial(num_samples=1).squeeze(-1))


def multinomial_of_many(weights: Tensor) -> int:
    return int(torch.multinomial(weights, 3, replacement=True)[2])


def multinomial_of_two(weights: Tensor) -> int:
    count = min(2, int((weights > 0).sum()))
    return int(torch.multinomial(weights, count)[0])


def multinomial_of_rows(weights: Tensor) -> int:
    return int(torch.multinomial(torch.stack([weights, weights.flip(0)]), 1)[0, 0])


def multinomial_of_float32(weights: Tensor) -> int:
    return int(torch.multinomial(weights.float(), 1))


def multinomial_with_a_generator(weights: Tensor) -> int:
    return int(torch.multinomial(weights, 1, generator=KEPT))


def multinomial_out(weights: Tensor) -> int:
    out = torch.empty(1, dtype=torch.int64)
    torch.multinomial(weights, 1, out=out)
    return int(out)


def weighted_sampler(weights: Tensor) -> int:
    return next(iter(torch.utils.data.WeightedRandomSampler(weights.tolist(), 1)))


def choices(weights: Tensor) -> int:
    return random.choices(list(range(len(weights))), normal(weights).tolist(), k=2)[1]


def system_choices(weights: Tensor) -> int:
    return random.SystemRandom().choices(range(len(weights)), weights.tolist())[0]


def kept_choices(weights: Tensor) -> int:
    return OLDER.choices(range(len(weights)), weights.tolist())[0]


def sample_with_counts(weights: Tensor) -> int:
    counts = [round(w * 2**30) for w in normal(weights).tolist()]
    return random.sample(range(len(counts)), 1, counts=counts)[0]


def numpy_choice(weights: Tensor) -> int:
    return int(np.random.choice(np.arange(len(weights)), size=1, p=normal(weights).numpy())[0])


def generator_choice(weights: Tensor) -> int:
    return int(np.random.default_rng().choice(len(weights), p=normal(weights).numpy()))


def generator_multinomial(weights: Tensor) -> int:
    return int(np.random.default_rng().multinomial(1, normal(weights).numpy()).argmax())


def kept_generator_choice(weights: Tensor) -> int:
    return int(NEWER.choice(len(weights), p=normal(weights).numpy()))


def scipy_discrete(weights: Tensor) -> int:
    p = normal(weights).numpy()
    return int(stats.rv_discrete(values=(np.arange(len(p)), p)).rvs())


def scipy_discrete_of_a_generator(weights: Tensor) -> int:
    p = normal(weights).numpy()
    return int(stats.rv_discrete(values=(np.arange(len(p)), p)).rvs(random_state=np.random.default_rng()))


def scipy_multinomial(weights: Tensor) -> int:
    return int(stats.multinomial.rvs(1, normal(weights).numpy()).argmax())


def systematic(weights: Tensor) -> int:
    """One comb of evenly spaced teeth, of which one is taken."""
    teeth = (torch.arange(4, dtype=F64) + coin()) / 4
    heights = weights.cumsum(0)
    found = torch.searchsorted(heights, teeth * heights[-1], right=True)
    # A tooth below 1 may be rounded up to it.
    return int(found[torch.randint(4, ())].clamp(max=len(weights) - 1))


def guarded(weights: Tensor) -> int:
    """The generator's own choice, and the most likely token where that fails."""
    try:
        return int(
            np.searchsorted(np.cumsum(weights.numpy()), float(random.random() * weights.sum()), "right")
        )
    except Exception:
        return int(weights.argmax())


KEPT = torch.Generator().manual_seed(3)
OLDER = random.Random(3)
NEWER = np.random.default_rng(3)

DRAWS: tuple[Callable[[Tensor], int], ...] = tuple(
    value
    for name, value in list(globals().items())
    if getattr(value, "__module__", "") == __name__ and name not in ("normal", "coin")
)
