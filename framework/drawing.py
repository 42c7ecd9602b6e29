"""Drawing the children of nodes by a proposal law."""

from __future__ import annotations

import attrs
from jaxtyping import Float
from torch import Tensor

from draftwood.proposals import (
    Deterministic,
    PerChild,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.randomness import Randomness


@attrs.frozen
class Drawn:
    """Children of one node: tokens in drawn order, their draft probabilities, and their law."""

    tokens: list[int]
    chances: list[float]
    proposal: Proposal


def draw_children(
    law: type[Proposal], probs: Float[Tensor, "nodes *drafters vocab"], *, count: int, rng: Randomness
) -> list[Drawn]:
    """Draw up to `count` children for each of several nodes.

    Args:
        law: one of the proposal laws; `PerChild` draws one child from every drafter, `TopThenSample`
            takes the most likely tokens for all children but the last.
        probs: the nodes' draft distributions `[nodes, vocab]`; `[nodes, drafters, vocab]` for `PerChild`.
        count: how many a node; it gets fewer when fewer tokens have probability above 0.
        rng: the draft stream.
    """
    if law is Deterministic:
        # One top-k and one transfer for all nodes.
        top = probs.topk(min(count, probs.shape[-1]))
        return [
            _fixed(tokens, chances, p)
            for tokens, chances, p in zip(top.indices.tolist(), top.values.tolist(), probs, strict=True)
        ]
    return [_sampled(law, p, count, rng) for p in probs]


def _fixed(tokens: list[int], chances: list[float], p: Tensor) -> Drawn:
    kept = sum(chance > 0 for chance in chances)  # chances fall, so the live ones come first
    tokens = tokens[:kept]
    return Drawn(tokens, chances[:kept], Deterministic(tokens, p.shape[-1], p.dtype, p.device))


def _sampled(law: type[Proposal], p: Tensor, count: int, rng: Randomness) -> Drawn:
    if law is PerChild:
        ps = [one for one in p if bool(one.any())][:count]
        tokens = [rng.choose(one) for one in ps]
        chances = [float(one[token]) for one, token in zip(ps, tokens, strict=True)]
        return Drawn(tokens, chances, PerChild(ps))
    proposal: Proposal
    if law is WithReplacement:
        proposal = WithReplacement(p)
        tokens = [rng.choose(p) for _ in range(count)] if bool(p.any()) else []
    elif law is TopThenSample:
        best = p.topk(min(count - 1, p.shape[-1]))
        top = best.indices[best.values > 0].tolist()
        proposal = TopThenSample(p, top)
        rest = proposal.marginal(len(top))
        tokens = [*top, rng.choose(rest)] if bool(rest.any()) else top
    else:
        proposal = WithoutReplacement(p)
        tokens = rng.without_replacement(p, count)
    return Drawn(tokens, p[tokens].tolist(), proposal)
