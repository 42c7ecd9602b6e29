"""Verifiers as a package of somebody else's would bring them: one that is right, and two that are not."""

from __future__ import annotations

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.laws.proposals import ANY_LAW


@attrs.frozen
class FirstChildren(Verifier):
    """Plain speculative sampling along the first children; the other siblings are not looked at."""

    laws = ANY_LAW
    source = "Leviathan et al. 2023, algorithm 1"

    def residual(self, target: Tensor, draft: Tensor) -> Tensor:
        return (target - draft).clamp(min=0)

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        path = [0]
        while children := tree.children(path[-1]):
            target, draft = target_probs[path[-1]], tree.proposals[path[-1]].conditional(0, ())
            token = int(tree.tokens[children[0]])
            target_prob, draft_prob = float(target[token]), float(draft[token])
            if not (target_prob > 0 and rng.accept(target_prob / draft_prob if draft_prob > 0 else 1.0)):
                left = self.residual(target, draft)
                extra = rng.choose(left if float(left.sum()) > 0 else target)
                return Outcome.of(tree, path, extra=extra, bonus=False)
            path.append(children[0])
        return Outcome.of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=True)


class TargetAgain(FirstChildren):
    """Wrong: after a rejection the target itself is drawn from, so its likely tokens come too often."""

    def residual(self, target: Tensor, draft: Tensor) -> Tensor:
        return target


class DraftInstead(FirstChildren):
    """Wrong: after a rejection the draft is drawn from, which may emit what the target forbids."""

    def residual(self, target: Tensor, draft: Tensor) -> Tensor:
        return draft
