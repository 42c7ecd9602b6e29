"""Laws of texts above temperature 0 with filters, processors and constraints, by exact enumeration."""

from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import Constraint, InvalidInput, SamplingParams, SpeculativeDecoder
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend, ToyModel
from tests.framework.enumerated import PROMPT, error, processed, sequential_law, written_law

VOCAB = 4
TARGET = ToyModel(VOCAB, seed=1)
DRAFT = ToyModel(VOCAB, seed=2)
TEMPERATURES = st.sampled_from([0.5, 1.0, 1.7])
STRATEGIES = st.sampled_from(
    [
        (Chain(2), RecursiveRejection()),
        (DySpec(3), RecursiveRejection()),
        (FixedTree(1, 2), Traversal()),
        (FixedTree(1, 3, law="top-k"), RecursiveRejection()),
    ]
)


def decoder(policy, verifier):
    return SpeculativeDecoder(ToyBackend(TARGET), ModelDrafter(ToyBackend(DRAFT)), policy, verifier)


def filters():
    return st.builds(
        SamplingParams,
        TEMPERATURES,
        top_k=st.sampled_from([None, 1, 2, 3]),
        top_p=st.sampled_from([None, 0.5, 0.8]),
        min_p=st.sampled_from([None, 0.2, 0.4]),
        processors=st.sampled_from(
            [
                (),
                (hf.RepetitionPenaltyLogitsProcessor(2.0),),
                (hf.NoRepeatNGramLogitsProcessor(2), hf.MinLengthLogitsProcessor(4, 3)),
                (hf.SuppressTokensLogitsProcessor([2]),),
            ]
        ),
    )


def probs_of(params):
    """transformers' own way from logits to probabilities."""
    warpers: list[Any] = [hf.TemperatureLogitsWarper(params.temperature)]
    if params.top_k is not None:
        warpers.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p is not None:
        warpers.append(hf.TopPLogitsWarper(params.top_p))
    if params.min_p is not None:
        warpers.append(hf.MinPLogitsWarper(params.min_p))
    return lambda text, logits: processed([*params.processors, *warpers], text, logits).softmax(-1)


@settings(max_examples=12, deadline=None)
@given(STRATEGIES, filters(), filters())
def test_filters_and_processors_of_the_target_decide_whatever_the_draft_has(strategy, expected, drafted):
    actual = written_law(decoder(*strategy), tokens=2, sampling=expected, draft_sampling=drafted)
    assert error(actual, sequential_law(TARGET, probs_of(expected), tokens=2)) < 1e-12


def test_the_draft_has_filters_of_its_own():
    out = decoder(Chain(3), RecursiveRejection()).generate(
        [PROMPT],
        max_new_tokens=12,
        sampling=SamplingParams(1.0),
        draft_sampling=SamplingParams(1.0, top_k=1),
        seed=1,
        trace=True,
        return_dict_in_generate=True,
    )
    trees = [record.tree for one in out.statistics.rounds for record in one.rows]
    assert {chance for tree in trees for chance in tree.draft_probs} == {1.0}
    assert len({chance for tree in trees for chance in tree.target_probs}) > 5


@attrs.frozen
class Rises(Constraint):
    """A token must not be smaller than the last new one; 3 may always come."""

    def start(self, prompt):
        return 0

    def advance(self, state, token):
        return None if token < state and token != 3 else min(token, 2)

    def masks(self, states, vocab_size):
        return torch.arange(vocab_size) >= torch.tensor(states).unsqueeze(1)


def rising(text, logits):
    new = [min(token, 2) for token in text[len(PROMPT) :]]
    allowed = torch.arange(VOCAB) >= (new[-1] if new else 0)
    return logits.masked_fill(~allowed, -torch.inf).softmax(-1)


@pytest.mark.thorough
@settings(max_examples=8, deadline=None)
@given(STRATEGIES)
def test_a_constraint_decides_and_nothing_else_changes(strategy):
    sampling = SamplingParams(1.0)
    actual = written_law(decoder(*strategy), tokens=2, sampling=sampling, constraint=Rises())
    assert error(actual, sequential_law(TARGET, rising, tokens=2)) < 1e-12


def test_every_row_has_its_own_constraint():
    @attrs.frozen
    class Only(Constraint):
        token: int

        def start(self, prompt):
            return ()

        def advance(self, state, token):
            return () if token == self.token else None

        def masks(self, states, vocab_size):
            return (torch.arange(vocab_size) == self.token).expand(len(states), -1)

    out = decoder(DySpec(4), RecursiveRejection()).generate(
        [[1], [2, 2], [3]],
        max_new_tokens=5,
        constraint=[Only(0), Only(3), Only(1)],
        sampling=SamplingParams(1.0),
        return_dict_in_generate=True,
    )
    assert out.tokens == [[0] * 5, [3] * 5, [1] * 5]
    with pytest.raises(InvalidInput, match="2 constraints were given for 1 rows"):
        decoder(Chain(1), RecursiveRejection()).generate([[1]], constraint=[Only(0), Only(1)])


@pytest.mark.parametrize(
    ("masks", "message"),
    [
        (lambda n, vocab: torch.zeros(n, vocab, dtype=torch.bool), "allows no token"),
        (lambda n, vocab: torch.ones(n, vocab), "it must give bool"),
        (lambda n, vocab: torch.ones(n, vocab - 1, dtype=torch.bool), "it must give bool"),
        (lambda n, vocab: torch.ones(n, vocab, dtype=torch.bool), "advance.. and masks.. disagree"),
    ],
)
def test_a_constraint_that_cannot_be_followed_is_one_sentence(masks, message):
    class Broken(Rises):
        def advance(self, state, token):
            return None

        def masks(self, states, vocab_size):
            return masks(len(states), vocab_size)

    with pytest.raises(InvalidInput, match=message):
        decoder(Chain(2), RecursiveRejection()).generate([[1]], constraint=Broken())
