"""Greedy multi-path block verification: of independent paths the best one is judged as a block."""

from __future__ import annotations

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import IncompatibleStrategy, Outcome, Randomness, TokenTree, Verifier, WithReplacement
from draftwood.laws.proposals import check_distribution
from draftwood.strategies.verifiers.path_as_block import PathChoice, row64, verify_as_block
from draftwood.strategies.verifiers.residual import Residual, SiblingLaw


@attrs.frozen
class GreedyMultiPath(Verifier):
    """Chooses the drafted path whose tokens the target prefers most, then verifies it as a block.

    Tokens are ranked by T / D, target over draft, at every node. Of the children of a node the one of highest
    rank is chosen; of independent paths that begin alike, the one whose next token ranks highest. So the
    choice is the last of K independent paths in an order that is fixed before they are drawn. A prefix is
    chosen with probability v^K - u^K, where u and v bound its share of the draft's law in that order, which
    gives the law of every next token.

    Tokens of equal rank go by their number, so the choice is no draw from D even where T is D, and may then
    fail where recursive rejection accepts the first child.

    Equal paths must go on or end together: if one ends that others outlive, it tells of what was drawn.

    Cost: one sort of the vocabulary for every node of the path.
    Source: greedy multi-path block verification, arXiv 2602.16961; the law of the choice is derived as above.
    """

    laws = frozenset({WithReplacement})
    adaptive = False
    independent_paths = True
    source = "GBV, arXiv 2602.16961"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return verify_as_block(tree, target_probs, _LastInOrder(tree, target_probs), rng)


class _LastInOrder(PathChoice):
    """Follows the path that comes last when tokens are ranked by target over draft."""

    def __init__(self, tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"]) -> None:
        self._tree, self._target = tree, target_probs
        self._tokens: list[int] = tree.tokens.tolist()
        self._alike = [0]  # nodes of equal paths
        self._count, self._before = 1, 0.0  # of the paths, and the draft's share that ranks below them

    def child(self, node: int, here: Residual) -> tuple[int, SiblingLaw]:
        children = [below for one in self._alike for below in self._tree.children(one)]
        if self._count == 1:
            self._count, self._before = len(children), 0.0
        draft = self._tree.proposals[node].conditional(0, ())
        check_distribution(draft, "The draft distribution of WithReplacement")
        law, ends, starts = self._law(row64(draft), row64(self._target[node]))
        best = max((self._tokens[one] for one in children), key=lambda token: float(ends[token]))
        self._alike = [one for one in children if self._tokens[one] == best]
        self._before = float(starts[best] / ends[best])
        below = sorted({len(self._tree.children(one)) for one in self._alike})
        if self._count > 1 and below not in ([0], [1]):
            raise IncompatibleStrategy(
                f"GreedyMultiPath judges independent paths, and equal nodes of this tree have {below} "
                "children; grow trees with IndependentPaths."
            )
        return self._alike[0], SiblingLaw(law)

    def _law(
        self, draft: Float[Tensor, " vocab"], target: Float[Tensor, " vocab"]
    ) -> tuple[Float[Tensor, " vocab"], Float[Tensor, " vocab"], Float[Tensor, " vocab"]]:
        """Returns the law of the chosen token, and where its share of the draft's law ends and starts."""
        ranked = torch.argsort(torch.where(draft > 0, target / draft, -1.0), stable=True)
        shares = draft[ranked]
        sums = shares.cumsum(0)
        ends, starts = torch.zeros_like(draft), torch.zeros_like(draft)
        ends[ranked] = self._before + (1 - self._before) * sums
        starts[ranked] = self._before + (1 - self._before) * (sums - shares)
        # v^K - u^K without its factor v - u, the draft's share: no difference of nearly equal numbers.
        powers = sum(ends**above * starts ** (self._count - 1 - above) for above in range(self._count))
        law = draft * powers
        return law / law.sum(), ends, starts
