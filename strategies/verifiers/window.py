"""Two siblings without replacement, the better one first: how they are ranked, and their laws."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.strategies.verifiers.residual import Law, Residual


@attrs.frozen(eq=False)
class Window:
    """A waiting sibling z, and the next one, drawn by D without the tried tokens and z.

    Each is of the class with a chance f(y) that depends on its token y. The next one goes first if it
    belongs to the class and the waiting one does not.

    Attributes:
        h: the waiting one's law `[vocab]`, summing to 1.
        draft: D with the tried tokens at 0, `[vocab]`.
        odds: h / q, with q(z) what D holds beside the tried tokens and z, `[vocab]`.
        members: tokens that may be of the class, `[members]`.
        f: the chances with which they are, `[members]`.
    """

    h: Float[Tensor, " vocab"]
    draft: Float[Tensor, " vocab"]
    odds: Float[Tensor, " vocab"]
    members: Int[Tensor, " members"]
    f: Float[Tensor, " members"]

    @classmethod
    def open(
        cls,
        h: Float[Tensor, " vocab"],
        p: Float[Tensor, " vocab"],
        *,
        tried: Sequence[int],
        further: int,
        residual: Residual,
    ) -> Window:
        """The window with the class that lets most of `residual` through.

        Args:
            h: the waiting one's law.
            p: the draft's distribution D.
            tried: the tried tokens.
            further: siblings after the two; their number must not depend on these two.
            residual: what is left of the target.
        """
        draft = p.to(h.dtype)
        if tried:
            draft = draft.clone() if draft is p else draft
            draft[list(tried)] = 0
        beside = others(draft)
        if h.dtype != torch.float64 and float(beside.min()) < 1e-30:
            # The odds of a token that is nearly certain leave the range of float32.
            h, draft = h.double(), draft.double()
            beside = others(draft)
        # A token that is all that is left has nobody beside it, and is nobody's rival.
        odds = (h / beside).nan_to_num_(nan=0, posinf=0)
        members, f = choose_class(h, draft, odds, residual, further)
        return cls(h, draft, odds, members, f)

    def chance_of_class(self, token: int) -> float:
        """f(token)."""
        return float(self.f[self.members == token].sum())

    def first(self) -> Law:
        """The law of the one that is tried first.

        No bit of it depends on the tokens that are judged: a rounding that did would tell of them
        wherever two classes are equally good.
        """
        members, f = self.members, self.f
        better, worse = self._rivals(members, f)
        p1 = self.h - better * self.odds
        of_class, outside = f * self.draft[members], (1 - f) * self.odds[members]
        # What a token takes from itself is no rival's.
        p1[members] = self._of(members, f, better - of_class, worse - outside)
        # What a nearly certain token takes from itself cancels too badly, so it is left out of its sums.
        top = self.draft.argmax().reshape(1)
        rivals = members != top
        better, worse = self._rivals(members[rivals], f[rivals], beside=top)
        p1[top] = self._of(top, f.new_tensor([self.chance_of_class(int(top))]), better, worse)
        return Law(p1.clamp_(min=0))

    def second(self, token: int) -> Float[Tensor, " vocab"]:
        """The law of the other one, given the `token` that went first."""
        belongs = self.chance_of_class(token)
        stayed, came = float(self.odds[token]), float(self.draft[token]) * belongs
        p2 = self.draft * stayed
        p2 = p2.add_(self.odds, alpha=came) if came > 0 else p2
        draft, odds = self.draft[self.members], self.odds[self.members]
        p2[self.members] = stayed * (1 - (1 - belongs) * self.f) * draft + came * (1 - self.f) * odds
        p2[token] = 0
        return p2.div_(p2.sum(dtype=torch.float64).clamp(min=torch.finfo(p2.dtype).tiny))

    def _rivals(
        self,
        members: Int[Tensor, " some"],
        f: Float[Tensor, " some"],
        *,
        beside: Int[Tensor, " one"] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """What beats a waiting one outside the class, and, over q, the waiting ones that one inside beats.

        Only `members` may be of the class, with the chances `f`; the token `beside` is left out.
        """
        excluded = members if beside is None else torch.cat([members, beside])
        better = (f * self.draft[members]).sum()
        worse = ((1 - f) * self.odds[members]).sum() + self.odds.index_fill(0, excluded, 0).sum()
        return better, worse

    def _of(self, tokens: Int[Tensor, " some"], f: Tensor, better: Tensor, worse: Tensor) -> Tensor:
        """p1 of `tokens`, `[some]`, with the chances `f` of the class and their rivals."""
        lost = (self.h[tokens] - self.odds[tokens] * better).clamp_(min=0)
        return f * self.h[tokens] + (1 - f) * lost + (f * self.draft[tokens] * worse).clamp_(min=0)


def others(draft: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """What `draft` holds beside each token, `[vocab]`."""
    beside = float(draft.sum(dtype=torch.float64)) - draft
    # The difference cancels where one token holds nearly all; there alone the rest is summed.
    top = int(draft.argmax())
    beside[top] = draft[:top].sum() + draft[top + 1 :].sum()
    return beside.clamp_(min=0)


def heavy(stake: Float[Tensor, " vocab"]) -> Int[Tensor, " some"]:
    """The tokens worth a look of their own: those above 1e-4, or above 1e-3 if these are many."""
    some = (stake > 1e-4).nonzero().flatten()
    return some if len(some) <= 512 else some[stake[some] > 1e-3]


def choose_class(
    h: Float[Tensor, " vocab"],
    draft: Float[Tensor, " vocab"],
    odds: Float[Tensor, " vocab"],
    residual: Residual,
    further: int = 0,
) -> tuple[Int[Tensor, " members"], Float[Tensor, " members"]]:
    """Tokens that are tried first, and the chance with which each belongs to them.

    They are the first of the order of T / (h + n), n being the law of the next sibling; the last one may
    belong in part. Prefixes of several sizes are scored by the mass that the two siblings together let
    through, the second one's law averaged over the first. Tokens of little stake count as one.
    """
    target = residual.weights / residual.scale
    some = heavy(target + draft)
    proposed = h[some] + draft[some] * (odds.sum() - odds[some])
    order = torch.where(proposed > 0, target[some] / proposed, -1).argsort(descending=True)
    some, proposed = some[order], proposed[order]
    live = int((proposed > 0).sum())
    if live == 0:
        return some[:0], proposed[:0]
    some, proposed = some[:live], proposed[:live]
    # The last column stands for all other tokens, none of which belongs to the class.
    columns = []
    for weights in (target, h, draft, odds):
        chosen = weights[some]
        columns.append(torch.cat([chosen, (weights.sum() - chosen.sum()).clamp(min=0).reshape(1)]))
    ends = proposed.cumsum(0)
    sizes = torch.cat([ends[:16], ends[-1] * torch.linspace(0, 1, 25, dtype=ends.dtype, device=ends.device)])
    f = ((sizes.unsqueeze(1) - (ends - proposed)) / proposed).clamp(0, 1)
    f = torch.where(f < 1e-6, 0, f)  # what rounding left is not worth a coin
    best = int(passed(torch.nn.functional.pad(f, (0, 1)), *columns, further=further).argmax())
    count = int((f[best] > 0).sum())
    return some[:count], f[best, :count]


def passed(
    f: Float[Tensor, "sizes n"],
    target: Float[Tensor, " n"],
    h: Float[Tensor, " n"],
    draft: Float[Tensor, " n"],
    odds: Float[Tensor, " n"],
    *,
    further: int,
) -> Float[Tensor, " sizes"]:
    """The mass `[sizes]` of `target` that the siblings let through, for every class `f`.

    Those after the first two are taken for draws from D.
    """
    inside = (f * draft).sum(-1, keepdim=True)
    out = (1 - f) * odds
    p1 = (h - out * (inside - f * draft) + f * draft * (out.sum(-1, keepdim=True) - out)).clamp(min=0)
    passes = torch.minimum(target, p1)
    failed = torch.where(p1 > 0, (p1 - passes) / p1, 0)
    stayed = failed * odds
    low = stayed * (1 - f)
    came = failed * draft * f
    p2 = draft * (stayed.sum(-1, keepdim=True) - stayed - f * (low.sum(-1, keepdim=True) - low))
    p2 = p2 + out * (came.sum(-1, keepdim=True) - came)
    more = torch.minimum(target - passes, p2.clamp(min=0))
    total, left = (passes + more).sum(-1), target - passes - more
    for _ in range(further):
        again = torch.minimum(left, (h.sum() - total).unsqueeze(-1) * (draft / draft.sum()))
        total, left = total + again.sum(-1), left - again
    return total
