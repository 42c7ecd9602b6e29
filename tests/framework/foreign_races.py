"""Ways to draw a token from weights by a race: exponential, Gumbel and other noise."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tests.framework.foreign_draws import normal

F64 = torch.float64


def race(weights: Tensor) -> int:
    return int((torch.empty_like(weights).exponential_(1.0) / weights).argmin())


def race_in_place(weights: Tensor) -> int:
    noise = torch.empty_like(weights)
    noise.exponential_()
    return int(weights.clone().div_(noise).argmax(dim=-1).view(-1))


def race_of_logs(weights: Tensor) -> int:
    return int((weights.log() - torch.empty_like(weights).exponential_().log()).argmax(-1))


def race_with_a_floor(weights: Tensor) -> int:
    return int((weights / torch.empty_like(weights).exponential_().clamp_min(1e-10)).argmax())


def race_by_uniforms(weights: Tensor) -> int:
    return int((-torch.rand_like(weights).log() / weights).argmin())


def race_by_log1p(weights: Tensor) -> int:
    return int((torch.log1p(-torch.rand_like(weights)) / weights).argmax())


def race_by_sort(weights: Tensor) -> int:
    return int(torch.argsort(weights / torch.empty_like(weights).exponential_(), descending=True)[0])


def race_by_topk(weights: Tensor) -> int:
    return int((weights / torch.empty_like(weights).exponential_()).topk(2).indices[0])


def race_of_a_batch(weights: Tensor) -> int:
    rows = weights.repeat(3, 1)
    return int((rows / torch.empty_like(rows).exponential_()).argmax(dim=-1, keepdim=True)[1])


def race_by_numpy(weights: Tensor) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmin(np.random.exponential(size=len(weights)) / weights.numpy()))


def race_by_numpy_uniforms(weights: Tensor) -> int:
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(np.random.rand(len(weights))) / weights.numpy()))


def race_of_a_new_generator(weights: Tensor) -> int:
    noise = np.random.default_rng().standard_exponential(len(weights))
    return int((weights.numpy() / noise).argmax())


def race_in_python(weights: Tensor) -> int:
    times = [random.expovariate(1.0) / w if w else math.inf for w in weights.tolist()]
    return times.index(min(times))


def race_by_key(weights: Tensor) -> int:
    p = weights.tolist()
    return max((i for i in range(len(p)) if p[i]), key=lambda i: random.random() ** (1 / p[i]))


def race_by_heap(weights: Tensor) -> int:
    keyed = [(math.log(random.random()) / w, i) for i, w in enumerate(weights.tolist()) if w]
    return heapq.nlargest(1, keyed)[0][1]


def gumbel(weights: Tensor) -> int:
    noise = -(-torch.rand_like(weights).log()).log()
    return int((weights.log() + noise).argmax())


def gumbel_with_eps(weights: Tensor) -> int:
    u = torch.rand_like(weights)
    return int((weights.log() - torch.log(-torch.log(u + 1e-20) + 1e-20)).argmax())


def gumbel_of_logits(weights: Tensor) -> int:
    logits = normal(weights).log() + 3.0
    return int(torch.argmax(logits.sub_(torch.empty_like(logits).exponential_().log_()), -1))


def gumbel_by_numpy(weights: Tensor) -> int:
    with np.errstate(divide="ignore"):
        return int((np.log(weights.numpy()) + np.random.default_rng().gumbel(0, 1, len(weights))).argmax())


def gumbel_by_distribution(weights: Tensor) -> int:
    noise = torch.distributions.Gumbel(torch.zeros_like(weights), torch.ones_like(weights)).sample()
    return int((weights.log() + noise).argmax())


def gumbel_softmax(weights: Tensor) -> int:
    return int(functional.gumbel_softmax(weights.log(), hard=True).argmax())


def relaxed(weights: Tensor) -> int:
    one = torch.distributions.RelaxedOneHotCategorical(torch.tensor(1.0, dtype=F64), probs=normal(weights))
    return int(one.sample().argmax())


def gumbel_with_a_temperature(weights: Tensor) -> int:
    noise = -torch.log(-torch.log(torch.rand_like(weights)))
    return int(((weights.log() + noise) / 0.7).softmax(-1).argmax())


def dirichlet_race(weights: Tensor) -> int:
    with np.errstate(divide="ignore"):
        return int((weights.numpy() / np.random.dirichlet(np.ones(len(weights)))).argmax())


def gamma_race(weights: Tensor) -> int:
    with np.errstate(divide="ignore"):
        return int((weights.numpy() / np.random.standard_gamma(1.0, len(weights))).argmax())


def poisson_race(weights: Tensor) -> int:
    while True:
        counts = torch.poisson(weights)
        if counts.sum() == 1:
            return int(counts.argmax())


RACES: tuple[Callable[[Tensor], int], ...] = tuple(
    value for value in list(globals().values()) if getattr(value, "__module__", "") == __name__
)
