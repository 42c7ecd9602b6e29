"""Traversal verification over siblings that are judged as one set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.proposals import ANY_LAW, Proposal, WithoutReplacement
from draftwood.set_laws import FixedTimeSet
from draftwood.strategies.verifiers.device_forms import RACE
from draftwood.strategies.verifiers.host_rows import on_the_host
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.on_device import judged_on_device
from draftwood.strategies.verifiers.race_order import race_order
from draftwood.strategies.verifiers.residual import SiblingOrder


@attrs.frozen
class RaceTraversal(TraversalVerifier):
    """`Traversal` that looks at all siblings of a node at once (see `RaceOrder`).

    Siblings drawn without replacement, and sets drawn at a fixed time, are put in the order of what the
    target wants more than the draft offers, with allowances that account for the order. Those of other laws
    are tried as drawn. Adaptive trees are refused; plain `Traversal` serves them.

    Cost: for each visited node of K > 1 children some 20 passes over the vocabulary, and 10 K operations for
    each of the tokens that matter there, in loops that are compiled at the first node. On a GPU kernels work
    out all nodes, level by level (`tree_race`). What they do not know, such as more than 16 siblings, is
    fetched to the host for all rows at once.

    Source: draftwood; the traversal is arXiv 2505.12398's. That draws without replacement are the first of
    exponential clocks is the Gumbel-max trick. ERSD (arXiv 2504.15475) means another method by the name.
    """

    laws = ANY_LAW | {FixedTimeSet}
    adaptive = False
    source = "draftwood"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return race_order(tokens, proposal, rng)

    def node_streams(self, tree: TokenTree, rng: Randomness) -> Mapping[int, Randomness]:
        # A node's time comes from a stream of its own, so that it is the same whichever nodes are visited.
        clocked = [
            node
            for node in range(len(tree))
            if len(tree.children(node)) > 2 and isinstance(tree.proposals[node], WithoutReplacement)
        ]
        return dict(zip(clocked, rng.nodes(len(clocked)), strict=True)) if clocked else {}

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        outcomes: list[Outcome | None] = [None] * len(trees)
        # Somebody's variant of this class may change any step, and the kernels do not know of it.
        if type(self) is RaceTraversal:
            outcomes = judged_on_device(trees, target_probs, rngs, form=RACE)
        rest = [row for row, outcome in enumerate(outcomes) if outcome is None]
        if 0 < len(rest) < len(trees):
            trees, target_probs = [trees[row] for row in rest], [target_probs[row] for row in rest]
        if rest:
            left = super().verify_rows(*on_the_host(trees, target_probs), [rngs[row] for row in rest])
            for row, outcome in zip(rest, left, strict=True):
                outcomes[row] = outcome
        return [outcome for outcome in outcomes if outcome is not None]
