"""Two siblings without replacement, the one of the better class first: the choice of the class, the laws."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.strategies.verifiers.residual import Law, Residual

# Tokens that hold less of the target and the draft than this do not enter the choice one by one.
_STAKE = 1e-4
_MOST = 512  # tokens that do


@attrs.frozen(eq=False)
class Window:
    """A held sibling z of law h and the next one, drawn by D without the tried tokens and z.

    The laws and the formulas are those of `ClassOrder`.

    Attributes:
        h: the held one's law `[vocab]`, summing to 1.
        draft: D with the tried tokens at 0, `[vocab]`.
        odds: h(z) / q(z) with q(z) what D holds beside the tried tokens and z, `[vocab]`.
        members: tokens of the class H, `[members]`.
        f: the chances with which they belong to it, `[members]`.
    """

    h: Float[Tensor, " vocab"]
    draft: Float[Tensor, " vocab"]
    odds: Float[Tensor, " vocab"]
    members: Float[Tensor, " members"]
    f: Float[Tensor, " members"]

    @classmethod
    def open(cls, held: Law, p: Float[Tensor, " vocab"], tried: Sequence[int], residual: Residual) -> Window:
        """The window with the class that lets most of `residual` through.

        Args:
            held: the law of the held sibling.
            p: the draft's distribution D.
            tried: the tokens X.
            residual: what is left of the target.
        """
        h, draft = held.dense(), p
        if tried:
            draft = p.clone()
            draft[list(tried)] = 0
        beside = others(draft)
        odds = torch.where(beside > 0, h / beside, 0)
        members, f = choose_class(h, draft, beside, odds, residual)
        return cls(h, draft, odds, members, f)

    def swaps(self, held: int, following: int) -> float:
        """The chance that the held token and the one that follows it change places."""
        return self._belongs(following) * (1 - self._belongs(held))

    def first(self) -> Law:
        """The law p1 of the one that is tried first."""
        f, draft, odds = self.f, self.draft[self.members], self.odds[self.members]
        inside = float((f * draft).sum())
        outside = float(self.odds.sum()) - float((f * odds).sum())
        p1 = self.h.sub(self.odds, alpha=inside)
        p1[self.members] = (
            self.h[self.members]
            - (1 - f) * odds * (inside - f * draft)
            + f * draft * (outside - (1 - f) * odds)
        )
        return Law(p1.clamp_(min=0))

    def second(self, first: int) -> Law:
        """The law p2 of the other one, given the token tried `first`."""
        f, belongs = self.f, self._belongs(first)
        stays, comes = float(self.odds[first]), float(self.draft[first]) * belongs
        p2 = self.draft * stays
        if comes > 0:
            p2.add_(self.odds, alpha=comes)
        p2[self.members] = (1 - (1 - belongs) * f) * stays * self.draft[self.members] + comes * (
            1 - f
        ) * self.odds[self.members]
        p2[first] = 0
        total = float(p2.sum(dtype=torch.float64))
        return Law(p2, total)

    def _belongs(self, token: int) -> float:
        return float(self.f[self.members == token].sum())


def others(draft: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """What `draft` holds beside each token, `[vocab]`."""
    total = float(draft.sum(dtype=torch.float64))
    beside = total - draft
    # The difference cancels where one token holds nearly all; there alone the rest is summed.
    top = int(draft.argmax())
    beside[top] = draft[:top].sum() + draft[top + 1 :].sum()
    return beside.clamp_(min=0)


def choose_class(
    h: Float[Tensor, " vocab"],
    draft: Float[Tensor, " vocab"],
    beside: Float[Tensor, " vocab"],
    odds: Float[Tensor, " vocab"],
    residual: Residual,
) -> tuple[Tensor, Tensor]:
    """Tokens that are tried first, and the chance with which each belongs to them.

    They are the first of the order of T / (h + n), n being the law of the next sibling; the last one may
    belong in part. Prefixes of several sizes are scored by the mass that the two siblings together let
    through, the second one's law averaged over the first. Tokens of little stake count as one.
    """
    stake = residual.weights / residual.scale + draft
    candidates = (stake > _STAKE).nonzero().flatten()
    if len(candidates) > _MOST:
        candidates = stake.topk(_MOST).indices
    u, h_c, d, q, o = (one[candidates] for one in (residual.weights / residual.scale, h, draft, beside, odds))
    all_odds = odds.sum()
    proposed = h_c + d * (all_odds - o)
    order = (u / proposed).nan_to_num(posinf=torch.inf).argsort(descending=True)
    order = order[proposed[order] > 0]
    candidates = candidates[order]
    # The last column stands for the tokens of little stake, none of which belongs to the class.
    left_over = (residual.allowance, 1.0, float(draft.sum()), 0.0, float(all_odds))
    u, h_c, d, q, o, proposed = (one[order] for one in (u, h_c, d, q, o, proposed))
    columns = [
        torch.cat([one, (total - one.sum()).clamp(min=0).reshape(1)])
        for one, total in zip((u, h_c, d, o), (left_over[0], *left_over[1:3], left_over[4]), strict=True)
    ]
    ends = proposed.cumsum(0)
    if not len(ends):
        return candidates, u
    sizes = torch.cat([ends[:16], ends[-1] * torch.linspace(0, 1, 25, dtype=ends.dtype, device=ends.device)])
    f = ((sizes.unsqueeze(1) - (ends - proposed)) / proposed).clamp(0, 1)
    best = int(passed(torch.nn.functional.pad(f, (0, 1)), *columns).argmax())
    count = int((f[best] > 0).sum())
    return candidates[:count], f[best, :count]


def passed(
    f: Float[Tensor, "sizes n"],
    u: Float[Tensor, " n"],
    h: Float[Tensor, " n"],
    d: Float[Tensor, " n"],
    o: Float[Tensor, " n"],
) -> Float[Tensor, " sizes"]:
    """The mass `[sizes]` of the target `u` that both siblings let through, for every class `f`."""
    inside = (f * d).sum(-1, keepdim=True)
    out = (1 - f) * o
    outside = out.sum(-1, keepdim=True)
    p1 = (h - out * (inside - f * d) + f * d * (outside - out)).clamp(min=0)
    passes = torch.minimum(u, p1)
    failed = torch.where(p1 > 0, (p1 - passes) / p1, 0)
    gone = failed * o
    p2 = d * (
        gone.sum(-1, keepdim=True) - gone - f * ((gone * (1 - f)).sum(-1, keepdim=True) - gone * (1 - f))
    )
    come = failed * d * f
    p2 = p2 + out * (come.sum(-1, keepdim=True) - come)
    return passes.sum(-1) + torch.minimum(u - passes, p2.clamp(min=0)).sum(-1)
