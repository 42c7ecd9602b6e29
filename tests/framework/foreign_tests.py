"""Ways to test a drafted token by its two probabilities, as other people's code does it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

F64 = torch.float64


def coin() -> Tensor:
    return torch.rand((), dtype=F64)


TESTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "ratio > u": lambda p, q: p / q > coin(),
    "u * q < p": lambda p, q: coin() * q < p,
    "p > u * q": lambda p, q: p > coin() * q,
    "clamped": lambda p, q: coin() < torch.clamp(p / q, max=1.0),
    "torch.min": lambda p, q: coin() < torch.min(torch.ones(()), p / q),
    "logarithms": lambda p, q: coin().log() < p.log() - q.log(),
    "log_softmax kept finite": lambda p, q: torch.log(coin()) < (p.log() - q.log()).clamp(max=0),
    "a waiting time": lambda p, q: torch.empty((), dtype=F64).exponential_() > q.log() - p.log(),
    "expovariate": lambda p, q: random.expovariate(1.0) > math.log(float(q) / float(p)) if p > 0 else False,
    "bernoulli": lambda p, q: torch.bernoulli((p / q).clamp(max=1)).bool(),
    "bernoulli_": lambda p, q: torch.empty((), dtype=F64).bernoulli_(float((p / q).clamp(max=1))) == 1,
    "binomial": lambda p, q: np.random.binomial(1, min(1.0, float(p / q))) == 1,
    "a Generator's binomial": lambda p, q: np.random.default_rng().binomial(1, min(1.0, float(p / q))) > 0,
    "choices": lambda p, q: random.choices([True, False], [min(1.0, r := float(p / q)), max(0.0, 1 - r)])[0],
    "choice of two": lambda p, q: bool(np.random.choice(2, p=[1 - (r := min(1.0, float(p / q))), r])),
    "multinomial of two": lambda p, q: (
        int(torch.multinomial(torch.stack([(p / q).clamp(max=1), 1 - (p / q).clamp(max=1)]), 1)) == 0
    ),
    "1 - u >= 1 - ratio": lambda p, q: not 1 - coin() <= 1 - (p / q),
    "certain ones do not draw": lambda p, q: True if p >= q else coin() < p / q,
    "u below, by lt": lambda p, q: torch.lt(coin(), p / q),
    "by where": lambda p, q: torch.where(coin() < p / q, 1, 0) == 1,
    "by item": lambda p, q: coin().item() < (p / q).item(),
    "by numpy": lambda p, q: np.random.rand() < p.numpy() / q.numpy(),
    "by uniform(0, q)": lambda p, q: random.uniform(0, float(q)) < float(p),
    "a normal number": lambda p, q: torch.special.ndtr(torch.randn((), dtype=F64)) < p / q,
    "whole numbers": lambda p, q: random.randrange(2**50) < float(p / q) * 2**50,
    "the sign": lambda p, q: torch.sign(p / q - coin()) > 0,
    "relu": lambda p, q: torch.relu(p / q - coin()) > 0,
    "a difference": lambda p, q: (p - q * coin()) > 0,
    "logical_and": lambda p, q: torch.logical_and(coin() < p / q, p > 0),
    "a rounded sum": lambda p, q: math.floor(float((p / q).clamp(max=1)) + random.random()) >= 1,
    "ceil": lambda p, q: torch.ceil((p / q).clamp(max=1) - coin()) > 0,
    "heaviside": lambda p, q: torch.heaviside(p / q - coin(), torch.zeros((), dtype=F64)) > 0,
    "isclose no, maximum": lambda p, q: torch.maximum(p / q - coin(), torch.zeros((), dtype=F64)) > 0,
    "np.less": lambda p, q: np.less(np.random.rand(), float(p / q)),
    "sigmoid": lambda p, q: torch.logit(coin()) < torch.logit((p / q).clamp(max=1)),
}
