"""SamplingParams against transformers' own processors."""

from typing import Any

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidDistribution, InvalidInput, SamplingParams
from draftwood.base.scratch import Scratch
from draftwood.distributions.sampling import COLDEST
from draftwood.trees.prefixes import Prefixes, RowText


@given(
    st.integers(0, 2**31),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([None, 1, 3, 50]),
    st.sampled_from([None, 0.2, 0.9, 1.0]),
    st.sampled_from([None, 0.05, 0.5]),
)
def test_the_transform_is_that_of_generate(seed, temperature, top_k, top_p, min_p):
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(seed)) * 3
    scores = transformers.TemperatureLogitsWarper(temperature)(None, logits)
    for cls, value in (
        (transformers.TopKLogitsWarper, top_k),
        (transformers.TopPLogitsWarper, top_p),
        (transformers.MinPLogitsWarper, min_p),
    ):
        if value is not None:
            warper: Any = cls(value)
            scores = warper(None, scores)
    params = SamplingParams(temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    torch.testing.assert_close(params.distribution(logits), scores.softmax(-1))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("filters", [{}, {"top_k": 2}, {"top_p": 0.9, "min_p": 0.1}])
def test_the_coldest_temperature_takes_the_most_likely_token(dtype, filters):
    logits = torch.tensor([[-65504.0, 65504.0, 65000.0], [1e-3, 0.0, -3e4], [2.0, 2.0, -2.0]], dtype=dtype)
    params = SamplingParams(COLDEST, **filters)
    for probs in (
        params.distribution(logits),
        params.targets(logits, Scratch()),
        params.proposals(logits, Scratch()),
    ):
        assert probs.tolist() == [[0, 1, 0], [1, 0, 0], [0.5, 0.5, 0]]


def test_filters_of_zero_keep_all_as_in_generate():
    assert SamplingParams(0.7, top_k=0, min_p=0.0) == SamplingParams(0.7, min_p=0) == SamplingParams(0.7)
    logits = torch.randn(3, 20)
    assert torch.equal(
        SamplingParams(0.7, top_k=0, top_p=0.6, min_p=0.0).distribution(logits),
        SamplingParams(0.7, top_p=0.6).distribution(logits),
    )


def test_temperature_zero_takes_the_first_of_equal_logits():
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 5.0, 5.0]])
    assert SamplingParams().distribution(logits).tolist() == [[0, 1, 0], [1, 0, 0]]


def test_float64_stays_and_half_precision_is_lifted():
    assert SamplingParams(1.0).distribution(torch.zeros(1, 3, dtype=torch.float64)).dtype == torch.float64
    assert SamplingParams(1.0).distribution(torch.zeros(1, 3, dtype=torch.bfloat16)).dtype == torch.float32


def test_a_processor_that_reads_the_prefix_sees_each_nodes_own_context():
    params = SamplingParams(1.0, processors=[transformers.RepetitionPenaltyLogitsProcessor(2.0)])
    text = RowText.of(torch.tensor([0]))
    paths = [(1,), (2,), (3, 3)]
    logits = torch.ones(3, 4)
    got = params.distribution(logits, Prefixes(text, paths))
    for row, path in enumerate(paths):
        alone = params.distribution(logits[row : row + 1], Prefixes(text, [path]))
        torch.testing.assert_close(got[row : row + 1], alone)
    assert not torch.allclose(got[0], got[1])
    with pytest.raises(InvalidInput, match="0 prefixes were given for 3 nodes"):
        params.distribution(logits)


@pytest.mark.parametrize(
    ("bad", "temperature"), [(float("nan"), 0.0), (float("nan"), 1.0), (float("inf"), 1.0)]
)
def test_unsound_logits_are_refused(bad, temperature):
    logits = torch.zeros(3, 5)
    logits[1, 2] = float(bad)
    with pytest.raises(InvalidDistribution, match="node 1"):
        SamplingParams(temperature).distribution(logits)
    # Logits of several drafters, [n, drafters, vocab], are refused too.
    with pytest.raises(InvalidDistribution, match=f"node 1 hold {bad}"):
        SamplingParams(temperature).probabilities(torch.stack([torch.zeros(3, 5), logits], 1))


def test_at_temperature_0_the_first_infinite_logit_wins_as_in_generate():
    logits = torch.tensor([[1.0, torch.inf, torch.inf], [2.0, 1.0, -torch.inf]])
    assert SamplingParams(0.0).distribution(logits).argmax(-1).tolist() == logits.argmax(-1).tolist()


def test_a_draft_proposes_what_overflowed():
    probs = SamplingParams(1.0).distribution(torch.tensor([[1.0, torch.inf, 0.0]]), may_be_empty=True)
    assert probs.tolist() == [[0.0, 1.0, 0.0]]


def test_a_row_without_any_token_is_no_proposal_or_an_error():
    logits = torch.stack([torch.full((4,), -torch.inf), torch.zeros(4)])
    probs = SamplingParams(1.0).distribution(logits, may_be_empty=True)
    assert probs.tolist() == [[0] * 4, [0.25] * 4]
    with pytest.raises(InvalidDistribution, match="-inf"):
        SamplingParams(1.0).distribution(logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature is -0.1"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_k": False}, "top_k is False"),
        ({"min_p": False}, "min_p is False"),
        ({"temperature": 5e-324}, "temperature=5e-324 is too small: .* Use 0 for greedy decoding"),
        ({"temperature": 9e-31}, "temperature=9e-31 is too small"),
        ({"processors": [transformers.TemperatureLogitsWarper(5e-324)]}, "temperature=5e-324 is too small"),
        ({"min_p": -1}, "min_p is -1"),
        ({"temperature": "1"}, "temperature is '1'"),
        ({"temperature": True}, "temperature is True"),
        ({"top_k": 2.5}, "top_k is 2.5"),
        ({"top_p": "a"}, "top_p is 'a'"),
        ({"processors": transformers.TopKLogitsWarper(2)}, "processors is"),
        ({"processors": [3]}, "processors is .3.; give a list"),
    ],
)
def test_settings_out_of_range_name_the_value(options, message):
    with pytest.raises(InvalidInput, match=message):
        SamplingParams(**options)


def test_whole_numbers_are_numbers():
    logits = torch.tensor([[0.0, 2.0, 4.0]])
    assert SamplingParams(2, top_p=1, min_p=1).distribution(logits).tolist() == [[0, 0, 1]]
