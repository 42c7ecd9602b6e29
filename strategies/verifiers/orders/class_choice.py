"""The tokens that two siblings are told apart by: those that the target wants more than they are proposed."""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BUCKETS = 64
"""Ratios have eight buckets an octave; the first bucket is for tokens that are never of the class."""

SIZES = 32
"""Classes that are tried: shares of what is proposed, from nothing to all."""

STAKE = 1e-5
"""Tokens of less draft probability are never of the class."""

TIE = 1e-6
"""Of classes whose scores are this near to each other the smallest is taken, whatever rounding says."""

_SHIFT, _HALF, _LOWEST = 20, 1 << 19, (127 - 5) << 3  # bits of a float32: the second bucket begins near 2^-5


@attrs.frozen(eq=False)
class Columns:
    """Four weights of tokens, or their sums over some tokens, float64 `[n]` each.

    Attributes:
        target: what is left of the target.
        h: the waiting sibling's law.
        draft: the draft's distribution without the tried tokens.
        odds: h over the draft's mass without the token.
    """

    target: Floats
    h: Floats
    draft: Floats
    odds: Floats

    def at(self, tokens: NDArray[np.int64]) -> Columns:
        return Columns(*(weights[tokens] for weights in self.rows()))

    def rows(self) -> tuple[Floats, Floats, Floats, Floats]:
        return self.target, self.h, self.draft, self.odds


def choose_class(tokens: Columns, total: Columns, *, further: int) -> Floats:
    """The chance `[n]` with which each of `tokens` is of the class.

    Tokens are ranked by T / (h + D), with D normalised. All that share a bucket have one
    chance. The class holds the first of that order; the last bucket may belong in part. Several sizes are
    scored by the mass that the two siblings together let through, the second one's law averaged over the
    first.

    Args:
        tokens: those that may be of the class, all with a draft probability above 0.
        total: sums over the whole vocabulary, `[1]` each.
        further: siblings after the two; their number must not depend on these two.
    """
    proposed = tokens.draft / total.draft
    proposed += tokens.h
    bucket = bucket_of(tokens.target, proposed)
    sums = np.empty((5, BUCKETS))
    for line, weights in zip(sums, (*tokens.rows(), proposed), strict=True):
        line[:] = np.bincount(bucket, weights, BUCKETS)
    # What the others have, whose bucket is the last of the order.
    whole = np.concatenate(total.rows())
    sums[:4, 0] = np.maximum(whole - np.add.reduce(sums[:4], 1), 0)
    sums[4, 0] = np.inf
    live = np.flatnonzero(sums[4])[::-1]
    share = np.zeros(BUCKETS)
    f = _prefixes(sums[4, live[:-1]])
    scores = passed(f, Columns(*sums[:4, live]), further=further)
    share[live] = f[(scores >= scores.max() - TIE).argmax()]
    return share[bucket]


def bucket_of(target: Floats, proposed: Floats) -> NDArray[np.int64]:
    """The bucket, from 1 on, of tokens with these weights; where nothing is proposed, the first."""
    octaves = (target / proposed).astype(np.float32).view(np.int32)
    octaves += _HALF
    octaves >>= _SHIFT
    octaves -= _LOWEST
    np.minimum(np.maximum(octaves, 1, out=octaves), BUCKETS - 1, out=octaves)
    return octaves.astype(np.int64)


def _prefixes(mass: Floats) -> Floats:
    """Chances `[SIZES, n + 1]` of n buckets that hold `mass` each, and of one more, which has none.

    They are growing shares of the mass, from the first bucket on.
    """
    ends = mass.cumsum()
    f = np.zeros((SIZES, len(mass) + 1))
    inner = f[:, :-1]
    np.subtract(_SHARES * ends[-1:], ends - mass, out=inner)
    inner /= mass
    np.maximum(np.minimum(inner, 1, out=inner), 0, out=inner)
    inner *= inner >= 1e-6  # what rounding left is not worth a coin
    return f


_SHARES = np.linspace(0, 1, SIZES)[:, None]


def passed(f: Floats, tokens: Columns, *, further: int) -> Floats:
    """The mass `[sizes]` of the target that the siblings let through, for every class `f` `[sizes, n]`.

    Those after the first two are taken for draws from the draft.
    """
    target, h, draft, odds = tokens.rows()
    outside = 1 - f
    out, inside = outside * odds, f * draft
    p1 = h - out * (_sums(f, draft) - inside)
    p1 += inside * (_sums(outside, odds) - out)
    np.maximum(p1, 0, out=p1)
    passes = np.minimum(target, p1)
    failed = p1 - passes
    failed /= np.maximum(p1, _TINY, out=p1)
    stayed, low, came = failed * odds, failed * out, failed * inside
    p2 = _summed(low) - low
    p2 *= -f
    p2 += _summed(stayed) - stayed
    p2 *= draft
    p2 += out * (_summed(came) - came)
    left = target - passes
    more = np.minimum(left, np.maximum(p2, 0, out=p2), out=p2)
    left -= more
    total = _summed(passes) + _summed(more)
    if further:
        whole, proposed = h.sum(), draft / draft.sum()
        for _ in range(further):
            again = (whole - total) * proposed
            np.minimum(left, again, out=again)
            total += _summed(again)
            left -= again
    return total[:, 0]


def _sums(chances: Floats, weights: Floats) -> Floats:
    """The sums `[sizes, 1]` of what each size's `chances` `[sizes, n]` leave of `weights` `[n]`."""
    sums: Floats = (chances @ weights)[:, None]
    return sums


def _summed(weights: Floats) -> Floats:
    """The sums `[sizes, 1]` of each size's weights `[sizes, n]`."""
    sums: Floats = np.add.reduce(weights, 1, keepdims=True)
    return sums


_TINY = np.finfo(np.float64).tiny
