"""Retrieval: its distributions are counts over the corpus, and a damaged index is refused."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import IncompatibleModels, InvalidInput, Outcome, Request, SpeculativeDecoder, load, zoo
from draftwood.protocols import registry
from draftwood.strategies.drafters.retrieval import RetrievalDrafter
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyModel, assert_lossless, parametrize_with_checks

VOCAB = 3
texts = st.lists(st.integers(0, VOCAB - 1), max_size=12)
corpora = st.lists(texts, min_size=1, max_size=5).filter(any)


def index_of(documents, vocab_size=VOCAB, **options):
    rows = [np.array(document, dtype=np.int64) for document in documents]
    return SuffixIndex.of(rows, vocab_size=vocab_size, **options)


def counted(documents, text, longest, shortest):
    """Returns the counts of tokens that follow the longest suffix of `text` that occurs with a next token."""
    counts = [0] * VOCAB
    for n in range(min(longest, len(text)), shortest - 1, -1):
        for document in documents:
            for start in range(len(document) - n):
                if document[start : start + n] == text[len(text) - n :]:
                    counts[document[start + n]] += 1
        if any(counts):
            break
    return counts


@given(corpora)
def test_suffixes_are_sorted(documents):
    index = index_of(documents)
    tokens = index.tokens.tolist()
    assert tokens == [token for document in documents if document for token in (*document, VOCAB)]
    assert index.suffixes.tolist() == sorted(range(len(tokens)), key=lambda place: tokens[place:])


@given(texts.filter(bool), st.integers(2, 30), texts, st.integers(1, 3))
def test_repeats_of_any_length_are_sorted(block, times, tail, copies):
    index = index_of([block * times + tail] * copies)
    tokens = index.tokens.tolist()
    assert index.suffixes.tolist() == sorted(range(len(tokens)), key=lambda place: tokens[place:])


@pytest.mark.parametrize("vocab_size", [3, 70_000, 2**32 - 1])
def test_long_repeats_and_wide_vocabularies_are_sorted(vocab_size):
    document = [vocab_size - 1, 0] * 40 + [1] + [vocab_size - 1, 0] * 40
    index = index_of([document, document], vocab_size)
    tokens = index.tokens.tolist()
    assert tokens[: len(document)] == document
    assert index.suffixes.tolist() == sorted(range(len(tokens)), key=lambda place: tokens[place:])


@st.composite
def trees(draw):
    """Tokens and parents, and where the requests begin; a parent may be of the same request."""
    size = draw(st.integers(1, 7))
    tokens = draw(st.lists(st.integers(0, VOCAB - 1), min_size=size, max_size=size))
    parents = [-1, *(draw(st.integers(0, node - 1)) for node in range(1, size))]
    cuts = sorted(draw(st.sets(st.integers(1, size - 1), max_size=2)) if size > 1 else ())
    return tokens, parents, [0, *cuts, size]


@given(corpora, st.integers(1, 5), st.integers(1, 3), st.data())
def test_distributions_are_counts_round_after_round(documents, longest, shortest, data):
    shortest = min(shortest, longest)
    drafter = RetrievalDrafter(index_of(documents), VOCAB, longest=longest, shortest=shortest)
    rows = data.draw(st.lists(texts, min_size=1, max_size=3))
    drafter.prefill([torch.tensor(row, dtype=torch.int64) for row in rows])
    for step in range(3):
        asked = [data.draw(trees()) for _ in rows]
        for call in range(3):
            requests: list[Any] = [
                Request(torch.tensor(tokens[a:b]), torch.tensor(parents[a:b]))
                for tokens, parents, cuts in asked
                for a, b in [(cuts + cuts[-1:] * 3)[call : call + 2]]
            ]
            requests = [request if len(request) else None for request in requests]
            if not any(requests):
                break
            got = drafter.distributions(requests).exp()
            for row, (tokens, parents, cuts) in enumerate(asked):
                for node in range(*(cuts + cuts[-1:] * 3)[call : call + 2]):
                    path, ancestor = [], node
                    while ancestor >= 0:
                        path.append(tokens[ancestor])
                        ancestor = parents[ancestor]
                    expected = counted(documents, rows[row] + path[::-1], longest, shortest)
                    assert got[row, node - cuts[call]].round().tolist() == expected
        accepted = [[tokens[0], *data.draw(texts)] for tokens, _, _ in asked]
        drafter.commit([Outcome(range(len(a)), a, extra=0, bonus=True, drafted=20) for a in accepted])
        rows = [text + path for text, path in zip(rows, accepted, strict=True)]
        if step == 1 and len(rows) > 1:
            drafter.release([0])
            rows = rows[1:]


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 8))
def test_examples_are_spread_evenly(tail, examples):
    """Every token after 0 in a corpus where 0 only occurs at the start of a document."""
    index = index_of([[0, 1 + token] for token in tail], 6)
    drafter = RetrievalDrafter(index, 6, shortest=1, examples=examples)
    drafter.prefill([torch.zeros(0, dtype=torch.int64)])
    got = drafter.distributions([Request(torch.tensor([0]), torch.tensor([-1]))])[0, 0].exp().round()
    assert got.sum() == min(examples, len(tail))
    for token in range(5):
        share = tail.count(token) * min(examples / len(tail), 1)
        assert abs(float(got[1 + token]) - share) < 1 or share == got[1 + token]


def test_nothing_crosses_the_border_of_documents():
    drafter = RetrievalDrafter(index_of([[0, 1], [2, 0]]), VOCAB, shortest=1)
    drafter.prefill([torch.tensor([0])])
    logits = drafter.distributions([Request(torch.tensor([1, 2]), torch.tensor([-1, -1]))])[0]
    assert logits[0].tolist() == [-torch.inf] * 3
    assert logits[1].exp().tolist() == [1, 0, 0]


@pytest.mark.posix
@given(corpora, st.one_of(st.none(), st.just("a digest")))
def test_an_index_comes_back_from_its_folder(tmp_path_factory, documents, vocabulary):
    index = index_of(documents, vocabulary=vocabulary)
    folder = tmp_path_factory.mktemp("index") / "new" / "folder"
    written = index.save(folder)
    assert written == sum(file.stat().st_size for file in folder.iterdir())
    result = SuffixIndex.open(folder)
    assert np.array_equal(result.tokens, index.tokens)
    assert np.array_equal(result.suffixes, index.suffixes)
    assert (result.vocab_size, result.vocabulary) == (VOCAB, vocabulary)
    index_of([[0]]).save(folder)  # in place of the old one, which stays as it was for those who have it
    assert np.array_equal(result.tokens, index.tokens)
    assert SuffixIndex.open(folder).tokens.tolist() == [0, VOCAB]


def test_an_open_index_is_not_read_into_memory(tmp_path):
    index_of([[0, 1, 2]]).save(tmp_path)
    result = SuffixIndex.open(tmp_path)
    assert isinstance(result.tokens.base, np.memmap)
    assert isinstance(result.suffixes.base, np.memmap)


@pytest.mark.parametrize("name", ["tokens.npy", "suffixes.npy"])
@pytest.mark.parametrize("harm", ["short", "empty", "missing", "flipped"])
def test_damaged_files_are_refused(tmp_path, name, harm):
    index_of([[0, 1, 2, 1], [2, 1]]).save(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-3] ^= 1
    left = {"short": content[:-1], "empty": b"", "flipped": content}.get(harm)
    (tmp_path / name).unlink()
    if left is not None:
        (tmp_path / name).write_bytes(left)
    with pytest.raises(InvalidInput, match=rf"is corrupt \({name}.*build it again with `draftwood index`\."):
        SuffixIndex.open(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"version": 2},
            "is of version 2, and this draftwood reads version 1; build it again with `draftwood index`",
        ),
        ({"format": "other"}, "does not describe one"),
        ({"tokens": 7}, "does not fit the other files"),
        ({"tokens": "8"}, "lacks a field or holds a wrong one"),
        ({"vocab_size": 0}, "lacks a field or holds a wrong one"),
        ({"vocab_size": 4}, "does not fit the other files"),
        ({"vocab_size": True}, "lacks a field or holds a wrong one"),
        ({"vocabulary": 5}, "lacks a field or holds a wrong one"),
        ({"checksums": {}}, "lacks a field or holds a wrong one"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(tmp_path, change, message):
    index_of([[0, 1, 2, 1], [2, 1]]).save(tmp_path)
    header = json.loads((tmp_path / "index.json").read_text())
    (tmp_path / "index.json").write_text(json.dumps({**header, **change}))
    with pytest.raises(InvalidInput, match=message):
        SuffixIndex.open(tmp_path)


@pytest.mark.parametrize("field", ["format", "version", "tokens", "vocab_size", "vocabulary", "checksums"])
def test_a_header_that_lacks_a_field_is_refused(tmp_path, field):
    index_of([[0, 1]]).save(tmp_path)
    header = json.loads((tmp_path / "index.json").read_text())
    del header[field]
    (tmp_path / "index.json").write_text(json.dumps(header))
    with pytest.raises(InvalidInput, match="build it again"):
        SuffixIndex.open(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe"])
def test_a_header_that_is_none_is_refused(tmp_path, content):
    index_of([[0, 1]]).save(tmp_path)
    (tmp_path / "index.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"is corrupt \(index\.json"):
        SuffixIndex.open(tmp_path)


def test_no_index_is_refused_and_says_how_to_build_one(tmp_path):
    for folder in (tmp_path, tmp_path / "missing", __file__):
        with pytest.raises(InvalidInput, match="There is no index in .*; build one with `draftwood index`"):
            RetrievalDrafter(folder, VOCAB)


def test_other_files_are_not_written_over(tmp_path):
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(InvalidInput, match="holds other files; name a new folder"):
        index_of([[0]]).save(tmp_path)
    with pytest.raises(InvalidInput, match="is a file; name a new folder"):
        index_of([[0]]).save(tmp_path / "diary.txt")
    with pytest.raises(InvalidInput, match="cannot be written .*; name another folder"):
        index_of([[0]]).save(tmp_path / "diary.txt" / "below")
    assert [file.name for file in tmp_path.iterdir()] == ["diary.txt"]


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([], "holds no token"),
        ([[]], "holds no token"),
        ([[0, 3]], "token 3, outside the vocabulary of 3"),
        ([[-1]], "token -1, outside"),
        ([[[0], [1]]], r"is int64 of shape \[2, 1\]"),
    ],
)
def test_a_corpus_that_cannot_be_indexed_is_refused(documents, message):
    with pytest.raises(InvalidInput, match=message):
        index_of(documents)


def test_a_vocabulary_that_cannot_be_stored_is_refused():
    with pytest.raises(InvalidInput, match=r"vocab_size is 0; give an integer in \[1, 4294967295\]"):
        index_of([[0]], 0)
    with pytest.raises(InvalidInput, match="vocab_size is 4294967296"):
        index_of([[0]], 2**32)


def test_tokens_that_are_no_integers_are_refused():
    with pytest.raises(InvalidInput, match=r"is float64 of shape \[2\]; give a row of integers"):
        SuffixIndex.of([np.array([0.0, 1.0])], vocab_size=VOCAB)


def test_an_index_over_more_tokens_than_the_target_has_is_refused():
    index = index_of([[0, 1]], 5)
    assert RetrievalDrafter(index, 6).vocab_size == 6  # a target may pad its vocabulary
    with pytest.raises(IncompatibleModels, match="of 5 tokens and the target has 4; build the index with"):
        RetrievalDrafter(index, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"longest": 0}, "longest is 0"),
        ({"shortest": 17}, "shortest is 17; it must not exceed longest, 16"),
        ({"examples": 0}, "examples is 0"),
        ({"vocab_size": 0}, "vocab_size is 0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(InvalidInput, match=message):
        RetrievalDrafter(index_of([[0]]), **{"vocab_size": VOCAB, **options})


@parametrize_with_checks(
    [RetrievalDrafter(index_of([[1, 2, 3, 1, 2, 0], [3, 1, 2, 12]], 13), 13, shortest=1)]
)
def test_every_check_of_a_drafter(check):
    check()


class InDoublePrecision(RetrievalDrafter):
    """A drafter for proofs of the law without rounding, which in float32 exceeds the proof's tolerance."""

    def distributions(self, requests):
        return super().distributions(requests).double()


CORPUS = [[0, 1, 2, 0, 1, 1], [1, 2, 0, 0], [2, 2, 1, 0, 2], [0]]


@pytest.mark.parametrize(
    "policy",
    [
        DySpec(3),
        FixedTree(1, 2, law="with-replacement"),
        FixedTree(2, 2, law="top-k"),
        *(
            pytest.param(policy, marks=pytest.mark.thorough)
            for policy in (
                FixedTree(2, 2, law="with-replacement"),
                IndependentPaths(2, 2),
                LayeredDySpec(4),
            )
        ),
    ],
    ids=repr,
)
@pytest.mark.parametrize(
    "verifier", [RecursiveRejection(), pytest.param(Traversal(), marks=pytest.mark.thorough)], ids=repr
)
def test_retrieval_is_lossless(policy, verifier):
    result = assert_lossless(
        policy,
        verifier,
        target=ToyModel(VOCAB, seed=1),
        drafter=InDoublePrecision(index_of(CORPUS), VOCAB, shortest=1),
        prompt=(2, 0),
        tokens=3,
    )
    assert result.expected_tokens > 1


def test_greedy_text_is_that_of_generate_whatever_the_corpus():
    model: Any = zoo.load("llama-7m")
    tokenizer = zoo.tokenizer()
    prompt = tokenizer("def read(path):\n", return_tensors="pt").input_ids
    expected = model.generate(prompt, max_new_tokens=48, do_sample=False)[0]
    own = expected.numpy()
    for documents in ([own[:30], own[20:]], [np.roll(own, 7), own[::-1].copy(), own[5:25]]):
        index = index_of(documents, len(tokenizer))
        drafter = RetrievalDrafter(index, model.config.vocab_size)
        decoder = SpeculativeDecoder(load(model), drafter, LayeredDySpec(16, law="top-k"), Greedy())
        out: Any = decoder.generate(prompt, max_new_tokens=48, return_dict_in_generate=True)
        assert torch.equal(out.sequences[0], expected)
        assert out.statistics.tokens_per_round > 1.5


def test_it_is_registered(tmp_path):
    index_of(CORPUS).save(tmp_path)
    drafter = registry.create("drafters", "retrieval", {"index": str(tmp_path), "vocab_size": VOCAB})
    assert isinstance(drafter, RetrievalDrafter)
    assert "2311.08252" in drafter.source
