"""Stochastic beam search: the tree of sequences drawn without replacement."""

from __future__ import annotations

import attrs
import torch

from draftwood import Growing, Randomness, TreeBuilder, TreePolicy, WithoutReplacement
from draftwood.base.validators import at_least


@attrs.frozen
class StochasticBeam(TreePolicy):
    """RSD-S: on every level the first `width` distinct prefixes of sequences drawn from the draft.

    The papers perturb log-probabilities by Gumbel noise. Read as clocks, every sequence strikes after an
    exponential time whose rate is its probability, a prefix when the first of its sequences does, and the
    beam of a level is the `width` prefixes that strike first. That is the order in which prefixes first
    appear in a stream of independent sequences, and it can be drawn level by level without any clock:

    - Given the order of a level's prefixes, how often the stream comes back to those seen already says
      nothing about which prefixes come next, and the other way round.
    - So after j prefixes of a level have appeared, the next new one of the level below is a further child
      of one of them, in proportion to the mass of its children not yet drawn; or it is the first child of
      prefix j + 1, in proportion to the mass of all prefixes that have not appeared.
    - The child itself is then drawn from what is left of its parent's distribution.

    The law of trees is that of stochastic beam search exactly (tests compare both, noise for noise and
    law for law); no Gumbel has to be truncated, which is where its implementations lose their digits, and
    all choices are finite, so that they can be enumerated. A child's token is drawn after it is decided that
    its parent gets one more, and no node is dropped: law P. Siblings stand in the order of their perturbed
    values.

    A prefix after which the draft proposes nothing stays a leaf and its mass is gone.

    Attributes:
        width: prefixes on a level; the tree has up to `width * depth` nodes.
        depth: levels.

    Source: RSD, algorithms 8 and 9 (RSD-S); stochastic beam search, Kool et al. 2019 (arXiv 1903.06059).
    """

    width: int = attrs.field(default=4, validator=at_least(1))
    depth: int = attrs.field(default=4, validator=at_least(1))
    laws = frozenset({WithoutReplacement})
    adaptive = True
    source = "RSD, algorithms 8 and 9"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.width > 1

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        beam, ahead = [0], [0.0]  # the level in order, and the mass of all that appears after each
        for _ in range(self.depth):
            children = yield tree.open(beam, WithoutReplacement, ahead=self.width)
            below: list[int] = []
            ahead_below: list[float] = []
            # What may come next: a further child of a prefix that has appeared, or the next prefix.
            weights = [1.0]
            while len(below) < self.width and sum(weights) > 0:
                index = rng.choose(torch.tensor(weights, dtype=torch.float64))
                parent, siblings = beam[index], children[index]
                if index == len(weights) - 1:
                    # Once the whole beam has appeared, nothing new is to come.
                    weights.append(ahead[index] if index + 1 < len(beam) else 0.0)
                if not siblings.draw():
                    weights[index] = 0.0
                    continue
                weights[index] = path_probs[parent] * siblings.weight
                below.append(tree.add_last(parent, siblings))
                path_probs.append(path_probs[parent] * siblings.chances[-1])
                ahead_below.append(sum(weights))
            if not below:
                break
            beam, ahead = below, ahead_below
        return tree.finish()
