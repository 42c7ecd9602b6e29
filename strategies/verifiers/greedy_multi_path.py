"""Greedy multi-path block verification: of independent paths the best one is judged as a block."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier, WithReplacement
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

    Where a node branches whose paths are not chains of one length, the first of equal children is
    followed, and its own children count as independent ones. Which of the two it is may tell nothing of the
    tokens, so trees that branch are judged only where no token decides on their shape.

    Not lossless yet where a drafter proposes nothing after some tokens: paths then differ in length by what
    was drawn. With two tokens the law was off by up to 0.013.

    Cost: one sort of the vocabulary for every node of the path.
    Source: greedy multi-path block verification, arXiv 2602.16961; the law of the choice is derived as above.
    """

    laws = frozenset({WithReplacement})
    adaptive = False
    fixed_shape = True
    source = "GBV, arXiv 2602.16961"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return verify_as_block(tree, target_probs, _LastInOrder(tree, target_probs), rng)


class _LastInOrder(PathChoice):
    """Follows the path that comes last when tokens are ranked by target over draft."""

    def __init__(self, tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"]) -> None:
        self._tree, self._target = tree, target_probs
        self._tokens: list[int] = tree.tokens.tolist()
        self._alike: list[int] | None = None  # nodes of equal paths, each with one child; None: one node
        self._count, self._before = 1, 0.0  # of the paths, and the draft's share that ranks below them

    def child(self, node: int, here: Residual) -> tuple[int, SiblingLaw]:
        if self._alike is None:
            children = self._tree.children(node)
            self._count, self._before = len(children), 0.0
        else:
            children = [below for one in self._alike for below in self._tree.children(one)]
        draft = self._tree.proposals[node].conditional(0, ())
        check_distribution(draft, "The draft distribution of WithReplacement")
        law, ends, starts = self._law(row64(draft), row64(self._target[node]))
        best = max((self._tokens[one] for one in children), key=lambda token: float(ends[token]))
        chosen = [one for one in children if self._tokens[one] == best]
        self._before = float(starts[best] / ends[best])
        if self._alike is not None or (len(children) > 1 and _are_paths(self._tree, children)):
            self._alike = chosen
        return chosen[0], SiblingLaw(law)

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


def _are_paths(tree: TokenTree, nodes: list[int]) -> bool:
    """Returns whether there are only chains of one length below the nodes."""
    return (
        len({tuple(_lengths(tree, node)) for node in nodes}) == 1 and len(list(_lengths(tree, nodes[0]))) == 1
    )


def _lengths(tree: TokenTree, node: int) -> Iterator[int]:
    """Yields the depth of every leaf below a node."""
    children = tree.children(node)
    if not children:
        yield int(tree.depths[node])
    for child in children:
        yield from _lengths(tree, child)
