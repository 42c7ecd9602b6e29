"""Drawing the children of nodes by a proposal law."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

import attrs
from jaxtyping import Float
from torch import Tensor

from draftwood import registry
from draftwood.proposals import (
    Deterministic,
    PerChild,
    Proposal,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.randomness import Randomness, UniformRandomness


@attrs.frozen
class Drawn:
    """Children of one node: tokens in drawn order, their draft probabilities, and their law."""

    tokens: list[int]
    chances: list[float]
    proposal: Proposal


def draw_children(
    law: type[Proposal],
    probs: Float[Tensor, "nodes *drafters vocab"],
    *,
    count: int | Sequence[int],
    rng: Randomness,
    total: int | None = None,
) -> list[Drawn]:
    """Draw up to `count` children for each of several nodes.

    Ask for all nodes of a request at once: on a GPU a kernel then draws without replacement for all of
    them, by the same uniforms, with one small result read back.

    Args:
        law: one of the proposal laws; `PerChild` draws one child from every drafter, `TopThenSample`
            takes the most likely tokens for all children but the last.
        probs: the nodes' draft distributions `[nodes, vocab]`; `[nodes, drafters, vocab]` for `PerChild`.
        count: how many a node, one number or one for each; it gets fewer when fewer tokens have
            probability above 0.
        rng: the draft stream.
        total: how many altogether; a node behind the last of them is left out. None: no limit.
    """
    counts = [count] * len(probs) if isinstance(count, int) else count
    left = sys.maxsize if total is None else total
    if law is Deterministic:
        # One top-k and one transfer for all nodes.
        top = probs.topk(min(max(counts, default=0), probs.shape[-1]))
        ranked = list(zip(top.indices.tolist(), top.values.tolist(), strict=True))
    together = _together(probs, counts, left, rng) if law is WithoutReplacement else None
    found: list[Drawn] = []
    for node, (p, wanted) in enumerate(zip(probs, counts, strict=True)):
        if left < 1:
            break
        most = min(wanted, left)
        if law is Deterministic:
            found.append(_fixed(*ranked[node], p, most))
        elif together is not None:
            found.append(Drawn(*together[node], WithoutReplacement(p)))
        else:
            found.append(_sampled(law, p, most, rng))
        left -= len(found[-1].tokens)
    return found


def _fixed(tokens: list[int], chances: list[float], p: Tensor, count: int) -> Drawn:
    kept = sum(chance > 0 for chance in chances[:count])  # chances fall, so the live ones come first
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


def _together(
    probs: Tensor, counts: Sequence[int], total: int, rng: Randomness
) -> list[tuple[list[int], list[float]]] | None:
    """Tokens and chances of all nodes from one launch, by the uniforms that node after node would take.

    None, with `rng` as it was, where no kernel serves, or where there is something to complain of.
    """
    draw = _serving()(probs)
    if draw is None or not isinstance(rng, UniformRandomness):
        return None
    uniforms = rng.ahead(min(sum(counts), total))
    try:
        draws: list[tuple[list[int], list[float]]] = draw(
            probs=probs, count=counts, total=total, uniforms=uniforms
        )
    except ValueError:
        return None
    rng.uniforms(sum(len(tokens) for tokens, _ in draws))
    return draws


@cache
def _serving() -> Any:
    # By its name, since no arrow points up to the kernels.
    return registry.get("kernels", "ordered-draws")
