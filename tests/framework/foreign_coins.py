"""Coins of right samplers: uniform numbers by many sources, as other people's code gets them."""

from __future__ import annotations

import concurrent.futures
import copy
import functools
import hashlib
import itertools
import math
import os
import pickle
import queue
import random
import secrets
import struct
import threading
import time
import uuid
from collections.abc import Callable
from random import random as by_name
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import rand as numpy_by_name
from scipy import special, stats
from torch import rand as torch_by_name

F64 = torch.float64
SEEDED = random.Random(11)
LEGACY = np.random.RandomState(11)
MODERN = np.random.default_rng(11)
OF_TORCH = torch.Generator().manual_seed(11)
ENTROPY = random.SystemRandom()
POOL = iter(np.random.default_rng(5).random(10**6).tolist())
COUNTER = itertools.count(1)
KEY: list[int] = [12345]


def _hash_uniform(*what: Any) -> float:
    digest = hashlib.sha256(repr(what).encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48


def _split_key() -> float:
    """Explicit keys, as in JAX: the key is split, one half goes on and one half is used."""
    KEY[0], used = (int(1e12 * _hash_uniform(KEY[0], half)) for half in "ab")
    return _hash_uniform(used)


def _congruential() -> float:
    KEY[0] = (KEY[0] * 6364136223846793005 + 1442695040888963407) % 2**64
    return (KEY[0] >> 11) / 2**53


def _in_a_thread(draw: Callable[[], Any]) -> Any:
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(draw).result()


def _by_a_queue() -> Any:
    found: queue.Queue[Any] = queue.Queue()
    worker = threading.Thread(target=lambda: found.put(np.random.random()))
    worker.start()
    worker.join()
    return found.get()


def _of_file() -> float:
    with open("/dev/urandom", "rb") as file:
        return int.from_bytes(file.read(6), "big") / 2**48


class Mine(random.Random):
    """A generator with a separate source."""

    def random(self) -> float:
        return SEEDED.random()

    def getrandbits(self, k: int) -> int:
        return SEEDED.getrandbits(k)


class Pool:
    """Numbers that are drawn many at once and handed out one by one, also to later calls."""

    left: ClassVar[list[Any]] = []

    @classmethod
    def next(cls) -> Any:
        if not cls.left:
            cls.left = list(np.random.rand(64))
        return cls.left.pop()


@functools.cache
def _cached() -> Any:
    return torch.rand(4096, dtype=F64)


def _of_cache() -> Any:
    return _cached()[next(COUNTER) % 4096]


def _guarded() -> Any:
    """A coin with a fallback, as code has that expects a library to be missing."""
    try:
        return math.pow(random.random(), 1.0)
    except Exception:
        return 0.5


def _suppressed() -> Any:
    try:
        return float(torch.rand((), dtype=F64))
    except:  # noqa: E722
        return 0.25


def _by_kind() -> Any:
    u = random.random()
    return u if isinstance(u, (int, float)) else 0.5


def _sobol() -> Any:
    return torch.quasirandom.SobolEngine(1, scramble=True).draw(1)[0, 0].double()


def _forked() -> Any:
    with torch.random.fork_rng(devices=[]):
        return torch.rand((), dtype=F64)


def _seeded_by_the_clock() -> Any:
    return random.Random(time.time_ns()).random()


def _state_set_back() -> Any:
    state = random.getstate()
    u = random.random()
    random.setstate(state)
    return u


def _sum_of_bits() -> float:
    return sum(int(random.random() < 0.5) / 2**place for place in (1, 2)) + random.random() / 4


def _dropout() -> Any:
    kept = torch.nn.functional.dropout(torch.ones(40, dtype=F64), 0.5)
    return ((kept > 0).double() * 2.0 ** -torch.arange(1, 41, dtype=F64)).sum()


def _jitted() -> Any:
    return JITTED()


@torch.jit.script
def JITTED():
    return torch.rand([1], dtype=torch.float64)[0]


COINS: dict[str, Callable[[], Any]] = {
    # Python's random
    "random.uniform of others": lambda: (random.uniform(-3.0, 5.0) + 3) / 8,
    "random.choices of few": lambda: random.choices([0.1, 0.3, 0.5, 0.7, 0.9])[0] + random.random() / 5 - 0.1,
    "random.choice of many": lambda: random.choice(range(10**12)) / 10**12,
    "random.choice of a list": lambda: random.choice([i / 4 for i in range(4)]) + random.random() / 4,
    "random.sample of many": lambda: random.sample(range(10**9), 1)[0] / 1e9,
    "random.randint": lambda: (random.randint(1, 10**12) - 1) / 10**12,
    "random.randrange down": lambda: random.randrange(10**12, 0, -1) / 10**12,
    "random.randrange by thirds": lambda: (random.randrange(7, 3 * 10**12 + 7, 3) - 7) / (3 * 10**12),
    "random.getrandbits shifted": lambda: (random.getrandbits(64) >> 11) / 2**53,
    "random.getrandbits": lambda: random.getrandbits(53) * 2.0**-53,
    "random.randbytes": lambda: int.from_bytes(random.randbytes(6), "big") / 2**48,
    "random.gauss": lambda: 0.5 * (1 + math.erf(random.gauss(0, 1) / math.sqrt(2))),
    "random.normalvariate, torch": lambda: torch.special.ndtr(torch.tensor(random.normalvariate(0, 1))),
    "random.betavariate": lambda: random.betavariate(1, 1),
    "random.expovariate": lambda: 1 - math.exp(-random.expovariate(2.0) * 2),
    "random.expovariate, expm1": lambda: -math.expm1(-random.expovariate(1.0)),
    "random.triangular": lambda: stats.triang.cdf(random.triangular(0, 1, 0.5), 0.5),
    "random.vonmisesvariate": lambda: random.vonmisesvariate(0, 0) / (2 * math.pi),
    "random.gammavariate": lambda: 1 - math.exp(-random.gammavariate(1, 1)),
    "random.weibullvariate": lambda: 1 - math.exp(-random.weibullvariate(1, 1)),
    "random.lognormvariate": lambda: stats.lognorm.cdf(random.lognormvariate(0, 1), 1),
    "random.shuffle": lambda: (x := [0, 1], random.shuffle(x), (x[0] + random.random()) / 2)[2],
    "a seeded Random outside": SEEDED.random,
    "a seeded Random outside, uniform": lambda: SEEDED.uniform(0, 1),
    "a Random inside": lambda: random.Random().uniform(0, 1),
    "a seeded Random inside": lambda: random.Random(4).random(),
    "a Random seeded by the clock": _seeded_by_the_clock,
    "a Random seeded by entropy": lambda: random.Random(os.urandom(8)).random(),
    "a class of one's own": lambda: Mine().random(),
    "SystemRandom outside": ENTROPY.random,
    "SystemRandom outside, randrange": lambda: ENTROPY.randrange(2**40) / 2**40,
    "random imported by name": by_name,
    "the module's instance": lambda: vars(random)["_inst"].random(),
    "its state set back": _state_set_back,
    "a copied generator": lambda: copy.copy(SEEDED).random(),
    "a pickled generator": lambda: pickle.loads(pickle.dumps(SEEDED)).random(),
    "bits added up": _sum_of_bits,
    # secrets, the system, clocks, addresses, counters
    "secrets.randbits": lambda: secrets.randbits(53) / 2**53,
    "secrets.token_bytes": lambda: int.from_bytes(secrets.token_bytes(6), "big") / 2**48,
    "secrets.token_hex": lambda: int(secrets.token_hex(6), 16) / 2**48,
    "secrets.SystemRandom": lambda: secrets.SystemRandom().random(),
    "os.urandom": lambda: struct.unpack("<Q", os.urandom(8))[0] / 2**64,
    "a file of entropy": _of_file,
    "uuid4": lambda: uuid.uuid4().int % 2**40 / 2**40,
    "uuid1": lambda: _hash_uniform(uuid.uuid1()),
    "time_ns": lambda: _hash_uniform(time.time_ns()),
    "perf_counter": lambda: time.perf_counter() * 1e6 % 1,
    "process_time_ns": lambda: _hash_uniform(time.process_time_ns(), next(COUNTER)),
    "id of objects": lambda: _hash_uniform(id(object()), id([])),
    "a counter hashed": lambda: _hash_uniform(next(COUNTER)),
    "keys that are split": _split_key,
    "a generator by hand": _congruential,
    "numbers drawn before": lambda: next(POOL),
    "numbers kept for later calls": Pool.next,
    "a cache of a tensor": _of_cache,
    # numpy
    "np.random.ranf": lambda: np.random.ranf(),
    "np.random.random_sample": lambda: np.random.random_sample((2, 2))[1, 0],
    "np.random.randint": lambda: np.random.randint(0, 2**40) / 2**40,
    "np.random.randint of int64": lambda: np.random.randint(2**62, dtype=np.int64) / 2**62,
    "np.random.exponential": lambda: np.exp(-np.random.exponential()),
    "np.random.exponential of 3": lambda: 1 - np.exp(-np.random.exponential(3.0) / 3.0),
    "np.random.gumbel": lambda: np.exp(-np.exp(-np.random.gumbel())),
    "np.random.normal": lambda: special.ndtr(np.random.normal()),
    "np.random.randn of many": lambda: special.ndtr(np.random.randn(3)[2]),
    "np.random.beta": lambda: np.random.beta(1, 1),
    "np.random.permutation": lambda: (np.random.permutation(2)[0] + np.random.rand()) / 2,
    "np.random.choice": lambda: np.random.choice(10**6) / 10**6,
    "np.random.bytes": lambda: int.from_bytes(np.random.bytes(6), "big") / 2**48,
    "np.random.logistic": lambda: special.expit(np.random.logistic()),
    "np.random.power": lambda: np.random.power(1.0),
    "np.random.dirichlet": lambda: np.random.dirichlet([1, 1])[0],
    "np.random.weibull": lambda: np.exp(-np.random.weibull(1.0)),
    "np.random imported by name": numpy_by_name,
    "a seeded RandomState outside": LEGACY.random_sample,
    "a seeded Generator outside": MODERN.random,
    "a seeded Generator outside, float32": lambda: MODERN.random(dtype=np.float32),
    "a seeded Generator outside, integers": lambda: MODERN.integers(2**40) / 2**40,
    "a Generator inside, float32": lambda: np.random.default_rng().random(dtype=np.float32),
    "a Generator inside, integers": lambda: np.random.default_rng().integers(0, 2**40) / 2**40,
    "a Generator inside, uniform": lambda: np.random.default_rng().uniform(0, 1, size=3)[1],
    "a Generator inside, out=": lambda: (x := np.empty(1), np.random.default_rng().random(out=x), x[0])[2],
    "a Philox inside": lambda: np.random.Generator(np.random.Philox()).random(),
    "a seeded Philox inside": lambda: np.random.Generator(np.random.Philox(3)).random(),
    "an SFC64 inside": lambda: np.random.Generator(np.random.SFC64()).random(),
    "a PCG64DXSM inside": lambda: np.random.Generator(np.random.PCG64DXSM()).random(),
    "an MT19937 inside": lambda: np.random.Generator(np.random.MT19937()).random(),
    "raw bits of a Philox": lambda: np.random.Philox().random_raw() / 2**64,
    "raw bits outside": lambda: (MODERN.bit_generator.random_raw() >> 11) / 2**53,
    "a spawned Generator": lambda: MODERN.spawn(1)[0].random(),
    "a SeedSequence": lambda: np.random.default_rng(np.random.SeedSequence()).random(),
    "a SeedSequence's state": lambda: np.random.SeedSequence().generate_state(1)[0] / 2**32,
    # scipy
    "scipy uniform": lambda: stats.uniform.rvs(),
    "scipy uniform, frozen": lambda: stats.uniform(0, 1).rvs(1)[0],
    "scipy uniform, a Generator": lambda: stats.uniform.rvs(random_state=np.random.default_rng()),
    "scipy uniform, a seed": lambda: stats.uniform.rvs(random_state=5),
    "scipy qmc": lambda: stats.qmc.Halton(1, scramble=True).random(1)[0, 0],
    # torch
    "torch.rand with a generator": lambda: torch.rand((), dtype=F64, generator=OF_TORCH),
    "torch.rand of many": lambda: torch.rand(3, 2, dtype=F64)[2, 1],
    "torch.rand_like": lambda: torch.rand_like(torch.zeros(4, 4), dtype=F64)[3, 0],
    "torch.randint": lambda: torch.randint(2**31, (1,)).item() / 2**31,
    "torch.randint, high=": lambda: torch.randint(low=0, high=2**31, size=(1,))[0].double() / 2**31,
    "torch.randint_like": lambda: torch.randint_like(torch.zeros(1, dtype=F64), 2**31)[0] / 2**31,
    "torch.randperm": lambda: (torch.randperm(2)[0] + torch.rand((), dtype=F64)) / 2,
    "torch.bernoulli's bits": lambda: (
        (torch.bernoulli(torch.full((2,), 0.5, dtype=F64)) * 2.0 ** -torch.arange(1, 3, dtype=F64)).sum()
        + torch.rand((), dtype=F64) / 4
    ),
    "torch.normal": lambda: torch.special.ndtr(torch.normal(0.0, 1.0, (1,), dtype=F64))[0],
    "Tensor.normal_": lambda: torch.special.ndtr(torch.zeros(1, dtype=F64).normal_())[0],
    "Tensor.exponential_ with a generator": lambda: torch.exp(
        -torch.empty(1, dtype=F64).exponential_(generator=OF_TORCH)
    )[0],
    "Tensor.uniform_ of others": lambda: (torch.empty(1, dtype=F64).uniform_(-1, 1)[0] + 1) / 2,
    "Tensor.random_": lambda: torch.empty(1, dtype=torch.int64).random_(2**40)[0].double() / 2**40,
    "Tensor.log_normal_": lambda: torch.special.ndtr(torch.empty(1, dtype=F64).log_normal_().log())[0],
    "Tensor.cauchy_": lambda: torch.atan(torch.empty(1, dtype=F64).cauchy_())[0] / math.pi + 0.5,
    "torch.nn.init": lambda: torch.nn.init.uniform_(torch.empty(1, dtype=F64))[0],
    "torch.nn.init.normal_": lambda: torch.special.ndtr(torch.nn.init.normal_(torch.empty(1, dtype=F64)))[0],
    "distributions.Normal": lambda: torch.distributions.Normal(0.0, 1.0).cdf(
        torch.distributions.Normal(0.0, 1.0).sample()
    ),
    "distributions.Exponential": lambda: torch.exp(-torch.distributions.Exponential(1.0).sample()),
    "distributions.Gumbel": lambda: torch.exp(-torch.exp(-torch.distributions.Gumbel(0.0, 1.0).sample())),
    "distributions.Beta": lambda: torch.distributions.Beta(1.0, 1.0).sample(),
    "distributions.Laplace": lambda: torch.distributions.Laplace(0.0, 1.0).cdf(
        torch.distributions.Laplace(0.0, 1.0).sample()
    ),
    "rsample": lambda: torch.distributions.Uniform(0.0, 1.0).rsample(),
    "dropout": _dropout,
    "a Sobol sequence": _sobol,
    "fork_rng": _forked,
    "the operator aten::rand": lambda: torch.ops.aten.rand.default([1], dtype=F64)[0],
    "torch.rand imported by name": lambda: torch_by_name((), dtype=F64),
    "torch.jit": _jitted,
    "from numpy to torch": lambda: torch.as_tensor(np.random.rand(2))[0],
    "from torch to numpy": lambda: torch.rand(2, dtype=F64).numpy()[1],
    "from torch to a list": lambda: torch.rand(2, dtype=F64).tolist()[1],
    # where it is drawn, and the code around it
    "in a thread": lambda: _in_a_thread(random.random),
    "torch in a thread": lambda: _in_a_thread(lambda: torch.rand((), dtype=F64)),
    "by a queue": _by_a_queue,
    "a guard with a fallback": _guarded,
    "a bare except": _suppressed,
    "asked for its kind": _by_kind,
    "f-string": lambda: float(f"{random.random()}"),
    "the sum of two": lambda: (random.random() + random.random()) % 1,
    "folded": lambda: abs(2 * random.random() - 1),
    "rounded": lambda: round(random.random(), 9),
    "a fraction": lambda: math.modf(random.random() * 7)[0],
    "the larger of two, squared": lambda: max(random.random(), random.random()) ** 2,
    "the smallest is not 0": lambda: max(random.random(), 1e-12),
    "an array's entry by float": lambda: float(np.random.rand(3)[0]),
    "by np.float32": lambda: np.float32(np.random.rand()),
    "by torch.tensor": lambda: torch.tensor(random.random(), dtype=F64),
    "by torch.as_tensor": lambda: torch.as_tensor(np.random.uniform(size=2))[1],
}

NO_CHANCE = {
    "a seeded Random inside",
    "its state set back",
    "a copied generator",
    "a pickled generator",
    "a seeded Philox inside",
    "scipy uniform, a seed",
    "fork_rng",
}
"""Coins that fall alike in every call, so that no sampler with them is right."""
