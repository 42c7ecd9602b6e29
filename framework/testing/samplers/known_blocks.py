"""Rules of block verification, right and with known mistakes, as the parts of a sampler of chains."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from draftwood.testing.samplers.known_mistakes import Mistake, Step, residual_of

_SEE = 'see "Block Verification Accelerates Speculative Decoding" (Sun et al., 2024), algorithm 2.'

Blocks = Callable[[Step], list[float]]
"""The chances of a step with which blocks of 1, 2, ... tokens are accepted, each tested by its own coin."""


def _ratios(step: Step) -> list[float]:
    rows = zip(step.targets, step.drafts, step.tokens, strict=False)
    return [float(target[token]) / max(float(draft[token]), 1e-300) for target, draft, token in rows]


def _products(step: Step, *, capped: bool = True) -> list[float]:
    """Returns the product of the ratios up to each place, which is kept at 1 or less; 1 before the first."""
    products = [1.0]
    for ratio in _ratios(step):
        product = products[-1] * ratio
        products.append(min(product, 1.0) if capped else product)
    return [min(product, 1.0) for product in products]


def _blocks(step: Step, *, capped: bool = True) -> list[float]:
    products = _products(step, capped=capped)
    return [*(_chance(step, at, products[at]) for at in range(1, len(step.tokens))), products[-1]]


def _chance(step: Step, at: int, product: float) -> float:
    left = float((product * step.targets[at] - step.drafts[at]).clamp(min=0).sum())
    return left / (left + 1 - product) if left + 1 - product > 0 else 1.0


def _longest(blocks: Blocks) -> Callable[[Step], float]:
    """Returns the chance of a step, given those before it, where the longest accepted block is kept."""

    def ratio(step: Step) -> float:
        chances = [min(chance, 1.0) for chance in blocks(step)]

        def kept(length: int) -> float:
            none = 1.0
            for chance in chances[length - 1 :] if length else [1.0]:
                none *= 1 - chance
            return 1 - none

        before = kept(step.index)
        return kept(step.index + 1) / before if before > 0 else 0.0

    return ratio


def _residual(step: Step) -> Tensor:
    return residual_of(_products(step)[step.index] * step.targets[step.index], step.draft)


BLOCK_TEST = Mistake(
    "it accepts as block verification does; then draw after a rejection from max(r T - D, 0), where r is the "
    "product of the ratios so far, each product at most 1.",
    ratio=_longest(_blocks),
)
BLOCK_RESIDUAL = Mistake(
    "after a rejection it draws from max(r T - D, 0) with the product r of the ratios so far, as block "
    "verification does, though each token is tested by itself; draw from max(T - D, 0).",
    left=_residual,
)
TOKEN_RESIDUAL = Mistake(
    "after a rejection it draws from max(T - D, 0); draw from max(r T - D, 0), where r is the product of the "
    "ratios so far, each product at most 1."
)
"""A mistake where drafts are tested as a whole, and right where tokens are."""

BLOCK_TESTS = (
    BLOCK_TEST,
    Mistake(
        f"it accepts a block with the product of its ratios, also where another token follows; {_SEE}",
        ratio=_longest(lambda step: _products(step)[1:]),
    ),
    Mistake(
        "it tests blocks as block verification does, but ends at the first one that is rejected; keep the "
        "longest that is accepted.",
        ratio=lambda step: _blocks(step)[step.index],
    ),
    Mistake(
        f"it tests blocks by the product of their ratios, which it does not keep at 1 or less; {_SEE}",
        ratio=_longest(lambda step: _blocks(step, capped=False)),
    ),
)
"""Tests of a draft as a whole, the right one first."""
