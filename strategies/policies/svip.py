"""A chain that ends where the draft's distribution is too uncertain, by its entropy."""

from __future__ import annotations

import math

import attrs

from draftwood import Growing, Proposal, Randomness, TreeBuilder, WithoutReplacement, draw_children
from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.laws import SingleLawPolicy, as_law


def _not_negative(_: object, field: attrs.Attribute[float], value: float) -> None:
    if not 0 <= value < math.inf:
        raise InvalidInput(f"{field.name} is {value}; give a number of at least 0.")


@attrs.frozen
class SVIP(SingleLawPolicy):
    """Drafts up to `length` tokens, and ends before one whose distribution has too much entropy.

    The paper bounds the chance that a token is accepted from below by 1 - sqrt(c H): H is the entropy of the
    draft's distribution, and c a constant of the pair. So the chain ends where sqrt(H) is above `stop_above`.
    Here a first token is drafted in any case, since its draft call was made.

    Every decision looks at a distribution before a token is drawn from it, so law P holds.

    Attributes:
        length: tokens at most.
        stop_above: of the square root of the entropy, in nats.
        law: how tokens are drawn. The entropy is of the draft's distribution at its own temperature, which is
            0 where that temperature is.

    Source: SVIP, Zhang et al. 2024 (arXiv 2411.18462).
    """

    length: int = attrs.field(default=16, validator=at_least(1))
    stop_above: float = attrs.field(default=0.8, converter=float, validator=_not_negative)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    branches = False
    source = "SVIP (arXiv 2411.18462)"

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree, node = TreeBuilder(root), 0
        for drafted in range(self.length):
            probs = yield tree.request([node])
            (probabilities,) = probs.double()
            entropy = float(-probabilities.xlogy(probabilities).sum())
            if drafted and math.sqrt(max(entropy, 0.0)) > self.stop_above:
                break
            (drawn,) = draw_children(self.law, probs, count=1, rng=rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()
