"""Hierarchical speculative decoding (arXiv 2601.05724), as its paper defines it, is block verification."""

import math

import pytest
import torch

from draftwood import TokenTree, WithReplacement
from draftwood.strategies.verifiers.block import Block
from draftwood.testing import enumerate_outcomes


def hierarchical(tokens, target, draft):
    """The law of (accepted tokens, extra token) of its algorithm 2, by its equations 16 to 20."""
    ratios = [1.0]  # of the prefixes: target over draft
    for level, token in enumerate(tokens):
        ratios.append(ratios[-1] * float(target[level, token] / draft[level, token]))

    def capped(length):
        """Equation 16, for the prefix of this length and every token after it."""
        return ratios[length] / max(ratios[: length + 1]) * target[length] / draft[length]

    law, rejected = {}, 1.0
    for length in range(len(tokens), -1, -1):
        if length == len(tokens):
            chance = min(float(capped(length - 1)[tokens[-1]]), 1.0)
            extra = target[length]
        else:
            above, below = ((sign * (capped(length) - 1)).clamp(min=0) * draft[length] for sign in (1, -1))
            chance = float(above.sum() / below.sum()) if length else 1.0
            extra = above / above.sum() if chance else above
        for token, weight in enumerate(extra.tolist()):
            law[length, token] = rejected * chance * weight
        rejected *= 1 - chance
    return law


@pytest.mark.parametrize("length", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(6))
def test_hierarchical_decoding_accepts_what_block_verification_does(length, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(2, length + 1, 4, generator=generator, dtype=torch.float64)
    target, draft = logits.softmax(-1)
    tokens = torch.randint(4, (length,), generator=generator).tolist()
    proposals = {node: WithReplacement(draft[node]) for node in range(length)}
    tree = TokenTree(torch.tensor([0, *tokens]), torch.arange(-1, length), proposals)
    law: dict[tuple[int, int], float] = {}
    for weight, outcome in enumerate_outcomes(lambda rng: Block().verify(tree, target, rng)):
        drawn = (len(outcome.path) - 1, outcome.extra)
        law[drawn] = law.get(drawn, 0.0) + weight
    expected = hierarchical(tokens, target, draft)
    assert math.fsum(expected.values()) == pytest.approx(1, abs=1e-12)
    assert max(abs(law.get(drawn, 0.0) - chance) for drawn, chance in expected.items()) <= 1e-12
