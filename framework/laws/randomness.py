"""The only source of chance: one protocol, and its implementations over streams of uniforms.

Law D: a row's stream depends only on the row's own seed, so the same seed and prompt give the same text in
any batch. Draft and verification draw from separate streams: noise that chose a draft token must never be
seen again by the verifier that judges it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Protocol

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidDistribution, InvalidInput
from draftwood.kernels.machine_code import compiled


class Randomness(Protocol):
    """The random draws that policies and verifiers may make.

    The enumerator of `draftwood.testing` answers the same questions by visiting every outcome.
    """

    def accept(self, p: float) -> bool:
        """True with probability `p`; never at 0, always at 1."""
        ...

    def choose(self, p: Tensor) -> int:
        """An index drawn from the weights `p` `[vocab]`, which need not be normalised."""
        ...

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        """Up to `k` distinct indices drawn one after another from `p` `[vocab]`, in drawn order.

        The law is that of Gumbel top-k; fewer come back when fewer weights are above 0.
        """
        ...

    def arrival(self, rates: Sequence[float]) -> float:
        """The time of the last of several events that wait for each other, the i-th for `rates[i]` > 0.

        It is a sum of independent exponential times. Unless a source knows better, each is made of six draws
        of nine bits.
        """
        total, bits = 0.0, torch.ones(512)
        for rate in rates:
            u = 0.0
            for _ in range(6):
                u = (u + self.choose(bits)) / 512
            total += _waited(min(u, 1 - 2.0**-53)) / rate
        return total

    def nodes(self, n: int) -> Sequence[Randomness]:
        """Returns streams for the children of `n` nodes, in their order; draws of one do not change the
        others.

        So the children of many nodes are drawn at once, and a node's first ones are the same however
        many it gets. Under an enumerator all are the stream itself, where every draw is new.
        """
        return [self] * n


class UniformRandomness(Randomness):
    """Everything from one stream of float64 uniforms in [0, 1): the base of torch streams and tapes."""

    @abstractmethod
    def uniforms(self, n: int) -> Tensor:
        """The next `n` numbers of the stream, float64 on the CPU."""

    @abstractmethod
    def ahead(self, n: int) -> Tensor:
        """Returns the numbers that `uniforms` would, but keeps them; fewer where a tape ends."""

    def uniform(self) -> float:
        """The next number of the stream."""
        return float(self.uniforms(1))

    def skip(self, n: int) -> None:
        """Take the next `n` numbers, which nobody needs to see any more."""
        self.uniforms(n)

    def nodes(self, n: int) -> Sequence[CounterRandomness]:
        """Streams that the next `n` numbers start."""
        words = (int(self.uniform() * _WORDS) for _ in range(n))
        return [CounterRandomness(_mixed_word(word + _STEP)) for word in words]

    def accept(self, p: float) -> bool:
        # Strict: a coin of exactly 0 must not accept a token of probability 0.
        return self.uniform() < p

    def choose(self, p: Tensor) -> int:
        # float64 throughout: uniforms of low resolution starve the tail of a large vocabulary.
        return _at(p.cumsum(-1, dtype=torch.float64).cpu().numpy(), self.uniform())

    def arrival(self, rates: Sequence[float]) -> float:
        return sum(_waited(self.uniform()) / rate for rate in rates)

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        rest = p.to(torch.float64, copy=True)
        drawn: list[int] = []
        for _ in range(min(k, rest.shape[-1])):
            heights = rest.cumsum(-1).cpu().numpy()
            if not heights[-1] > 0:
                break
            drawn.append(_at(heights, self.uniform()))
            rest[drawn[-1]] = 0
        return drawn


def _waited(u: float) -> float:
    """The time of rate 1 that the uniform `u` stands for, above 0."""
    return -math.log1p(-max(u, 2.0**-54))


def _at(heights: NDArray[np.float64], u: float) -> int:
    """The first index whose cumulative weight exceeds `u` times the total, so never one of weight 0."""
    total = float(heights[-1])
    if not 0 < total < float("inf"):
        raise InvalidDistribution(
            f"Cannot draw from weights that sum to {total:.3g}; check the logits for NaN or infinity."
        )
    index = int(heights.searchsorted(u * total, side="right"))
    if index < len(heights):
        return index
    # u * total rounded up to the total itself: the last token with any weight is meant.
    return int(heights.searchsorted(total))


_STEP = 0x9E3779B97F4A7C15  # odd, so that 2**64 numbers come before the first comes again
_STEP_WORD = np.uint64(_STEP)
_SHIFTS = tuple(np.array([30, 27, 31, 11], dtype=np.uint64))
_FACTORS = tuple(np.array([0xBF58476D1CE4E5B9, 0x94D049BB133111EB], dtype=np.uint64))
_WORDS = 2.0**53
_LOW = 2**64 - 1


@compiled
def _mixed(word: np.uint64) -> np.uint64:
    """SplitMix64's finaliser: a bijection of 64-bit words whose every output bit depends on all of them."""
    word = (word ^ (word >> _SHIFTS[0])) * _FACTORS[0]
    word = (word ^ (word >> _SHIFTS[1])) * _FACTORS[1]
    mixed: np.uint64 = word ^ (word >> _SHIFTS[2])
    return mixed


def _mixed_word(word: int) -> int:
    """Mixes one word, of which the low 64 bits count, as `_mixed` does in compiled loops."""
    word &= _LOW
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _LOW
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _LOW
    return word ^ (word >> 31)


@attrs.define(eq=False)
class CounterRandomness(UniformRandomness):
    """A stream whose i-th number depends only on its key and i, so that many are computed at once.

    Attributes:
        key: 64 bits.
        used: numbers taken so far.

    Source: SplitMix64 (Steele, Lea and Flood 2014, doi 10.1145/2714064.2660195).
    """

    key: int
    used: int = 0

    @classmethod
    def seeded(cls, seed: int) -> CounterRandomness:
        """The stream of an integer, of which the low 64 bits count."""
        return cls(_mixed_word(seed))

    def uniforms(self, n: int) -> Tensor:
        numbers = self.ahead(n)
        self.used += n
        return numbers

    def uniform(self) -> float:
        # A coin is asked for node by node, and an array of one number costs thirty times as much.
        self.used += 1
        return (_mixed_word(self.key + self.used * _STEP) >> 11) / _WORDS

    def skip(self, n: int) -> None:
        self.used += n

    def ahead(self, n: int) -> Tensor:
        keys, used = np.array([self.key], dtype=np.uint64), np.array([self.used])
        return torch.from_numpy(_counted(keys, used, n)[0])


def _counted(keys: NDArray[np.uint64], used: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """The next `n` uniforms `[*streams, n]` of the streams with these keys."""
    return _next_numbers(keys.ravel(), used.ravel(), n).reshape(*keys.shape, n)


@compiled
def _next_numbers(keys: NDArray[np.uint64], used: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    found = np.empty((len(keys), n))
    for stream in range(len(keys)):
        for place in range(n):
            number = np.uint64(used[stream] + place + 1)
            found[stream, place] = (_mixed(keys[stream] + number * _STEP_WORD) >> _SHIFTS[3]) / _WORDS
    return found


def _keys(uniforms: NDArray[np.float64]) -> NDArray[np.uint64]:
    """The keys of the streams that these uniforms start."""
    return _started(uniforms.ravel()).reshape(uniforms.shape)


@compiled
def _started(uniforms: NDArray[np.float64]) -> NDArray[np.uint64]:
    keys = np.empty(len(uniforms), np.uint64)
    for stream in range(len(uniforms)):
        keys[stream] = _mixed(np.uint64(uniforms[stream] * _WORDS) + _STEP_WORD)
    return keys


def node_uniforms(uniforms: NDArray[np.float64], n: int) -> NDArray[np.float64]:
    """The first `n` numbers `[*nodes, n]` of the streams that `nodes` starts by `uniforms` `[*nodes]`."""
    keys = _keys(uniforms)
    return _counted(keys, np.zeros(keys.shape, dtype=np.int64), n)


def ahead_of_rows(rngs: Sequence[UniformRandomness], n: int, *, past_end: float = 0.0) -> NDArray[np.float64]:
    """Returns the next `n` numbers of every stream, `[rows, n]`, and leaves them there.

    Entries after the end of a tape are `past_end`.
    """
    keys, used = [], []
    for rng in rngs:
        if type(rng) is not CounterRandomness:
            break
        keys.append(rng.key)
        used.append(rng.used)
    else:
        return _counted(np.array(keys, dtype=np.uint64), np.array(used), n)
    uniforms = np.full((len(rngs), n), past_end)
    for row, rng in enumerate(rngs):
        numbers = rng.ahead(n).numpy()
        uniforms[row, : len(numbers)] = numbers
    return uniforms


@attrs.frozen(eq=False)
class NodeNoise:
    """The streams that `nodes` gives, for many rows as arrays: the numbers that each stream would give.

    Attributes:
        keys: uint64 `[rows, nodes]`; of a row with fewer nodes the last ones are of no use.
        made: the first numbers of each stream, as far as they are made already, `[rows, nodes, n]`.
    """

    keys: NDArray[np.uint64]
    made: NDArray[np.float64]

    def uniforms(self, n: int) -> NDArray[np.float64]:
        """The first `n` numbers of every stream, `[rows, nodes, n]`."""
        return _counted(self.keys, np.zeros(self.keys.shape, np.int64), n)


NODES_AHEAD, NUMBERS_AHEAD = 32, 4
"""Nodes of a row whose streams are made at once, and how many numbers of each."""


class NodeStreams:
    """The streams of the nodes of all rows, in the order in which each row opens them.

    A level of a tree has few nodes, and making their streams level by level costs as much each time as making
    all of them once.
    """

    def __init__(self, rngs: Sequence[UniformRandomness]) -> None:
        """Streams that `rngs` start, one row each; nothing is taken from them yet."""
        self._rngs = rngs
        self._keys = np.zeros((len(rngs), 0), np.uint64)
        self._made = np.zeros((len(rngs), 0, 0))
        # Numbers that every row had used when they were made.
        self._used: list[int] = []
        # A tape may end before the numbers that would be made ahead.
        self._ahead = NODES_AHEAD if all(type(rng) is CounterRandomness for rng in rngs) else 0

    @classmethod
    def of(cls, rngs: Sequence[Randomness]) -> NodeStreams | None:
        """Returns the streams of these rows' nodes; None where a row cannot show its numbers in advance."""
        uniform = [rng for rng in rngs if isinstance(rng, UniformRandomness)]
        return cls(uniform) if len(uniform) == len(rngs) else None

    def take(self, counts: Sequence[int]) -> NodeNoise:
        """Take what `rngs[i].nodes(counts[i])` would give for every row i."""
        width, places = max(counts, default=0), [0] * len(counts)
        for row, used in enumerate(self._used):
            places[row] = self._rngs[row].used - used  # type: ignore[attr-defined]
        start, least = max(places, default=0), min(places, default=0)
        if not self._used or start + width > self._keys.shape[1] or least < 0:
            self._keys = _keys(ahead_of_rows(self._rngs, max(width, self._ahead)))
            self._made = _counted(self._keys, np.zeros(self._keys.shape, np.int64), NUMBERS_AHEAD)
            start, least, places = 0, 0, [0] * len(counts)
            if self._ahead:
                self._used = [rng.used for rng in self._rngs]  # type: ignore[attr-defined]
        for rng, count in zip(self._rngs, counts, strict=True):
            rng.skip(count)
        if least == start:
            nodes = slice(start, start + width)
            return NodeNoise(self._keys[:, nodes], self._made[:, nodes])
        rows, columns = np.arange(len(counts))[:, None], np.array(places)[:, None] + np.arange(width)
        return NodeNoise(self._keys[rows, columns], self._made[rows, columns])


@attrs.define(eq=False)
class TapeRandomness(UniformRandomness):
    """Replays a recorded tape of uniforms, so that a fused kernel can be compared draw by draw."""

    tape: Tensor
    used: int = 0

    def uniforms(self, n: int) -> Tensor:
        if self.used + n > len(self.tape):
            raise InvalidInput(
                f"The tape of {len(self.tape)} uniforms is used up at {self.used}; record a longer one."
            )
        self.used += n
        return self.tape[self.used - n : self.used].to(torch.float64)

    def ahead(self, n: int) -> Tensor:
        return self.tape[self.used : self.used + n].to(torch.float64)


@attrs.frozen
class Streams:
    """The two named streams of one row."""

    draft: Randomness
    verify: Randomness

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Independent draft and verification streams spawned from one `seed` >= 0."""
        if seed < 0:
            raise InvalidInput(f"The seed is {seed}; give an integer >= 0.")
        draft, verify = (
            int(s.generate_state(1, np.uint64)[0] >> 1) for s in np.random.SeedSequence(seed).spawn(2)
        )
        return cls(CounterRandomness.seeded(draft), CounterRandomness.seeded(verify))


class SpawnedSeeds:
    """A seed for one row after another: the first has the seed itself, the others are spawned from it."""

    def __init__(self, seed: int | None) -> None:
        """None takes the seed from torch's global generator.

        Raises:
            InvalidInput: a seed that is no integer >= 0.
        """
        seed = _as_seed(int(torch.randint(2**31, ())) if seed is None else seed)
        self._seeds = [seed]
        self._taken = 0

    def take(self, given: int | None = None) -> int:
        """The next row's seed; `given` is taken instead of it."""
        self._taken += 1
        if given is not None:
            return _as_seed(given)
        if self._taken > len(self._seeds):
            sequence = np.random.SeedSequence(self._seeds[0], spawn_key=(1,))
            more = sequence.generate_state(2 * self._taken, np.uint64)
            self._seeds = [self._seeds[0], *map(int, more)]
        return self._seeds[self._taken - 1]


def row_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """One seed a row, as `SpawnedSeeds` gives them, so that calls with consecutive seeds share no row.

    Raises:
        InvalidInput: another number of seeds than of rows, or one that is no integer >= 0.
    """
    if isinstance(seed, Sequence):
        if len(seed) != rows:
            raise InvalidInput(f"{len(seed)} seeds were given for {rows} rows; give one per row.")
        return [_as_seed(row_seed) for row_seed in seed]
    seeds = SpawnedSeeds(seed)
    return [seeds.take() for _ in range(rows)]


def _as_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InvalidInput(f"The seed is {seed!r}; give an integer >= 0.")
    return int(seed)
