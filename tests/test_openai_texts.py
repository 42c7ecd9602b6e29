"""Texts of the example server as they come: stop strings, half characters, and which token begins where."""

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood import zoo
from draftwood.apps.files.text import decode
from tests.served import part

texts = part("texts")
WORDS = st.text("ab", min_size=1, max_size=5)


def first_stop(text, stops):
    """By the definition: read on until some stop string is complete; the longest of those is cut off."""
    for end in range(1, len(text) + 1):
        if ended := [stop for stop in stops if text[:end].endswith(stop)]:
            return end - max(map(len, ended)), end
    return None, len(text)


def in_pieces(draw, sequence):
    """`sequence` in pieces."""
    while sequence:
        size = draw(st.integers(1, 5))
        yield sequence[:size]
        sequence = sequence[size:]


@given(st.data(), st.text("ab", max_size=30), st.lists(WORDS, max_size=4))
def test_the_first_stop_string_is_found_however_a_text_comes(data, text, stops):
    finder, out, found, fed = texts.Stops(stops), "", False, ""
    cut, end = first_stop(text, stops)
    for piece in in_pieces(data.draw, text):
        certain, found = finder.add(piece)
        fed, out = fed + piece, out + certain
        if found:
            break
        # Not a character is held back that can be no part of a stop string any more.
        possible = [n for n in range(1, len(fed) + 1) if any(stop.startswith(fed[-n:]) for stop in stops)]
        assert len(out) >= len(fed) - max(possible, default=0)
    assert found == (cut is not None)
    assert out + ("" if found else finder.rest()) == (text if cut is None else text[:cut])
    assert not found or len(fed) >= end


TOKENIZER = zoo.tokenizer()
BYTES = [TOKENIZER.convert_tokens_to_ids(token) for token in TOKENIZER.tokenize("é😀漢")]
SOME = st.one_of(
    st.sampled_from(["Dear Sir, the cat", "é😀漢字 ñ", "  def f(x):\n\treturn", "a\u0301"]).map(
        lambda text: TOKENIZER(text)["input_ids"]
    ),
    st.lists(st.sampled_from(BYTES), max_size=4),  # halves of characters, in any order
    st.lists(st.integers(0, len(TOKENIZER) - 1), max_size=3),
)


@given(st.data(), st.lists(SOME, max_size=5), st.booleans())
def test_a_choice_does_not_depend_on_how_its_tokens_come(data, parts, ends):
    tokens = [token for part in parts for token in part] + [TOKENIZER.eos_token_id] * ends
    whole = decode(TOKENIZER, tokens)
    places = st.tuples(st.integers(0, max(len(whole) - 1, 0)), st.integers(1, 4))
    chosen = data.draw(st.lists(places, max_size=2))
    stops = [stop for start, length in chosen if (stop := whole[start : start + length])]
    pieces = {}
    for name, split in (("one by one", [[token] for token in tokens]), ("at once", [tokens]), ("some", None)):
        choice = texts.Choice(TOKENIZER, stops, 1)
        found, at = [], 0
        for piece in split or in_pieces(data.draw, tokens):
            values = [float(n) for n in range(at, at + len(piece))]
            found.append(choice.take(piece, values, [[(token, 0.0)] for token in piece]))
            at += len(piece)
            if choice.finish is not None:
                break
        else:
            found.append(choice.end("eos" if ends else "length"))
        written = [token for piece in found for token in piece.tokens]
        pieces[name] = "".join(piece.text for piece in found), choice.finish, choice.count, written
    text, finish, count, written = pieces["one by one"]
    assert pieces["at once"] == pieces["some"] == pieces["one by one"]
    cut, _ = first_stop(whole, stops)
    assert text == (whole if cut is None else whole[:cut])
    assert finish == ("stop" if ends or cut is not None else "length")
    # Log-probabilities are of the tokens that begin in the text, in order, and the token is where it says.
    assert [token.logprob for token in written] == [float(n) for n in range(len(written))]
    assert len(written) == count - (ends and cut is None) if cut is None else len(written) <= count
    if cut is None and "\N{REPLACEMENT CHARACTER}" not in whole:
        for token, number in zip(written, tokens, strict=False):
            special = number in TOKENIZER.all_special_ids or token.name.startswith("token_id:")
            assert special or whole[token.start :].startswith(token.name)


def test_tokens_that_read_the_same_have_names_of_their_own():
    first, second = BYTES[:2]
    (cat,) = TOKENIZER(" cat")["input_ids"]
    likeliest = [(first, -0.5), (second, -0.7), (cat, -1.0), (TOKENIZER.eos_token_id, -2.0)]
    (token,) = texts.Choice(TOKENIZER, (), 4).take([cat], [-1.0], [likeliest]).tokens
    assert token.name == " cat"
    assert token.likeliest == {
        f"token_id:{first}": -0.5,
        f"token_id:{second}": -0.7,
        " cat": -1.0,
        TOKENIZER.eos_token: -2.0,
    }


class Row:
    """A text of a shared decoder that notes whether it was cancelled."""

    logprobs: ClassVar[list[float]] = []
    top_logprobs: ClassVar[list[list[tuple[int, float]]]] = []
    cancelled = False

    def cancel(self):
        self.cancelled = True


def test_a_text_that_has_reached_a_stop_string_gives_its_row_back():
    row = Row()
    choice = texts.Choice(TOKENIZER, ["dog"], None)
    writing = part("writing").Writing(row, choice, [1], 1, first=True)
    assert writing.take(TOKENIZER("The cat")["input_ids"]).text == "The cat"
    assert not row.cancelled
    assert writing.take(TOKENIZER(" and the dog and")["input_ids"]).text == " and the "
    assert row.cancelled


@pytest.mark.parametrize("finished", ["eos", "criteria", "length", "context"])
def test_every_end_of_a_row_has_a_word(finished):
    choice = texts.Choice(TOKENIZER, (), None)
    choice.take([TOKENIZER.eos_token_id], [], [])
    choice.end(finished)
    assert choice.finish == ("stop" if finished in ("eos", "criteria") else "length")
