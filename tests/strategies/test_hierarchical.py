"""Hierarchical speculative decoding (arXiv 2601.05724), as its paper defines it, is block verification."""

import math
from functools import partial

import pytest
import torch

from draftwood import TokenTree, WithReplacement
from draftwood.strategies.verifiers.block import Block
from draftwood.testing import enumerate_outcomes, measure_sampler, prove_sampler


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


def backwards(case, *, running_maximum):
    """The sampler that goes back from the last token; `running_maximum=False` is that of the authors' code.

    Their `algorithm_clean.py` (commit 8974510) caps a prefix's ratio by 1, not by the largest ratio before
    it, does not cap that of the whole draft, and never goes back from a token whose ratio is 1 or more.
    """
    tokens, n = case.draft_tokens.tolist(), len(case.draft_tokens)
    ratios, capped = [1.0], [1.0]
    for level, token in enumerate(tokens):
        step = float(case.target_probs[level, token] / case.draft_probs[level, token])
        ratios.append(ratios[-1] * step)
        most = max(ratios[:-1]) if running_maximum else 1.0
        capped.append(min(ratios[-2] / most, 1.0) * step)
    if torch.rand((), dtype=torch.float64) < (capped if running_maximum else ratios)[n]:
        return [*tokens, int(torch.multinomial(case.target_probs[n], 1))]
    for length in range(n - 1, -1, -1):
        weight = ratios[length] / max(ratios[: length + 1]) if running_maximum else min(ratios[length], 1.0)
        difference = weight * case.target_probs[length] - case.draft_probs[length]
        above, below = difference.clamp(min=0), (-difference).clamp(min=0)
        stays = 1.0 if length == 0 else float(above.sum() / max(above.sum(), below.sum()))
        if not running_maximum and ratios[length + 1] >= 1:
            stays = 1.0
        if torch.rand((), dtype=torch.float64) < stays:
            if not above.any():
                return tokens[: length + 1]
            return [*tokens[:length], int(torch.multinomial(above, 1))]
    raise AssertionError("at the root it stays")


def test_the_authors_code_is_biased_and_the_papers_algorithm_is_not():
    assert prove_sampler(partial(backwards, running_maximum=True)).error < 1e-12
    published = measure_sampler(partial(backwards, running_maximum=False))
    assert published.error == pytest.approx(0.0453, abs=1e-4)
