"""Text from tokens as they come: whole characters only, and in the end the whole text."""

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import zoo
from draftwood.apps.files.text import IncrementalText, Streamer

TOKENIZER = zoo.tokenizer()


@given(st.text(max_size=40), st.randoms(use_true_random=False))
def test_pieces_add_up_and_hold_no_half_characters(text, random):
    tokens = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    shown, pieces = IncrementalText(TOKENIZER), []
    while tokens:
        count = random.randint(1, 4)
        pieces.append(shown.add(tokens[:count]))
        tokens = tokens[count:]
    pieces.append(shown.rest())
    assert "".join(pieces) == text
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_character_of_several_tokens_is_shown_when_it_is_whole():
    tokens = TOKENIZER("🙂", add_special_tokens=False)["input_ids"]
    assert len(tokens) > 1
    shown = IncrementalText(TOKENIZER)
    assert [shown.add([token]) for token in tokens] == [""] * (len(tokens) - 1) + ["🙂"]


def test_an_unfinished_character_is_shown_at_the_end():
    tokens = TOKENIZER("a🙂", add_special_tokens=False)["input_ids"][:-1]
    shown = IncrementalText(TOKENIZER)
    assert shown.add(tokens) == ""
    assert shown.rest().startswith("a")


def test_a_tokenizer_that_drops_the_first_space_keeps_the_others():
    class Sentencepiece:
        def decode(self, tokens, **_):
            return "".join(f" {token}" for token in tokens).removeprefix(" ")

    shown = IncrementalText(Sentencepiece())
    words: list[Any] = ["one", "two", "three"]
    assert [shown.add([word]) for word in words] == ["one", " two", " three"]


def test_the_streamer_leaves_the_prompt_out():
    written = list[str]()
    streamer = Streamer(IncrementalText(TOKENIZER), written.append)
    streamer.put(torch.tensor([TOKENIZER("a prompt")["input_ids"]]))
    streamer.put(torch.tensor(TOKENIZER(" and more", add_special_tokens=False)["input_ids"]))
    assert "".join(written) == " and more"
    streamer.put(torch.tensor(TOKENIZER("🙂", add_special_tokens=False)["input_ids"][:-1]))
    assert "".join(written) == " and more"
    streamer.end()
    assert "".join(written).startswith(" and more\N{REPLACEMENT CHARACTER}")
