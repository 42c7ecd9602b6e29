"""Finds the usual mistake that explains a verifier's law: each is made on the same trees and compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
from torch import Tensor

from draftwood.laws.proposals import ANY_LAW, Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Verifier
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

Law = Mapping[tuple[int, ...], float]

_SAME = 1e-6
"""Laws this close are one mistake's."""

MISTAKES: Mapping[str, str] = {
    "target for residual": "after a rejection the extra token is drawn from the target; draw it from what is "
    "left of it, max(target - draft, 0).",
    "not normalised": "the residual is not normalised before the next sibling is judged by it.",
    "first law": "later siblings are judged by the first one's law; ask conditional(k, earlier).",
    "whole target": "later siblings are judged against the whole target instead of what the earlier ones "
    "left of it.",
    "draft ignored": "a child is accepted with the target's probability whatever the draft's is; divide by "
    "the draft's.",
    "reverse": "siblings are judged in another order than they were drawn in.",
    "bonus of the parent": "the token after a leaf is drawn from the row of the leaf's parent.",
}


@attrs.frozen
class _MistakenRejection(Verifier):
    """Recursive rejection with one of the mistakes; with none it is right."""

    mistake: str
    laws = ANY_LAW

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens, path = tree.tokens.tolist(), [0]
        while children := tree.children(path[-1]):
            node = path[-1]
            accepted, left = self._judge(
                [tokens[child] for child in children], tree.proposals[node], target_probs[node], rng
            )
            if accepted is None:
                return Outcome.of(tree, path, extra=rng.choose(left), bonus=False)
            path.append(children[accepted])
        row = path[-2] if self.mistake == "bonus of the parent" and len(path) > 1 else path[-1]
        return Outcome.of(tree, path, extra=rng.choose(target_probs[row]), bonus=True)

    def _judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        full_target, rest = target, target
        order = range(len(tokens))[:: -1 if self.mistake == "reverse" else 1]
        for k, index in enumerate(order):
            token, earlier = tokens[index], [tokens[other] for other in order[:k]]
            draft = (
                proposal.conditional(0, ())
                if self.mistake == "first law"
                else proposal.conditional(k, earlier)
            )
            against = full_target if self.mistake == "whole target" else rest
            target_prob, draft_prob = float(against[token]), float(draft[token])
            if self.mistake == "draft ignored":
                draft_prob = 1.0
            if target_prob > 0 and rng.accept(min(1.0, target_prob / draft_prob) if draft_prob > 0 else 1.0):
                return index, target
            left = (rest - draft).clamp(min=0)
            if bool(left.any()):
                rest = left if self.mistake == "not normalised" else left / left.sum()
        return None, full_target if self.mistake == "target for residual" else rest


def usual_mistake(emitted_law: Law, emits: Callable[[Verifier], Law]) -> str:
    """The sentence of the one mistake whose law is `emitted_law`; empty where none fits, or all do.

    Args:
        emitted_law: the probability of every sequence of tokens.
        emits: the same of another verifier on the same trees.
    """
    right = emits(_MistakenRejection(""))
    for mistake, sentence in MISTAKES.items():
        law = emits(_MistakenRejection(mistake))
        if _distance(law, emitted_law) <= _SAME < _distance(law, right):
            return sentence
    return ""


def _distance(one: Law, other: Law) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {**one, **other})
