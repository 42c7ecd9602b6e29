"""Interval splitting: the exact law of a function of uniforms, from calls of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, TypeVar

import attrs
import torch

from draftwood.base.errors import DraftwoodError

T = TypeVar("T", bound=Hashable)
Point = tuple[int, ...]

GRID = 16
"""Number of evenly spaced probes of every uniform, in addition to the guesses and both ends."""

TRIALS = 100
"""Random points at which a splitting must foretell the result."""

ROUNDS = 6
"""How often a splitting is refined by the points that it did not foretell.

Each time it must foretell more: what has no boxes would otherwise pass one day, cut small enough.
"""


class CannotEnumerate(DraftwoodError):
    """Chance is used in a way that has no finite list of outcomes; draw samples.

    Attributes:
        made: all since the list was emptied, those too that the code under test caught.
    """

    made: ClassVar[list[CannotEnumerate]] = []

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        self.made.append(self)


class UnseenChance(CannotEnumerate):
    """Code draws from a source that is not enumerated: it came out otherwise under the same script."""


def split_uniforms(
    run: Callable[[Sequence[float]], T],
    *,
    count: int,
    guesses: Iterable[float] = (),
    bits: int = 53,
    seed: int = 0,
    trials: int = TRIALS,
) -> list[tuple[float, T]]:
    """Every result of `run` with its exact probability, where `run` takes `count` independent uniforms.

    A uniform is a multiple of 2^-bits in [0, 1), as `torch.rand` makes them on the CPU: 53 bits in
    float64, 24 in float32. Every piece is exact to the last of them: weights have no error but the
    rounding of their product.

    The results must be constant on boxes that split one uniform after the other: where the second one breaks
    may depend on the piece in which the first lies. So does every sampler that compares its uniforms with
    numbers. For one uniform after the other `run` is called at both ends, at evenly spaced points and between
    all neighbouring `guesses`, each with four settings of the later uniforms (all lowest, all highest, two at
    random); where neighbours differ, the break is bisected. The splitting must then foretell the result at
    `trials` further points, half of them random and half at the break points, and is refined by those that it
    misses.

    What can be missed: a piece narrower than 1 / `GRID` whose ends are no guesses, or a break that only shows
    under rare settings of the later uniforms. The random points bound what is missed: 50 of them, half of
    `TRIALS`, stay silent about a share of 9 % of all outcomes with probability 1 %. A proof of many drafts
    has as many times the points, and a bound on the mean of their shares as many times lower.

    Args:
        run: takes the uniforms and gives a result that can be compared and hashed; no other chance.
        count: how many uniforms it takes.
        guesses: where breaks are likely: ratios and cumulative sums of what `run` works with.
        bits: resolution of the uniforms.
        seed: of the random points.
        trials: points that it must foretell.

    Raises:
        CannotEnumerate: the results are not constant on such boxes, or `run` draws other random numbers.
    """
    splitting = _Splitting(run, count, bits, _grid_points(guesses, bits))
    generator = torch.Generator().manual_seed(seed)
    for refined in range(ROUNDS):
        root = splitting.split(())
        points = splitting.trials(root, trials * (1 + 4 * refined), generator)
        missed = [point for point in points if root.at(point) != splitting.result(point)]
        if not missed:
            return list(root.leaves(2.0**-bits))
        splitting.learn(missed)
    point = [x / 2**bits for x in missed[0]]
    raise CannotEnumerate(
        f"The result at the uniforms {point} is not that of its neighbours after {ROUNDS} refinements; it "
        "is not constant on boxes of uniforms, or depends on other chance: give samples=."
    )


def _grid_points(guesses: Iterable[float], bits: int) -> list[int]:
    """Returns the uniforms nearest to the guesses inside (0, 1); points that differ by rounding are one."""
    points: list[int] = []
    for point in sorted(round(guess * 2**bits) for guess in guesses if 0 < guess < 1):
        if not points or point - points[-1] > _near(bits):
            points.append(point)
    return points


def _near(bits: int) -> int:
    """Returns the largest distance of a break point from its guess by rounding, in steps of a uniform."""
    return 1 << bits // 8


@attrs.frozen
class _Branch(Generic[T]):
    """The pieces of one uniform: where each ends (exclusively), and what follows in it."""

    ends: list[int]
    below: list[_Branch[T] | T]

    def at(self, point: Point) -> T:
        index = next(index for index, end in enumerate(self.ends) if point[0] < end)
        below = self.below[index]
        return below.at(point[1:]) if isinstance(below, _Branch) else below

    def leaves(self, step: float) -> Iterator[tuple[float, T]]:
        for start, end, below in zip([0, *self.ends], self.ends, self.below, strict=False):
            weight = (end - start) * step
            if isinstance(below, _Branch):
                yield from ((weight * rest, result) for rest, result in below.leaves(step))
            else:
                yield weight, below

    def breaks(self, depth: int = 0) -> Iterator[tuple[int, int]]:
        """Yields the number of a uniform and an end of a piece, for all pieces."""
        for end, below in zip(self.ends, self.below, strict=True):
            yield depth, end
            if isinstance(below, _Branch):
                yield from below.breaks(depth + 1)


@attrs.define(eq=False)
class _Splitting(Generic[T]):
    run: Callable[[Sequence[float]], T]
    count: int
    bits: int
    guesses: list[int]
    _results: dict[Point, T] = attrs.field(factory=dict, init=False)
    _missed: list[Point] = attrs.field(factory=list, init=False)
    _later: list[list[Point]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        top = 2**self.bits - 1
        generator = torch.Generator().manual_seed(1)
        self._later = []
        for left in range(self.count):
            inner = torch.randint(top, (2, left), generator=generator).tolist()
            self._later.append(list(dict.fromkeys([(0,) * left, (top,) * left, *map(tuple, inner)])))

    def result(self, point: Point) -> T:
        if point not in self._results:
            self._results[point] = self.run([x / 2**self.bits for x in point])
        return self._results[point]

    def learn(self, missed: Sequence[Point]) -> None:
        """Look from now on also where the splitting was wrong."""
        for point in missed[:4]:
            self._missed.append(point)
            for left in range(self.count):
                later = point[self.count - left :]
                if later not in self._later[left]:
                    self._later[left].append(later)

    def trials(self, root: _Branch[T], count: int, generator: torch.Generator) -> Iterator[Point]:
        top = 2**self.bits - 1
        ends: list[list[int]] = [[0, top] for _ in range(self.count)]
        for uniform, end in root.breaks():
            ends[uniform] += [end - 1, min(end, top)]
        for number in range(count):
            if number % 2:
                yield tuple(torch.randint(top + 1, (self.count,), generator=generator).tolist())
            else:
                yield tuple(
                    choices[int(torch.randint(len(choices), (), generator=generator))] for choices in ends
                )

    def split(self, before: Point) -> _Branch[T]:
        """Returns the pieces of the uniform after `before`, each with the pieces of all later uniforms."""
        left = self.count - len(before) - 1
        ends = self._ends(before, left)
        middles = [(start + end) // 2 for start, end in zip([0, *ends], ends, strict=False)]
        if left:
            return _Branch(ends, [self.split((*before, middle)) for middle in middles])
        return _Branch(ends, [self.result((*before, middle)) for middle in middles])

    def _ends(self, before: Point, left: int) -> list[int]:
        def signature(x: int) -> tuple[T, ...]:
            return tuple(self.result((*before, x, *later)) for later in self._later[left])

        top = 2**self.bits - 1
        grid = (number * (top + 1) // GRID for number in range(GRID + 1))
        marks = sorted({*grid, *self.guesses})
        between = {(low + high) // 2 for low, high in itertools.pairwise(marks)}
        more = {point[len(before)] for point in self._missed}
        points = sorted({0, top, *between, *more})
        ends: list[int] = []
        for low, high in itertools.pairwise(points):
            ends += self._breaks(signature, low, high)
        return [*ends, top + 1]

    def _breaks(self, signature: Callable[[int], tuple[T, ...]], low: int, high: int) -> Iterator[int]:
        """Every x in (low, high] whose signature is not that of x - 1, as far as bisection shows them."""
        first, last = signature(low), signature(high)
        if first == last:
            return
        if high - low == 1:
            yield high
            return
        # A guess in between is tried first, a little to both sides: it saves most of the bisection.
        near = _near(self.bits)
        for guess in self.guesses:
            if (
                low < guess - near
                and guess + near < high
                and signature(guess - near) == first
                and signature(guess + near) == last
            ):
                yield from self._breaks(signature, guess - near, guess + near)
                return
        middle = (low + high) // 2
        yield from self._breaks(signature, low, middle)
        yield from self._breaks(signature, middle, high)
