"""A window of two siblings in plain float64 PyTorch; README.md has the derivation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

BUCKETS, SIZES = 64, 32
"""Of tokens by their rank, and classes that are tried."""

STAKE, TIE = 1e-5, 1e-6
"""The least draft probability of a token of the class, and how near scores are that count as equal."""


@dataclass(frozen=True, eq=False)
class Window:
    """A waiting sibling, and the next one; all float64 `[vocab]`.

    Attributes:
        h: the waiting one's law.
        draft: the draft's distribution without the tried tokens.
        odds: h over what the draft holds beside each token.
        f: the chance with which every token is of the class.
    """

    h: Tensor
    draft: Tensor
    odds: Tensor
    f: Tensor

    @classmethod
    def open(cls, h: Tensor, draft: Tensor, target: Tensor, *, further: int) -> Window:
        """The window with the class that lets most of `target` through; `further` siblings come after."""
        beside = draft.sum() - draft
        top = int(draft.argmax())
        beside[top] = draft[:top].sum() + draft[top + 1 :].sum()
        odds = torch.where(beside > 0, h / beside, 0)
        rank = target / (h + draft / draft.sum())
        octaves = (rank.float().view(torch.int32) + (1 << 19)) >> 20
        bucket = torch.where(draft > STAKE, (octaves - (122 << 3)).clamp(1, BUCKETS - 1), 0).long()
        sums = [draft.new_zeros(BUCKETS).index_add_(0, bucket, one) for one in (target, h, draft, odds)]
        mass = (sums[1] + sums[2] / draft.sum())[1:]
        above = mass.flip(0).cumsum(0).flip(0) - mass
        sizes = torch.linspace(0, 1, SIZES, dtype=torch.float64)[:, None] * mass.sum()
        shares = torch.where(mass > 0, (sizes - above) / mass, 0).clamp(0, 1)
        shares = torch.nn.functional.pad(torch.where(shares < 1e-6, 0, shares), (1, 0))
        scores = passed(shares, *sums, further=further)
        best = int((scores >= scores.max() - TIE).nonzero()[0])
        return cls(h, draft, odds, shares[best][bucket])

    def first(self) -> Tensor:
        """The law of the one that is tried first."""
        inside, outside = self.f * self.draft, (1 - self.f) * self.odds
        better, worse = inside.sum() - inside, outside.sum() - outside
        # What the likeliest token takes from itself cancels too badly, so that the others are summed.
        top = int(self.draft.argmax())
        for rivals, all_of in ((better, inside), (worse, outside)):
            rivals[top] = all_of[:top].sum() + all_of[top + 1 :].sum()
        lost = (self.h - self.odds * better.clamp(min=0)).clamp(min=0)
        return self.f * self.h + (1 - self.f) * lost + inside * worse.clamp(min=0)

    def second(self, token: int) -> Tensor:
        """The law of the other one, given the `token` that went first."""
        stayed, came = self.odds[token], self.draft[token] * self.f[token]
        law = stayed * (1 - (1 - self.f[token]) * self.f) * self.draft + came * (1 - self.f) * self.odds
        law[token] = 0
        return law / law.sum() if float(law.sum()) > 0 else law


def passed(f: Tensor, target: Tensor, h: Tensor, draft: Tensor, odds: Tensor, *, further: int) -> Tensor:
    """The mass `[sizes]` of `target` that siblings let through, for every class `f` `[sizes, n]`."""
    inside, out = f * draft, (1 - f) * odds
    p1 = h - out * (inside.sum(1, True) - inside) + inside * (out.sum(1, True) - out)
    passes = torch.minimum(target, p1.clamp_(min=0))
    failed = torch.where(p1 > 0, (p1 - passes) / p1, 0)
    stayed, came = failed * odds, failed * inside
    low = stayed * (1 - f)
    p2 = draft * (stayed.sum(1, True) - stayed - f * (low.sum(1, True) - low))
    more = torch.minimum(target - passes, (p2 + out * (came.sum(1, True) - came)).clamp(min=0))
    total, left = (passes + more).sum(1), target - passes - more
    for _ in range(further):
        again = torch.minimum(left, (h.sum() - total)[:, None] * (draft / draft.sum()))
        total, left = total + again.sum(1), left - again
    return total
