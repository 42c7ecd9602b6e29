"""The optimal rule for independent siblings, exact and in the time of a sort."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood import Randomness, WithReplacement
from draftwood.laws.proposals import Proposal, check_distribution
from draftwood.strategies.verifiers.node_wise import NodeWise


@attrs.frozen(eq=False)
class Selection:
    """A choice among k independent draws: the law of the proposed one is `chances`, whatever the others were.

    All tensors are float64 over the tokens of draft probability above 0, by rising T / D.

    Attributes:
        tokens: `[n]` int64.
        draft: D, `[n]`.
        target: T, `[n]`.
        chances: the law m of the proposed token, `[n]`; m / D rises too.
        k: the number of draws.
    """

    tokens: Int[Tensor, " n"]
    draft: Float[Tensor, " n"]
    target: Float[Tensor, " n"]
    chances: Float[Tensor, " n"]
    k: int

    @classmethod
    def optimal(cls, target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"], k: int) -> Selection:
        """The law m that maximises the sum of min(m, T).

        `target` and `draft` are float64 `[vocab]`; the draft sums to 1 and the target to at most 1.
        """
        tokens = draft.nonzero().flatten()
        tokens = tokens[(target[tokens] / draft[tokens]).argsort()]
        d, t = draft[tokens], target[tokens]
        reached, target_sums = _heights(d), _heights(t)
        least = reached**k
        # The set of tokens whose chance of being all that is drawn exceeds T by the most.
        cut = int((least - target_sums).argmax())
        chances = t.clone()
        if cut > 0:
            floor = ((least[cut] - target_sums[cut] + target_sums[1 : cut + 1]) / reached[1 : cut + 1]).min()
            chances[:cut] = torch.maximum(t[:cut], floor * d[:cut])
        if cut < len(d):
            tails = d.flip(0).cumsum(0).flip(0)[cut:]
            ceiling = ((1 - least[cut] - (target_sums[cut:-1] - target_sums[cut])) / tails).max()
            chances[cut:] = torch.minimum(t[cut:], ceiling * d[cut:])
        return cls(tokens, d, t, chances, k)

    def law(self, vocab_size: int) -> Float[Tensor, " vocab"]:
        """`chances` over the whole vocabulary."""
        return self.chances.new_zeros(vocab_size).index_put_((self.tokens,), self.chances)

    def propose(self, drawn: Sequence[int], rng: Randomness) -> int | None:
        """The index of the proposed one among the tokens `drawn`; None if D has none of them.

        Every draw comes to rest in a block of one token, and the highest block that holds one wins. On
        the way, the blocks below `middle` are parted from those above; draws near it go either way.
        """
        reached, curve = _heights(self.draft), _heights(self.chances)
        least = reached**self.k
        low, high = 0, len(self.tokens)
        slopes = self.chances / self.draft
        left = [
            (index, float(slopes[self.tokens == token]))
            for index, token in enumerate(drawn)
            if bool((self.tokens == token).any())
        ]
        while len({drawn[index] for index, _ in left}) > 1 and high - low > 1:
            middle = (low + high) // 2
            # The lower convex hull of the curve and the point (reached, least) at the middle.
            run, rise = reached[middle] - reached[low:middle], least[middle] - curve[low:middle]
            slopes = torch.where(run > 0, rise / run, -math.inf)
            below, first = float(slopes.max()), low + int(slopes.argmax())
            beyond = slice(middle + 1, high + 1)
            run, rise = reached[beyond] - reached[middle], curve[beyond] - least[middle]
            slopes = torch.where(run > 0, rise / run, math.inf)
            above, last = float(slopes.min()), middle + 1 + int(slopes.argmin())
            lower, upper = [], []
            for index, slope in left:
                if slope > below and rng.accept(_fraction(slope, below, above)):
                    upper.append((index, max(slope, above)))
                else:
                    lower.append((index, min(slope, below)))
            if upper:
                left, low = upper, middle
                bent = slice(middle, last + 1)
                curve[bent] = least[middle] + above * (reached[bent] - reached[middle])
            else:
                left, high = lower, middle
                bent = slice(first, middle + 1)
                curve[bent] = least[middle] - below * (reached[middle] - reached[bent])
        return left[0][0] if left else None


def _heights(weights: Float[Tensor, " n"]) -> Float[Tensor, " n+1"]:
    """Sums of the first 0, 1, ..., n weights."""
    return torch.nn.functional.pad(weights.cumsum(0), (1, 0))


def _fraction(slope: float, below: float, above: float) -> float:
    """Where `slope` lies between the two, in [0, 1]; 1 where nothing lies below."""
    if slope >= above or below == -math.inf:
        return 1.0
    return (slope - below) / (above - below)


@attrs.frozen
class OptimalIID(NodeWise):
    """Accepts one of k independent siblings, with the highest probability that any rule reaches.

    The law m of the proposed token decides everything: it is accepted with probability min(1, T / m), and
    otherwise the extra token is drawn from max(T - m, 0). Some rule has the law m if and only if every set
    H of tokens has m(H) >= D(H)^k, the chance that nothing else was drawn. The best acceptance is thus at
    most min over H of T(H) + 1 - D(H)^k, and a prefix H* of the tokens by rising T / D attains that. So
    does m = max(T, c D) on H* and min(T, C D) off it, with c and C such that m(H*) = D(H*)^k and m sums
    to 1: m / D then rises, so that prefixes are the only sets to check, and over every prefix the sum of m
    stays above that of D to the k-th.

    To propose by m: let every draw of token y come to rest, by chance, in a block j (blocks are tokens, by
    rising T / D) in such a way that block j gets mass D(j), and that m(y) / D(y) is the mean of
    (F_j^k - F_(j-1)^k) / D(j) over the blocks of y, F being the sums of D. Then propose the draw in the
    highest block: it is block j with probability F_j^k - F_(j-1)^k, and within it every token has its
    share. Such a coupling exists because m is majorised by those means (Strassen). It is built from
    its curve of sums by halving: pulling the curve down onto F^k at the middle breakpoint and taking the
    lower convex hull moves every draw to one of two slopes with its mean kept (Chacon and Walsh 1976).
    Only the half that holds the winner is pursued.

    The number of siblings matters, so adaptive trees are refused. Level by level it is optimal; over
    several levels `TransportBlock` does better.

    Cost: a sort and O(vocab) a node of the accepted path, and O(k log vocab) coins.
    Source: draftwood, for the problem of SpecTr (arXiv 2310.15141, optimal transport with membership
    cost); its other exact solution is a convex minimisation (arXiv 2511.15898).
    """

    laws = frozenset({WithReplacement})
    adaptive = False
    source = "draftwood, for SpecTr's transport problem"

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        draft = proposal.conditional(0, ())
        check_distribution(draft, "The draft distribution of WithReplacement")
        draft, exact = draft.double(), target.double()
        exact = exact / exact.sum()
        selection = Selection.optimal(exact, draft / draft.sum(), len(tokens))
        index = selection.propose(tokens, rng)
        if index is None:
            return None, target
        target_mass = float(exact[tokens[index]])
        draft_mass = float(selection.chances[selection.tokens == tokens[index]])
        if target_mass > 0 and rng.accept(target_mass / draft_mass if draft_mass > 0 else 1.0):
            return index, target
        residual = exact.clone()
        residual[selection.tokens] -= selection.chances
        residual.clamp_(min=0)
        return None, residual if float(residual.sum()) > 0 else target
