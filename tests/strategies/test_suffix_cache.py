"""The suffix cache: what it finds is what stands in the texts it still holds, call after call."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    IncompatibleModels,
    InvalidInput,
)
from draftwood.strategies.drafters.cached_suffixes import CachedSuffixes
from draftwood.strategies.drafters.suffix_cache import SuffixCache
from tests.strategies.kept_texts import VOCAB, Kept, texts


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
    with pytest.raises(IncompatibleModels, match="of 5 tokens and the target has 4; give a cache of this"):
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
