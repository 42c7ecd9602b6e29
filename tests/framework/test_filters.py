"""Filters by the largest scores against transformers' warpers, which sort the vocabulary."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import SamplingParams
from draftwood.base.scratch import Scratch
from draftwood.distributions.filters import filtered


@given(
    seed=st.integers(0, 2**32),
    vocab=st.sampled_from([1, 2, 5, 60, 300, 3000]),
    sharpness=st.sampled_from([0.1, 1.0, 4.0, 9.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    ties=st.booleans(),
    forbidden=st.booleans(),
    temperature=st.sampled_from([0.5, 1.0, 1.4]),
    top_k=st.sampled_from([None, 1, 3, 50]),
    top_p=st.sampled_from([None, 0.3, 0.9, 0.99, 1.0]),
    min_p=st.sampled_from([None, 0.01, 0.2, 1.0]),
)
@settings(max_examples=150, deadline=None)
def test_distributions_are_those_of_transformers(
    seed, vocab, sharpness, dtype, ties, forbidden, temperature, top_k, top_p, min_p
):
    logits = sharpness * torch.randn(3, vocab, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    if ties:
        logits = logits.round()
    if forbidden:
        logits[0, 1::2] = -torch.inf
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected = sampling.probabilities(sampling.scores(logits))
    assert torch.allclose(sampling.targets(logits, Scratch()), expected, atol=1e-6)
    assert torch.allclose(sampling.proposals(logits, Scratch()), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("scores", "options", "left"),
    [
        ([[2.0, 1.0, 1.0, 0.0], [2.0, 1.0, 0.5, 0.5]], {"top_k": 2}, [0]),
        ([[3.0, 1.0, 1.0, 0.0]], {"top_k": 2, "top_p": 0.1}, [0]),
        ([[2.0, 1.0, 0.0], [1.0, 1.0, 0.0]], {"top_p": 0.1}, [1]),
        ([[0.0] * 3000, [20.0] + [0.0] * 2999], {"top_p": 0.9}, [0]),
        ([[1.0, 0.0], [2.0, 1.0]], {"top_k": 1}, []),
    ],
)
def test_what_only_a_sort_can_tell_is_left_to_a_sort(scores, options, left):
    out = torch.full((len(scores), len(scores[0])), 7.0)
    limits = {"top_k": None, "top_p": None, "min_p": None, **options}
    assert filtered(torch.tensor(scores), temperature=1.0, **limits, out=out).tolist() == left


def test_top_p_is_of_the_whole_vocabulary():
    # Of the probability of the largest 256 scores top-p would keep fewer.
    scores = torch.zeros(1, 3000)
    scores[0, :300] = 2.6 - torch.arange(300) / 1000
    sampling = SamplingParams(temperature=1.0, top_p=0.5)
    expected = sampling.probabilities(sampling.scores(scores))
    assert torch.allclose(sampling.targets(scores, Scratch()), expected, atol=1e-6)
    of_these = SamplingParams(temperature=1.0, top_p=0.5).targets(scores[:, :256], Scratch())
    assert int((expected > 0).sum()) > int((of_these > 0).sum())


@pytest.mark.parametrize("options", [{"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}])
@pytest.mark.parametrize("bad", [[-torch.inf] * 3, [0.0, torch.nan, 0.0], [0.0, torch.inf, 0.0]])
def test_nan_comes_of_what_has_no_softmax(options, bad):
    out = torch.full((3, 3), 7.0)
    limits = {"top_k": None, "top_p": None, "min_p": None, **options}
    scores = torch.tensor([[3.0, 2.0, 0.0], bad, [0.0, 1.0, 3.0]])
    assert not len(filtered(scores, temperature=1.0, **limits, out=out))
    assert out.isnan().all(-1).tolist() == [False, True, False]
    assert out[[0, 2]].sum(-1).tolist() == pytest.approx([1, 1])
