"""The suffix cache: what it finds is what stands in the texts it still holds, call after call."""

import copy
import json
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Outcome,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    load,
    zoo,
)
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

VOCAB = 3
texts = st.lists(st.integers(0, VOCAB - 1), max_size=12)


@attrs.define
class Kept:
    """A cache as plain lists: every token that was ever added, and the number of the one before it."""

    capacity: int
    tokens: list[int] = attrs.field(factory=list)
    before: list[int] = attrs.field(factory=list)
    prompts: dict[tuple[int, ...], tuple[int, int]] = attrs.field(factory=dict)

    @property
    def alive(self):
        return range(max(len(self.tokens) - self.capacity, 0), len(self.tokens))

    def begin(self, prompt):
        first, last = self.prompts.get(tuple(prompt), (-1, -1))
        if first in self.alive:
            return last
        first = len(self.tokens)
        last = self.append(-1, prompt)
        if prompt:
            self.prompts[tuple(prompt)] = (first, last)
        return last

    def append(self, position, tokens):
        for token in tokens:
            self.tokens.append(token)
            self.before.append(position)
            position = len(self.tokens) - 1
        return position

    def text(self, position, count):
        tokens: list[int] = []
        while position in self.alive and len(tokens) < count:
            tokens.insert(0, self.tokens[position])
            position = self.before[position]
        return tokens

    def behind(self, position):
        """The last token that was added behind it while it was there, or None."""
        found = [p for p in self.alive if self.before[p] == position and p - position < self.capacity]
        return found[-1] if found else None

    def find(self, text, longest):
        found = {}
        for position in self.alive:
            if self.behind(position) is None:
                continue
            known = self.text(position, longest)
            length = 0
            while length < min(len(known), len(text)) and known[-1 - length] == text[-1 - length]:
                length += 1
            if length:
                found[position] = length
        return found


@st.composite
def histories(draw):
    """Steps: begin a text with a prompt, or append to one of the texts so far."""
    steps: list[tuple[int | None, list[int]]] = [(None, draw(texts))]
    for count in range(1, draw(st.integers(1, 8))):
        earlier = [tokens for number, tokens in steps if number is None]
        text = draw(st.one_of(st.none(), st.integers(0, len(earlier) - 1)))
        again = text is None and draw(st.booleans())
        steps.append((text, draw(st.sampled_from(earlier)) if again else draw(texts)))
        assert count
    return steps


def grown(cache, steps):
    """The last position of every text after `steps`."""
    ends: list[int] = []
    for text, tokens in steps:
        if text is None:
            ends.append(cache.begin(tokens))
        else:
            ends[text] = cache.append(ends[text], tokens)
    return ends


def found(cache, text, longest):
    positions, lengths = cache.find(text, longest=longest, examples=10**6)
    return dict(zip(positions.tolist(), lengths.tolist(), strict=True))


@given(histories(), st.integers(1, 40), st.integers(1, 9), texts)
def test_all_that_is_kept_is_found(steps, capacity, longest, text):
    cache, kept = SuffixCache(VOCAB, capacity=capacity), Kept(capacity)
    ends = grown(cache, steps)
    assert ends == grown(kept, steps)
    assert len(cache) == len(kept.alive)
    assert found(cache, text, longest) == kept.find(text, longest)
    for end in ends:
        assert cache.text(end, 7) == kept.text(end, 7)


def test_a_cache_grows_to_its_capacity_and_no_further():
    cache = SuffixCache(50, capacity=3000)
    text = [(n * n + n // 7) % 50 for n in range(8000)]
    end = -1
    for start in range(0, len(text), 130):
        end = cache.append(end, text[start : start + 130])
    assert len(cache) == 3000
    assert len(cache._tokens) == 3000
    assert cache.text(end, 5000) == text[-3000:]
    known = found(cache, text[-40:-1], 8)
    assert known
    kept = Kept(3000)
    kept.append(-1, text)
    assert known == kept.find(text[-40:-1], 8)


def test_a_prompt_is_stored_once_and_texts_go_on_behind_it():
    cache = SuffixCache(9)
    first = cache.append(cache.begin([1, 2, 3]), [4, 5])
    second = cache.append(cache.begin([1, 2, 3]), [4, 6])
    assert len(cache) == 3 + 2 + 2
    assert cache.text(first, 9) == [1, 2, 3, 4, 5]
    assert cache.text(second, 9) == [1, 2, 3, 4, 6]
    positions, lengths = cache.find([1, 2, 3, 4], longest=8, examples=9)
    assert sorted(cache.next(positions)[1].tolist()) == [5, 6]
    assert lengths.tolist() == [4, 4]


def test_only_the_last_examples_are_looked_at():
    cache = SuffixCache(9)
    for token in (1, 2, 3, 4):
        cache.append(-1, [0, token])
    positions, _ = cache.find([0], longest=4, examples=2)
    assert sorted(cache.next(positions)[1].tolist()) == [3, 4]


def test_a_token_outside_the_vocabulary_is_refused():
    for token in (-1, VOCAB):
        with pytest.raises(InvalidInput, match=f"holds token {token}, outside the cache's vocabulary of 3"):
            SuffixCache(VOCAB).append(-1, [0, token])
    for vocab_size, capacity in ((VOCAB, 0), (0, 9)):
        with pytest.raises(InvalidInput, match="is 0; give an integer >= 1"):
            SuffixCache(vocab_size, capacity=capacity)


# --- saved and loaded ---


@pytest.mark.posix
@given(histories(), st.integers(1, 40), st.one_of(st.none(), st.just("a digest")), texts)
def test_a_cache_comes_back_from_its_folder(tmp_path_factory, steps, capacity, vocabulary, text):
    cache = SuffixCache(VOCAB, capacity=capacity, vocabulary=vocabulary)
    grown(cache, steps)
    folder = tmp_path_factory.mktemp("cache") / "new"
    written = cache.save(folder)
    assert written == sum(file.stat().st_size for file in folder.iterdir())
    again = SuffixCache.open(folder)
    assert (again.vocab_size, again.capacity, again.vocabulary) == (VOCAB, capacity, vocabulary)
    for twice in (cache, again):
        twice.append(twice.begin(steps[0][1]), text)
    shift = cache._count - again._count
    assert {p - shift: n for p, n in found(cache, text, 9).items()} == found(again, text, 9)


def test_a_smaller_cache_takes_the_last_tokens(tmp_path):
    cache = SuffixCache(9)
    cache.append(-1, [1, 2, 3, 4, 5, 6])
    cache.save(tmp_path)
    small = SuffixCache.open(tmp_path, capacity=3)
    assert small.text(5, 9) == [4, 5, 6]
    with pytest.raises(InvalidInput, match="capacity is -1; give an integer >= 1"):
        SuffixCache.open(tmp_path, capacity=-1)


def saved(folder):
    cache = SuffixCache(VOCAB)
    cache.append(cache.begin([0, 1]), [2, 1, 0])
    cache.save(folder)


@pytest.mark.parametrize("name", ["tokens.npy", "before.npy", "prompts.npy"])
@pytest.mark.parametrize("harm", ["short", "missing", "flipped"])
def test_damaged_files_are_refused(tmp_path, name, harm):
    saved(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-3] ^= 1
    left = {"short": content[:-1], "flipped": content}.get(harm)
    (tmp_path / name).unlink()
    if left is not None:
        (tmp_path / name).write_bytes(left)
    with pytest.raises(InvalidInput, match=rf"cache in .* is corrupt \({name}.*begin a new one\."):
        CachedSuffixes(VOCAB, tmp_path)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("tokens", [0, 1, 2, 3, 0]),
        ("tokens", [0, 1, 2, -1, 0]),
        ("tokens", [[0, 1, 2, 1, 0]]),
        ("tokens", [0.0, 1.0, 2.0, 1.0, 0.0]),
        ("before", [-1, 0, 1, 2]),
        ("before", [-1, 0, 2, 2, 3]),
        ("before", [-1, 0, -2, 2, 3]),
        ("prompts", [[0, 5]]),
        ("prompts", [[-1, 1]]),
        ("prompts", [0, 1]),
    ],
)
def test_files_that_no_cache_wrote_are_refused(tmp_path, name, values):
    from draftwood.strategies.drafters.array_folder import _checksum

    saved(tmp_path)
    np.save(tmp_path / f"{name}.npy", np.array(values))
    header = json.loads((tmp_path / "index.json").read_text())
    header["checksums"][f"{name}.npy"] = _checksum(tmp_path / f"{name}.npy")
    (tmp_path / "index.json").write_text(json.dumps(header))
    with pytest.raises(InvalidInput, match=r"is corrupt \(its files do not fit each other\)"):
        SuffixCache.open(tmp_path)


@pytest.mark.parametrize("field", ["format", "version", "capacity", "vocab_size", "vocabulary", "checksums"])
def test_a_header_that_lacks_a_field_is_refused(tmp_path, field):
    saved(tmp_path)
    header = json.loads((tmp_path / "index.json").read_text())
    del header[field]
    (tmp_path / "index.json").write_text(json.dumps(header))
    with pytest.raises(InvalidInput, match="begin a new one"):
        SuffixCache.open(tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    from draftwood.strategies.drafters.suffix_index import SuffixIndex

    with pytest.raises(InvalidInput, match="There is no cache in .*; save one there with SuffixCache.save"):
        SuffixCache.open(tmp_path)
    SuffixIndex.of([np.array([0, 1])], vocab_size=VOCAB).save(tmp_path)
    with pytest.raises(InvalidInput, match="does not describe one"):
        SuffixCache.open(tmp_path)
    with pytest.raises(InvalidInput, match="holds other files; name a new folder for the cache"):
        SuffixCache(VOCAB).save(tmp_path)
    assert SuffixIndex.open(tmp_path).vocab_size == VOCAB


def test_a_cache_for_another_vocabulary_is_refused():
    with pytest.raises(IncompatibleModels, match="over 5 tokens and the target has 4; give a cache of this"):
        CachedSuffixes(4, SuffixCache(5))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 0}, "longest is 0"),
        ({"shortest": 17}, "shortest is 17; it must not exceed longest, 16"),
        ({"examples": 0}, "examples is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"escape": 0.0}, "escape is 0.0; give a number above 0"),
        ({"escape": float("nan")}, "escape is nan"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        CachedSuffixes(**{"vocab_size": VOCAB, **options})


# --- the drafter ---


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
    with pytest.raises(LawBroken, match=r"asked alone in this round.*\n*.*learn in commit\(\) alone"):
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
    saved(tmp_path)
    drafter = registry.create("drafters", "suffix-cache", {"cache": str(tmp_path), "vocab_size": VOCAB})
    assert isinstance(drafter, CachedSuffixes)
    assert "2411.04975" in drafter.source
