"""Stochastic beam search: the truncated Gumbels, and the ordered draws that stand for them."""

import itertools
from collections import Counter, defaultdict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    Randomness,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import (
    NextTokenModel,
    ToyBackend,
    ToyModel,
    assert_lossless,
    assert_proposal_law,
)
from tests.strategies.drawn_trees import drawn, grow, texts_of

seeds = st.integers(0, 10**6)


def levels_of(tree):
    """The texts of every level in the tree's order."""
    levels = defaultdict(list)
    for text in texts_of(tree)[1:]:
        levels[len(text) - 2].append(text)
    return tuple(tuple(level) for _, level in sorted(levels.items()))


def law_of_first_prefixes(model, width, depth):
    """For every outcome, its chance: draw whole sequences without replacement, and keep of every level
    the first `width` distinct prefixes."""
    vocab = range(model.vocab_size)
    chances = {}
    for tokens in itertools.product(vocab, repeat=depth):
        text = (0, *tokens)
        chances[text] = 1.0
        for index in range(1, len(text)):
            chances[text] *= float(model.probs(text[:index])[text[index]])
    law = defaultdict[Any, float](float)

    def draw(weight, left, levels):
        if not left or all(len(level) == width for level in levels):
            law[levels] += weight
            return
        total = sum(chances[text] for text in left)
        for text in left:
            after = tuple(
                (*level, text[: index + 2])
                if len(level) < width and text[: index + 2] not in level
                else level
                for index, level in enumerate(levels)
            )
            draw(weight * chances[text] / total, left - {text}, after)

    draw(1.0, frozenset(text for text, chance in chances.items() if chance > 0), ((),) * depth)
    return law


@pytest.mark.parametrize(
    ("vocab", "width", "depth", "sparsity"),
    [(2, 2, 2, 0.0), (2, 3, 2, 0.0), (2, 2, 3, 0.0), (3, 2, 2, 0.0), (3, 2, 2, 0.4), (3, 1, 2, 0.0)],
)
def test_the_beams_are_the_first_distinct_prefixes_of_drawn_sequences(vocab, width, depth, sparsity):
    for seed in range(2):
        model = ToyModel(vocab, seed=seed, sparsity=sparsity)
        result = defaultdict[Any, float](float)
        for weight, tree in drawn(StochasticBeam(width, depth), model):
            result[levels_of(tree)] += weight
        assert result == pytest.approx(law_of_first_prefixes(model, width, depth), abs=1e-13)


def gumbel_beams(model, width, depth, generator):
    """RSD's algorithms 8 and 9 with line 7 corrected (the top of the truncated values), in the stable form
    of the truncation: for every level its (place of the parent in the beam, token), in order."""
    beam, levels = list[Any]([((0,), 0.0, 0.0)]), []
    for _ in range(depth):
        rivals = []
        for index, (text, logp, value) in enumerate(beam):
            log_probs = logp + model.probs(text).log()
            uniform = torch.rand(model.vocab_size, dtype=torch.float64, generator=generator)
            perturbed = log_probs - (-uniform.log()).log()
            v = value - perturbed + torch.log1p(-(perturbed - perturbed.max()).exp())
            truncated = value - v.clamp(min=0) - torch.log1p((-v.abs()).exp())
            rivals += [
                (float(truncated[token]), index, token, (*text, token), float(log_probs[token]))
                for token in range(model.vocab_size)
                if log_probs[token] > -torch.inf
            ]
        best = sorted(rivals, reverse=True)[:width]
        levels.append([(index, token) for _, index, token, _, _ in best])
        beam = [(text, logp, value) for value, _, _, text, logp in best]
    return levels


class FromNoise(Randomness):
    """Answers as the noise has it: which place of the beam comes next, then which token."""

    def __init__(self, levels):
        self.answers = iter([answer for level in levels for pair in level for answer in pair])

    def choose(self, p):
        answer = next(self.answers)
        assert p[answer] > 0, "the noise takes a step that the ordered draws cannot take"
        return answer


@given(seeds, st.integers(2, 6), st.integers(1, 6), st.integers(1, 4), st.sampled_from([0.0, 0.4]))
def test_the_same_noise_gives_the_tree_of_truncated_gumbels(seed, vocab, width, depth, sparsity):
    model = ToyModel(vocab, seed=seed, sparsity=sparsity)
    levels = gumbel_beams(model, width, depth, torch.Generator().manual_seed(seed))
    rng: Any = FromNoise(levels)  # type: ignore[abstract]
    tree = grow(StochasticBeam(width, depth), model, rng)
    beam, expected = [(0,)], []
    for level in levels:
        beam = [(*beam[index], token) for index, token in level]
        expected.append(tuple(beam))
    assert levels_of(tree) == tuple(expected)
    assert next(rng.answers, None) is None


def test_truncated_gumbels_have_the_law_of_the_ordered_draws():
    model, runs = ToyModel(2, seed=5), 4000
    law = law_of_first_prefixes(model, 2, 2)
    generator, seen = torch.Generator().manual_seed(1), Counter[Any]()
    for _ in range(runs):
        beam, levels = [(0,)], []
        for level in gumbel_beams(model, 2, 2, generator):
            beam = [(*beam[index], token) for index, token in level]
            levels.append(tuple(beam))
        seen[tuple(levels)] += 1
    assert set(seen) <= set(law)
    chi_square = sum((seen[one] - runs * p) ** 2 / (runs * p) for one, p in law.items())
    assert chi_square < len(law) + 6 * (2 * len(law)) ** 0.5


@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_a_beam_is_as_wide_as_there_are_prefixes(seed, width, depth):
    tree = grow(StochasticBeam(width, depth), ToyModel(2, seed=seed), seed=seed)
    assert [len(level) for level in levels_of(tree)] == [min(width, 2**d) for d in range(1, depth + 1)]
    assert len(set(texts_of(tree))) == len(tree)


def test_a_prefix_without_proposals_stays_a_leaf():
    class Stops(NextTokenModel):
        def logits(self, text):
            logits = ToyModel(3, seed=2).logits(text)
            return torch.full_like(logits, -torch.inf) if text[-1] == 1 else logits

    model = Stops(3)
    drafter = ModelDrafter(ToyBackend(model))
    assert_proposal_law(StochasticBeam(2, 3), drafter)
    assert_lossless(
        StochasticBeam(2, 2), RecursiveRejection(), target=ToyModel(3, seed=4), drafter=drafter, rounds=1
    )
