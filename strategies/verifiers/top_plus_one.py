"""The optimal rule for the most likely tokens and one drawn from the rest."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Randomness, TopThenSample
from draftwood.laws.proposals import Proposal, check_distribution
from draftwood.strategies.verifiers.node_wise import NodeWise
from draftwood.strategies.verifiers.sample_and_match import match


@attrs.frozen
class TopPlusOne(NodeWise):
    """Judges the drawn child first, by rejection; the fixed ones get their whole share of what is left.

    With D the law of the drawn child x, it is accepted with probability min(1, T(x) / D(x)). Otherwise a
    token is drawn from max(T - D, 0), and if a fixed child holds it, that child is accepted. So the drawn
    token keeps min(D, T) and every fixed token T, since D is 0 there. No rule can give either more: this
    is the optimum of one level, sum of T over the fixed tokens plus sum of min(D, T) over the others.
    Recursive rejection, which judges the fixed children first, keeps min(D T(rest), T) of the drawn one.

    SpecHub drafts pairs: x from p and then the top token a, or a and then a token of the rest. As a set
    that is a with one token drawn from the rest, the law `TopThenSample(p, (a,))`, for SpecHub offers
    {a, x} with probability p(x) + p(a) p(x) / (1 - p(a)) = p(x) / (1 - p(a)). Its transport gives x up
    to T(x) from both orders and gives what is left to a, up to T(a): the acceptance is the same.

    Cost: O(vocab) a node of the accepted path.
    Source: Hu et al. 2025, "Towards optimal multi-draft speculative decoding" (arXiv 2502.18779), greedy
    draft sampling; SpecHub (arXiv 2411.05289).
    """

    laws = frozenset({TopThenSample})
    adaptive = False
    source = "Hu et al. 2025 (2502.18779); SpecHub"

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        assert isinstance(proposal, TopThenSample)
        fixed = len(proposal.top)
        if len(tokens) > fixed:
            draft = proposal.marginal(fixed)
            check_distribution(draft, "The draft distribution of TopThenSample")
            token = tokens[fixed]
            target_mass, draft_mass = float(target[token]), float(draft[token])
            if target_mass > 0 and rng.accept(target_mass / draft_mass if draft_mass > 0 else 1.0):
                return fixed, target
            residual = (target - draft).clamp_(min=0)
            if float(residual.sum()) > 0:
                target = residual
        return match(tokens[:fixed], target, rng)
