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
    """A held sibling z, and the next one, drawn by D without the tried tokens and z.

    The rank of a sibling is `levels * class + level`. Its level is random, independent of its token, and
    known of the siblings themselves (see `ClassOrder`); its class is 1 with a chance f(y) that depends on
    its token y. The next sibling goes first if its rank is the higher one.

    Attributes:
        h: the held one's law, jointly with its level, `[levels, vocab]`, summing to 1.
        draft: D with the tried tokens at 0, `[vocab]`.
        chances: of the next one's levels, `[levels]`, summing to 1.
        odds: h / q, with q(z) what D holds beside the tried tokens and z, `[levels, vocab]`.
        members: tokens that may be of class 1, `[members]`.
        f: the chances with which they are, `[members]`.
    """

    h: Float[Tensor, "levels vocab"]
    draft: Float[Tensor, " vocab"]
    chances: Float[Tensor, " levels"]
    odds: Float[Tensor, "levels vocab"]
    members: Int[Tensor, " members"]
    f: Float[Tensor, " members"]

    @classmethod
    def open(
        cls,
        h: Float[Tensor, "levels vocab"],
        p: Float[Tensor, " vocab"],
        *,
        chances: Float[Tensor, " levels"],
        tried: Sequence[int],
        further: int,
        residual: Residual,
    ) -> Window:
        """The window with the class that lets most of `residual` through.

        Args:
            h: the held one's law, jointly with its level.
            p: the draft's distribution D.
            chances: of the next one's levels.
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
            h, draft, chances = h.double(), draft.double(), chances.double()
            beside = others(draft)
        # A token that is all that is left has nobody beside it, and is nobody's rival.
        odds = (h / beside).nan_to_num_(nan=0, posinf=0)
        chances = chances.to(h.dtype)
        whole_h, whole_odds = (h[0], odds[0]) if len(h) == 1 else (h.sum(0), odds.sum(0))
        members, f = choose_class(whole_h, draft, whole_odds, residual, further)
        return cls(h, draft, chances, odds, members, f)

    def chance_of_class(self, token: int) -> float:
        """f(token)."""
        return float(self.f[self.members == token].sum())

    def first(self) -> Law:
        """The law of the one that is tried first.

        Tokens of class 0 that are no members lose to every higher rank what they keep as the held one
        and gain from every lower rank as the next one; what both take from the token itself cancels.
        """
        levels = len(self.chances)
        better, worse = self._rivals()
        p1 = self.h[0] if levels == 1 else self.h.sum(0)
        p1 = p1 - better[:levels] @ self.odds
        if levels > 1:
            p1.add_(self.draft, alpha=float(self.chances @ worse[:levels]))
        stays, comes = self._joint(self.members, self.f, better, worse)
        p1[self.members] = (stays + comes).sum(0)
        # What a nearly certain token takes from itself cancels too badly, so it is left out of its sums.
        top = self.draft.argmax().reshape(1)
        stays, comes = self._alone(top)
        p1[top] = (stays + comes).sum(0)
        return Law(p1.clamp_(min=0))

    def levels(self, token: int, came: bool) -> Float[Tensor, " levels"]:
        """The chances of the levels of the one tried first, given its token and whether it `came` second.

        Computed apart from `first`, so that no bit of p1 depends on the token: a rounding that did would
        tell of it wherever two classes are equally good.
        """
        joint = self._alone(self.members.new_tensor([token]))[came]
        of_token = joint.unflatten(0, (2, len(self.chances))).sum((0, 2))
        total = of_token.sum()
        # What rounding holds to be impossible may still come; it then tells nothing.
        return of_token / total if float(total) > 0 else torch.full_like(of_token, 1 / len(of_token))

    def second(self, token: int) -> Float[Tensor, "1 vocab"]:
        """The law of the other one, given the `token` that went first; for windows of one level."""
        belongs = self.chance_of_class(token)
        stayed, came = float(self.odds[0, token]), float(self.draft[token]) * belongs
        p2 = self.draft * stayed
        if came > 0:
            p2.add_(self.odds[0], alpha=came)
        draft, odds = self.draft[self.members], self.odds[0, self.members]
        p2[self.members] = stayed * (1 - (1 - belongs) * self.f) * draft + came * (1 - self.f) * odds
        return _normalised(p2.unsqueeze(0), token)

    def second_of_level(self, token: int, *, rank: int, came: bool) -> Float[Tensor, "levels vocab"]:
        """The law of the other one, jointly with its level, given all of the one that went first.

        With levels the law below a sibling depends on whether it `came` second, and what happened below
        has told of that; so the other one's law must be the one given that, too.
        """
        levels = len(self.chances)
        ranks = torch.arange(2 * levels, device=self.f.device).unflatten(0, (2, levels))
        if came:
            weights = self.odds * (ranks[0] < rank)[:, None]
            members, lower = self.odds[:, self.members], ranks < rank
        else:
            weights = self.draft * (self.chances * (ranks[0] <= rank))[:, None]
            members, lower = self.draft[self.members] * self.chances[:, None], ranks <= rank
        of_class = torch.stack([1 - self.f, self.f]).unsqueeze(1) * lower[..., None]
        weights[:, self.members] = of_class.sum(0) * members
        return _normalised(weights, token)

    def _alone(self, token: Int[Tensor, " 1"]) -> tuple[Tensor, Tensor]:
        """As `_joint` for one token, which is left out of the sums over its rivals."""
        f = self.f.new_tensor([self.chance_of_class(int(token))])
        better, worse = self._rivals(token)
        following, held = self._masses(token, f)
        h = (torch.stack([1 - f, f]).unsqueeze(1) * self.h[:, token]).flatten(0, 1)
        return (h - held * better[:, None]).clamp_(min=0), following * worse[:, None]

    def _rivals(self, beside: Int[Tensor, " some"] | None = None) -> tuple[Tensor, Tensor]:
        """For every rank, the next ones that beat it and, over q, the held ones that it beats: `[ranks]`.

        Tokens `beside` are left out.
        """
        levels = len(self.chances)
        members, f = self.members, self.f
        gone = members
        if beside is not None:
            members, f = members[members != beside], f[members != beside]
            gone = torch.cat([members, beside])
        following, held = (mass.sum(-1) for mass in self._masses(members, f))
        following[:levels] += self.chances * self.draft.index_fill(0, gone, 0).sum()
        held[:levels] += self.odds.index_fill(1, gone, 0).sum(-1)
        return _later(following), _earlier(held)

    def _masses(self, tokens: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        """The mass of every rank as the next one, and as the held one over q, each `[ranks, tokens]`."""
        of_class = torch.stack([1 - f, f]).unsqueeze(1)
        following = of_class * self.chances[:, None] * self.draft[tokens]
        return following.flatten(0, 1), (of_class * self.odds[:, tokens]).flatten(0, 1)

    def _joint(self, tokens: Tensor, f: Tensor, better: Tensor, worse: Tensor) -> tuple[Tensor, Tensor]:
        """The laws of a held one that stays first and of a next one that comes first, `[ranks, tokens]`."""
        following, held = self._masses(tokens, f)
        h = (torch.stack([1 - f, f]).unsqueeze(1) * self.h[:, tokens]).flatten(0, 1)
        stays = h - held * (better[:, None] - _later(following))
        comes = following * (worse[:, None] - _earlier(held))
        return stays.clamp_(min=0), comes.clamp_(min=0)


def _normalised(weights: Float[Tensor, "levels vocab"], without: int) -> Float[Tensor, "levels vocab"]:
    """`weights` with the token `without` at 0, summing to 1; changed in place."""
    weights[:, without] = 0
    return weights.div_(weights.sum(dtype=torch.float64).clamp(min=torch.finfo(weights.dtype).tiny))


def _earlier(weights: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """For every rank the sum over the lower ones."""
    return torch.cat([torch.zeros_like(weights[:1]), weights[:-1].cumsum(0)])


def _later(weights: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """For every rank the sum over the higher ones."""
    return _earlier(weights.flip(0)).flip(0)


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
    for whole in (target, h, draft, odds):
        own = whole[some]
        columns.append(torch.cat([own, (whole.sum() - own.sum()).clamp(min=0).reshape(1)]))
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
