"""K-SEQ: independent siblings judged one by one, each at the same reduced rate."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import Randomness, WithReplacement
from draftwood.laws.proposals import Proposal, check_distribution
from draftwood.strategies.verifiers.node_wise import NodeWise


def division_factor(
    target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"], k: int
) -> tuple[float, float]:
    """The smallest valid rho for `k` draws and beta(rho) = sum of min(D, T / rho).

    It solves 1 - (1 - beta)^k = rho beta on [1, k] (SpecTr). Above the solution the left side
    is the smaller one, so the upper end of the bisection is always valid.
    """

    def beta(rho: float) -> float:
        return min(1.0, float(torch.minimum(draft, target / rho).sum()))

    low, high = 1.0, float(k)
    for _ in range(50):
        rho = (low + high) / 2
        kept = beta(rho)
        if 1 - (1 - kept) ** k <= rho * kept:
            high = rho
        else:
            low = rho
    return high, beta(high)


@attrs.frozen
class KSequential(NodeWise):
    """Accepts the first sibling x that passes a test of probability min(1, T(x) / (rho D(x))).

    The factor rho >= 1 leaves every sibling the same chance beta of acceptance, whatever came of the
    earlier ones. It is the smallest for which no token is emitted more often than the target has it, so
    it depends on the number k of siblings and not on their tokens: adaptive trees are refused. After k
    rejections the extra token is drawn from T - min(D, T / rho) (1 - (1 - beta)^k) / beta. The acceptance
    1 - (1 - beta)^k is at least 1 - 1/e of the optimum.

    Cost: about 50 passes over the vocabulary a node of the accepted path.
    Source: SpecTr (arXiv 2310.15141), K-SEQ with the smallest valid rho.
    """

    laws = frozenset({WithReplacement})
    adaptive = False
    source = "SpecTr (arXiv 2310.15141), K-SEQ"

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        draft = proposal.conditional(0, ())
        check_distribution(draft, "The draft distribution of WithReplacement")
        draft, exact = draft.double(), target.double()
        k = len(tokens)
        rho, beta = division_factor(exact, draft, k)
        for index, token in enumerate(tokens):
            share, draft_mass = float(exact[token]) / rho, float(draft[token])
            if share > 0 and rng.accept(share / draft_mass if draft_mass > 0 else 1.0):
                return index, target
        if beta == 0:
            return None, target
        emitted = torch.minimum(draft, exact / rho) * ((1 - (1 - beta) ** k) / beta)
        residual = (exact - emitted).clamp_(min=0)
        return None, residual if float(residual.sum()) > 0 else target
