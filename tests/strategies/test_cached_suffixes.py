"""The drafter on a suffix cache: its distributions, and what it learns from call to call."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import Outcome, Request, SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.protocols import registry
from draftwood.strategies.drafters.cached_suffixes import CachedSuffixes
from draftwood.strategies.drafters.suffix_cache import SuffixCache
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.recipes import suffix_decoding
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyModel, assert_lossless, checks_for, parametrize_with_checks
from draftwood.testing.diagnosis.law_broken import LawBroken
from tests.strategies.kept_texts import VOCAB, Kept, texts


def interpolated(matches, followers, escape, shortest):
    """The definition: from an equal chance, length after length; None where nothing matches."""
    matches = {at: length for at, length in matches.items() if length >= shortest}
    if not matches:
        return None
    probs = np.full(VOCAB, 1 / VOCAB)
    for length in range(shortest, max(matches.values()) + 1):
        counts = np.zeros(VOCAB)
        for at, known in matches.items():
            counts[followers[at]] += known >= length
        probs = (counts + escape * probs) / (counts.sum() + escape)
    return probs


@given(
    st.lists(texts, min_size=1, max_size=3),
    st.integers(8, 60),
    st.sampled_from([(5, 1, 1.0), (3, 2, 0.3), (16, 1, 2.0)]),
    st.data(),
)
def test_distributions_are_interpolated_counts_round_after_round(prompts, capacity, options, data):
    longest, shortest, escape = options
    drafter = CachedSuffixes(
        VOCAB, SuffixCache(VOCAB, capacity=capacity), longest=longest, shortest=shortest, escape=escape
    )
    kept = Kept(capacity)
    drafter.prefill([torch.tensor(prompt, dtype=torch.int64) for prompt in prompts])
    ends = [kept.begin(prompt) for prompt in prompts]
    for step in range(3):
        paths = [[data.draw(st.integers(0, VOCAB - 1)), *data.draw(texts)][:5] for _ in ends]
        requests = [Request(torch.tensor(path), torch.arange(-1, len(path) - 1)) for path in paths]
        got = drafter.distributions(requests).softmax(-1)
        for row, path in enumerate(paths):
            matches: dict[int, int] = {}
            for node, token in enumerate(path):
                onward = {kept.behind(at): n for at, n in matches.items()}
                onward = {
                    at: min(n + 1, longest)
                    for at, n in onward.items()
                    if kept.tokens[at] == token and kept.behind(at) is not None
                }
                text = kept.text(ends[row], max(longest - node - 1, 0)) + path[: node + 1]
                matches = onward or kept.find(text[-longest:], longest)
                followers = {at: kept.tokens[kept.behind(at)] for at in matches}
                expected = interpolated(matches, followers, escape, shortest)
                if expected is None:
                    assert got[row, node].isnan().all()
                else:
                    assert got[row, node].numpy() == pytest.approx(expected, rel=1e-4)
        drafter.commit([Outcome(range(len(path)), path, extra=0, bonus=True, drafted=20) for path in paths])
        ends = [kept.append(end, path) for end, path in zip(ends, paths, strict=True)]
        if step == 1 and len(ends) > 1:
            drafter.release([0])
            ends = ends[1:]


def asked(drafter, root):
    return drafter.distributions([Request(torch.tensor([root]), torch.tensor([-1]))])[0, 0].softmax(-1)


def test_rows_and_calls_learn_from_each_other():
    drafter = CachedSuffixes(9)
    drafter.prefill([torch.tensor([1, 2]), torch.tensor([1, 2])])
    drafter.commit([Outcome([0, 1], [3, 4], extra=5, bonus=True, drafted=1), Outcome([], [], 0, False, 0)])
    requests = [None, Request(torch.tensor([3]), torch.tensor([-1]))]
    assert drafter.distributions(requests)[1, 0].argmax() == 4
    drafter.release()
    drafter.prefill([torch.tensor([7])])
    assert asked(drafter, 3).argmax() == 4
    drafter.store.clear()
    drafter.release()
    drafter.prefill([torch.tensor([7])])
    assert asked(drafter, 3).isnan().all()


def test_longer_matches_are_trusted_more():
    drafter = CachedSuffixes(9)
    drafter.prefill([torch.tensor([1, 2, 3, 4, 5]), torch.tensor([8, 3]), torch.tensor([1, 2])])
    requests = [
        None,
        Request(torch.tensor([4]), torch.tensor([-1])),
        Request(torch.tensor([3]), torch.tensor([-1])),
    ]
    probs = drafter.distributions(requests).softmax(-1)
    assert 1 / 9 < probs[1, 0, 5] < probs[2, 0, 4] < 1


@parametrize_with_checks([CachedSuffixes(13, SuffixCache(13, capacity=512))])
def test_every_check_of_a_drafter(check):
    check()


class LearnsWhatIsAsked(CachedSuffixes):
    def distributions(self, requests):
        for request in requests:
            if request is not None:
                self.store.append(-1, request.tokens.tolist())
        return super().distributions(requests)


@pytest.mark.parametrize("name", ["tree", "commit", "rows", "many-rounds"])
def test_what_learns_from_questions_is_caught(name):
    drafter = LearnsWhatIsAsked(13, SuffixCache(13, capacity=512))
    with pytest.raises(LawBroken, match=r"if nothing else is requested .*\n*.*learn only in commit"):
        dict(checks_for(drafter))[name]()


class Rewound(CachedSuffixes):
    """Knows the same at the beginning of every text, so that its outcomes can be enumerated.

    In double precision: what is proved is the law and not its rounding.
    """

    first: Any = None

    def prefill(self, rows):
        self.first = self.first or copy.deepcopy(self.store)
        self.store = copy.deepcopy(self.first)
        super().prefill(rows)

    def distributions(self, requests):
        return super().distributions(requests).double()


def drafter_of_corpus():
    cache = SuffixCache(VOCAB, capacity=64)
    for text in ([0, 1, 2, 0, 1, 1], [1, 2, 0, 0], [2, 2, 1, 0, 2]):
        cache.append(-1, text)
    return Rewound(VOCAB, cache, longest=3)


@pytest.mark.parametrize(
    "policy",
    [DySpec(2), FixedTree(2, 2, law="top-k"), suffix_decoding(4).policy],
    ids=lambda policy: type(policy).__name__,
)
@pytest.mark.parametrize("verifier", [RecursiveRejection(), Traversal()], ids=str)
def test_it_is_lossless(policy, verifier):
    result = assert_lossless(
        policy, verifier, target=ToyModel(VOCAB, seed=1), drafter=drafter_of_corpus(), prompt=(2, 0), tokens=2
    )
    assert result.expected_tokens > 1


def test_greedy_text_is_that_of_generate_and_the_second_time_faster():
    model: Any = zoo.load("llama-7m")
    tokenizer = zoo.tokenizer()
    prompt = tokenizer("def read(path):\n", return_tensors="pt").input_ids
    expected = model.generate(prompt, max_new_tokens=24, do_sample=False)[0]
    drafter = CachedSuffixes(model.config.vocab_size)
    decoder = SpeculativeDecoder(load(model), drafter, LayeredDySpec(16, law="top-k"), Greedy())
    tokens_per_round = []
    for _ in range(2):
        out: Any = decoder.generate(prompt, max_new_tokens=24, return_dict_in_generate=True)
        assert torch.equal(out.sequences[0], expected)
        tokens_per_round.append(out.statistics.tokens_per_round)
    assert tokens_per_round[1] > 2 * tokens_per_round[0]


def test_samples_of_one_prompt_help_each_other():
    recipe = suffix_decoding()
    model: Any = zoo.load("llama-7m")
    drafter = registry.create("drafters", recipe.drafter, {"vocab_size": model.config.vocab_size})
    sampling = SamplingParams(temperature=0.3)
    prompt = zoo.tokenizer()("Question: Tom has 3 apples and buys 4 more.").input_ids
    decoder = recipe.decoder(load(model), drafter)

    def tokens_per_round(cache):
        drafter.store.clear()
        out: Any = decoder.generate(
            [prompt] * (8 if cache else 1),
            max_new_tokens=24,
            sampling=sampling,
            draft_sampling=recipe.draft_sampling(sampling),
            seed=0,
            return_dict_in_generate=True,
        )
        return out.statistics.tokens_per_round

    assert tokens_per_round(cache=True) > tokens_per_round(cache=False)


def test_a_copy_of_a_drafter_learns_alone():
    drafter = CachedSuffixes(9)
    drafter.prefill([torch.tensor([1, 2])])
    other = copy.deepcopy(drafter)
    other.commit([Outcome([0, 1], [3, 4], extra=5, bonus=True, drafted=1)])
    assert asked(drafter, 3).isnan().all()
    assert asked(other, 3).argmax() == 4


def test_it_is_registered(tmp_path):
    SuffixCache(VOCAB).save(tmp_path)
    drafter = registry.create("drafters", "suffix-cache", {"cache": str(tmp_path), "vocab_size": VOCAB})
    assert isinstance(drafter, CachedSuffixes)
    assert "2411.04975" in drafter.source
