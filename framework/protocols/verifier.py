"""`Verifier`: which path of a tree is accepted, and which token follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree


class Verifier(Protocol):
    """Decides which path of a tree is accepted and which token follows. `verify` is all that it must have.

    Law V: for a lossless verifier, a tree that obeys law P and any target, the joint law of the emitted
    tokens is the target's. Judging rows together does not change their outcomes.

    Attributes:
        laws: the proposal laws it verifies without loss.
        lossless: whether law V holds.
        declares_law: whether the texts have their own law, which `declared_law` gives, such as cascades
            and contrastive decoding. Then `lossless` is False, and proofs compare texts with that law.
        adaptive: whether it holds on adaptive trees too (see `TreePolicy`). One that looks at several
            siblings at once takes their law to be the drawing law, which only holds where their number
            tells nothing of them, and says no.
        branches: whether it judges trees that branch; otherwise it only judges chains.
        independent_paths: whether trees that branch must be independent paths (see `TreePolicy`).
        greedy: whether it only supports temperature 0.
        source: paper and algorithm.
    """

    laws: frozenset[type[Proposal]]
    lossless: bool = True
    declares_law: bool = False
    adaptive: bool = True
    branches: bool = True
    independent_paths: bool = False
    greedy: bool = False
    source: str = ""

    def verify(self, tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"], rng: Randomness) -> Outcome:
        """Judge `tree` against `target_probs` `[nodes, vocab]`, the target's distribution after each node."""
        ...

    def declared_law(
        self, target_probs: Float[Tensor, " vocab"], draft_probs: Float[Tensor, "*drafters vocab"]
    ) -> Float[Tensor, " vocab"]:
        """Returns the distribution `[vocab]` that the next token has in the texts of this verifier.

        Only asked where `declares_law` is true, by proofs. Default: the target's.

        Args:
            target_probs: `[vocab]`, the target's distribution after a text.
            draft_probs: `[vocab]`, the draft's after the same text, both after their sampling transforms;
                `[drafters, vocab]` where several drafters draw the children of a node.
        """
        return target_probs

    def verify_rows(
        self,
        trees: Sequence[TokenTree],
        target_probs: Sequence[Float[Tensor, "nodes vocab"]],
        rngs: Sequence[Randomness],
    ) -> list[Outcome]:
        """Judge the trees of a round, one per row, with the outcomes and draws of `verify` for each.

        Override it where all rows together take fewer launches or waits than one after another. Every row has
        its own stream in `rngs`.
        """
        rows = zip(trees, target_probs, rngs, strict=True)
        return [self.verify(tree, probs, rng) for tree, probs, rng in rows]
