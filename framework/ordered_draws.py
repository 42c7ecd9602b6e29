"""Draws without replacement for many nodes at once, where a kernel makes them."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from draftwood.randomness import Randomness, UniformRandomness


def drawn_together(
    probs: Float[Tensor, "nodes vocab"], counts: Sequence[int], total: int, rng: Randomness
) -> list[tuple[list[int], list[float]]] | None:
    """Tokens and chances of all nodes from one launch, by the uniforms that node after node would take.

    None, with `rng` as it was, where no kernel serves, or where there is something to complain of.
    """
    # The kernels import nothing of ours, so this arrow points down.
    from draftwood.kernels.ordered_draws import dispatch

    draw = dispatch.serving(probs)
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
