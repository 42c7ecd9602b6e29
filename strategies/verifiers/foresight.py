"""What lies below a sibling, told without a word about its token."""

from __future__ import annotations

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.strategies.verifiers.window import heavy


@attrs.frozen(eq=False)
class Foresight:
    """Whether the first child of a node is a lucky draw: among those that the target wants most.

    The children that the draft would draw first are ranked by T / D, and the best ones of them that
    together have the chance b are lucky; at the border a coin decides. So a node is lucky with chance b
    whatever its own token, its siblings' and the models' distributions there, and siblings may be ordered
    by it without a change in their tokens' laws. What changes is the law of the first child below: given
    that the node is lucky with chance c, it is D (c l / b + (1 - c)(1 - l) / (1 - b)), l being the chance
    that a child is lucky.

    Attributes:
        draft: D at the node `[vocab]`.
        members: tokens that may be lucky apart from the rest, `[members]`.
        lucky: the chances that they are, `[members]`.
        rest: the chance that any other token is.
        chance: b.

    Source: draftwood.
    """

    draft: Float[Tensor, " vocab"]
    members: Int[Tensor, " members"]
    lucky: Float[Tensor, " members"]
    rest: float
    chance: float

    @classmethod
    def of(cls, target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"], chance: float) -> Foresight:
        """The foresight of a node with these distributions."""
        members = heavy(draft)
        own = draft[members].double()
        order = (target[members] / own).argsort(descending=True)
        members, own = members[order], own[order]
        ends = own.cumsum(0)
        lucky = ((chance - (ends - own)) / own).clamp(0, 1)
        left = float(draft.sum(dtype=torch.float64) - own.sum())
        short = chance - float((own * lucky).sum())
        rest = min(max(short / left, 0.0), 1.0) if left > 0 else 0.0
        return cls(draft, members, lucky.to(draft.dtype), rest, chance)

    def __getitem__(self, token: int) -> float:
        """The chance that the node is lucky if its first child holds `token`."""
        found = (self.members == token).nonzero()
        return float(self.lucky[found[0, 0]]) if len(found) else self.rest

    def first_child(self, levels: Float[Tensor, " 2"]) -> Float[Tensor, " vocab"]:
        """The law of the first child where the node is unlucky and lucky with the chances `levels`."""
        low, high = float(levels[0]) / (1 - self.chance), float(levels[1]) / self.chance
        law = self.draft * (low + (high - low) * self.rest)
        law[self.members] = self.draft[self.members] * (low + (high - low) * self.lucky)
        return law
