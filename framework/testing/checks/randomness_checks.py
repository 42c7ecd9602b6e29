"""Checks of every source of randomness; each takes the source and a number that is not used."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness, UniformRandomness
from draftwood.testing.diagnosis.law_broken import LawBroken

_DRAWS = 4000
_DEVIATIONS = 6.0
"""A count this many standard deviations off comes by chance once in half a billion."""

_LAWS: tuple[tuple[float, ...], ...] = ((0.5, 0.3, 0.2), (0.0, 0.9, 0.0, 0.1), (1.0, 3.0, 4.0), (1.0,))
_TOP = 1 - 2**-53


def randomness_checks(rng: Randomness) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The checks that apply to `rng`, by name; it is copied, so that its stream stays where it is."""
    yield "accept", partial(check_accept, rng)
    yield "choose", partial(check_choose, rng)
    yield "without-replacement", partial(check_without_replacement, rng)
    yield "arrival", partial(check_arrival, rng)
    if isinstance(rng, UniformRandomness):
        yield "edges", partial(check_edges, rng)
        yield "uniforms", partial(check_uniforms, rng)
        yield "ahead", partial(check_ahead, rng)


def check_accept(rng: Randomness, models: int) -> None:
    """`accept(p)` is true with probability p: never at 0, always at 1."""
    rng = copy.deepcopy(rng)
    for p in (0.0, 0.03, 0.5, 0.9, 1.0):
        heads = sum(rng.accept(p) for _ in range(_DRAWS))
        _count(f"accept({p})", heads, p, _DRAWS)


def check_choose(rng: Randomness, models: int) -> None:
    """`choose(p)` draws an index by its weight."""
    rng = copy.deepcopy(rng)
    for law in _LAWS:
        for dtype in (torch.float64, torch.float32):
            weights = torch.tensor(law, dtype=dtype)
            drawn = torch.tensor([rng.choose(weights) for _ in range(_DRAWS)])
            _counts(f"choose({list(law)})", drawn, weights)


def check_without_replacement(rng: Randomness, models: int) -> None:
    """`without_replacement(p, k)` draws one after another, each from the weights that the earlier ones
    leave."""
    rng = copy.deepcopy(rng)
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    orders: dict[tuple[int, ...], float] = {}
    for first, second in ((0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)):
        orders[first, second] = float(p[first] * p[second] / (1 - p[first]))
    drawn = [tuple(rng.without_replacement(p, 2)) for _ in range(_DRAWS)]
    for order in sorted({*orders, *drawn}):
        _count(
            f"without_replacement(p, 2) == {list(order)}", drawn.count(order), orders.get(order, 0.0), _DRAWS
        )
    all_of_them = rng.without_replacement(p, 4)
    if sorted(all_of_them) != [0, 1, 2]:
        raise LawBroken(f"without_replacement of 4 from {p.tolist()} gives {all_of_them}, not 0, 1 and 2.")


def check_arrival(rng: Randomness, models: int) -> None:
    """`arrival(rates)` is a sum of independent exponential times: of one, and of two."""
    rng = copy.deepcopy(rng)
    one, two = (torch.tensor([rng.arrival(rates) for _ in range(_DRAWS)]) for rates in ((2.0,), (2.0, 0.5)))
    for time in (0.0, 0.01, 0.3, 2.0, 8.0):
        first, second = math.exp(-2.0 * time), math.exp(-0.5 * time)
        _count(f"arrival([2]) > {time}", int((one > time).sum()), first, _DRAWS)
        both = (4 * second - first) / 3
        _count(f"arrival([2, 0.5]) > {time}", int((two > time).sum()), both, _DRAWS)


def check_edges(rng: UniformRandomness, models: int) -> None:
    """At the ends of the unit interval nothing of weight 0 is drawn, and no other token is favoured."""
    for u in (0.0, _TOP):
        fixed = _At(rng, u)
        if not 0 < fixed.arrival([1.0]) < math.inf:
            raise LawBroken(f"With the uniform {u!r}, arrival([1]) is {fixed.arrival([1.0])}.")
        if fixed.accept(0.0) or not fixed.accept(1.0):
            raise LawBroken(
                f"With the uniform {u!r}, accept(0) is {fixed.accept(0.0)} and accept(1) "
                f"{fixed.accept(1.0)}.",
                likely="the coin's test is coin <= p; a coin may be exactly 0, so it must be coin < p.",
            )
        for law in ((0.0, 1.0, 0.0), (0.0, 0.5, 0.5, 0.0), (0.0, 5e-324, 1.0, 0.0)):
            token = fixed.choose(torch.tensor(law, dtype=torch.float64))
            if not law[token]:
                raise LawBroken(
                    f"With the uniform {u!r}, choose({list(law)}) draws {token}, whose weight is 0.",
                    likely="the cumulative weights are searched with a test that is not strict.",
                )
    # The interval of each token is as long as its weight: exactly, for weights in eighths.
    weights = torch.tensor([3.0, 0.0, 1.0, 4.0], dtype=torch.float64) / 8
    drawn = torch.tensor([_At(rng, k / 64).choose(weights) for k in range(64)])
    shares = torch.bincount(drawn, minlength=len(weights)) / 64
    if not torch.equal(shares.double(), weights):
        raise LawBroken(
            f"choose({weights.tolist()}) gives the tokens to parts {shares.tolist()} of the unit interval.",
            error=float((shares - weights).abs().max()),
        )


def check_uniforms(rng: UniformRandomness, models: int) -> None:
    """Uniforms lie in [0, 1), in float64 with all its digits, and tell nothing of each other."""
    u = copy.deepcopy(rng).uniforms(_DRAWS)
    if u.dtype != torch.float64 or not bool(((u >= 0) & (u < 1)).all()):
        raise LawBroken(f"uniforms({_DRAWS}) lie between {float(u.min())} and {float(u.max())} in {u.dtype}.")
    for bits in (1, 8, 16, 24, 32, 48):
        of_bit = int(((u * 2.0**bits) % 1 >= 0.5).sum())
        if abs(of_bit - _DRAWS / 2) > _DEVIATIONS * math.sqrt(_DRAWS) / 2:
            raise LawBroken(
                f"Binary digit {bits + 1} of the uniforms is 1 in {of_bit} of {_DRAWS}.",
                error=abs(of_bit / _DRAWS - 0.5) * 2.0**-bits,
                likely="the uniforms are of low resolution, which starves unlikely tokens of a large "
                "vocabulary; draw them in float64.",
            )
    for lag in (1, 2, 3):
        alike = int(((u[lag:] < 0.5) == (u[:-lag] < 0.5)).sum())
        _count(f"uniforms {lag} apart on one side of 1/2", alike, 0.5, _DRAWS - lag)


def check_ahead(rng: UniformRandomness, models: int) -> None:
    """`ahead(n)` shows the next `n` uniforms and leaves them in the stream."""
    rng = copy.deepcopy(rng)
    shown, again, drawn = rng.ahead(5), rng.ahead(5), rng.uniforms(5)
    if not (torch.equal(shown, again) and torch.equal(shown, drawn)):
        raise LawBroken(f"ahead(5) shows {shown.tolist()} and uniforms(5) then takes {drawn.tolist()}.")


@attrs.define(eq=False)
class _At(UniformRandomness):
    """The source's own rules over a uniform that is always `u`."""

    rng: UniformRandomness
    u: float

    def uniforms(self, n: int) -> Tensor:
        return torch.full((n,), self.u, dtype=torch.float64)

    def ahead(self, n: int) -> Tensor:
        return self.uniforms(n)

    def accept(self, p: float) -> bool:
        return type(self.rng).accept(self, p)

    def choose(self, p: Tensor) -> int:
        return type(self.rng).choose(self, p)

    def arrival(self, rates: Sequence[float]) -> float:
        return type(self.rng).arrival(self, rates)


def _counts(what: str, drawn: Tensor, weights: Tensor) -> None:
    law: Sequence[float] = (weights / weights.sum()).tolist()
    counts = torch.bincount(drawn, minlength=len(law)).tolist()
    for token, (count, p) in enumerate(zip(counts, law, strict=True)):
        _count(f"{what} == {token}", count, p, len(drawn))


def _count(what: str, count: int, p: float, draws: int) -> None:
    allowed = _DEVIATIONS * math.sqrt(draws * p * (1 - p))
    if abs(count - draws * p) > allowed:
        raise LawBroken(
            f"{what} came {count} times in {draws}, and should come {draws * p:.0f} times.",
            error=abs(count / draws - p),
        )
