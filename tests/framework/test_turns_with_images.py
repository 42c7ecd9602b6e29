"""Turns of a chat after images: the next call goes on from the states of the one before."""

from typing import Any

import pytest
import torch

from benchmarks.research.pictured_models import build_pictured, pictured_prompt
from draftwood import InvalidInput, custom_generate
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from tests.backends.attention_models import VOCAB, tiny
from tests.cache_names import cache_name
from tests.framework.test_model_prompts import IMAGE, PLAIN, made, pictured, strategies
from tests.framework.test_turns import Read, cache_of

KEPT: dict[str, Any] = {**PLAIN, "return_dict_in_generate": True, "eos_token_id": None}
WORDS = torch.tensor([[7, 8, 12]])


def first_row(kind):
    inputs = pictured(kind)
    return {name: one[: len(one) // 2] for name, one in inputs.items()}


def loop(drafter=None):
    return custom_generate(drafter=drafter or tiny(), **strategies())


def turn(model, text, cache, **options):
    """The text after `text` and a few words, from a cache of the text."""
    ids = torch.cat([text, WORDS], 1)
    given = {"attention_mask": torch.ones_like(ids), cache_name(model): cache}
    return model.generate(ids, **given, **KEPT, **options)


@pytest.mark.parametrize("kind", ["llava", "qwen2_5_vl", "gemma3", "qwen2_audio"])
@pytest.mark.parametrize("drafter", [tiny, lambda: PromptLookup(VOCAB)], ids=["model", "lookup"])
def test_turns_after_an_image_are_those_of_generate(kind, drafter):
    model, speculative = made(kind), loop(drafter())
    read = Read(speculative, model)
    plain, ours = (
        model.generate(**first_row(kind), **KEPT, **more) for more in ({}, {"custom_generate": speculative})
    )
    for _ in range(2):
        assert torch.equal(ours.sequences, plain.sequences)
        read.taken()
        plain = turn(model, plain.sequences, cache_of(plain))
        ours = turn(model, ours.sequences, cache_of(ours), custom_generate=speculative)
        assert read.taken() == 0  # the image is not read again
    assert torch.equal(ours.sequences, plain.sequences)


def test_a_draft_that_reads_the_images_goes_on_too():
    model, speculative = made("qwen2_5_vl"), loop(made("qwen2_5_vl"))
    plain, ours = (
        model.generate(**first_row("qwen2_5_vl"), **KEPT, **more)
        for more in ({}, {"custom_generate": speculative})
    )
    plain = turn(model, plain.sequences, cache_of(plain))
    ours = turn(model, ours.sequences, cache_of(ours), custom_generate=speculative)
    assert torch.equal(ours.sequences, plain.sequences)


def test_marks_of_the_image_that_was_read_may_be_given_again():
    model, speculative = made("qwen2_5_vl"), loop()
    first = model.generate(**first_row("qwen2_5_vl"), **KEPT, custom_generate=speculative)
    marks = (torch.cat([first.sequences, WORDS], 1) == IMAGE).int()
    kept = cache_of(first)
    ours = turn(model, first.sequences, kept, mm_token_type_ids=marks, custom_generate=speculative)
    plain = model.generate(**first_row("qwen2_5_vl"), **KEPT)
    plain = turn(model, plain.sequences, cache_of(plain))
    assert torch.equal(ours.sequences, plain.sequences)


def test_an_image_that_is_no_longer_held_is_asked_for_again():
    """The tokens alone say nothing of it, and `generate()` would read them without."""
    model, speculative = made("llava"), loop()
    first = model.generate(**first_row("llava"), **KEPT, custom_generate=speculative)
    other = torch.where(first.sequences == 7, 6, first.sequences)
    with pytest.raises(InvalidInput, match="with images, videos or sound, and the text is another"):
        turn(model, other, cache_of(first), custom_generate=speculative)
    first = model.generate(**first_row("llava"), **KEPT, custom_generate=speculative)
    model.generate(WORDS, **PLAIN, custom_generate=speculative)
    with pytest.raises(InvalidInput, match="another call has used the model or its draft since"):
        turn(model, first.sequences, cache_of(first), custom_generate=speculative)
    plain = model.generate(**first_row("llava"), **PLAIN)  # the loop goes on working
    assert torch.equal(model.generate(**first_row("llava"), **PLAIN, custom_generate=speculative), plain)


def test_texts_without_a_token_for_every_column_leave_nothing():
    model = made("llava")
    embedded = model.get_input_embeddings()(first_row("llava")["input_ids"]).detach()
    ours = model.generate(inputs_embeds=embedded, **KEPT, custom_generate=loop())
    assert cache_of(ours) is None


@pytest.mark.parametrize("family", ["lfm2_vl", "qwen3_5"])
def test_a_hybrid_goes_on_from_a_cache_of_generate_with_images(family):
    """Recurrent states and keys of two rows of differing length, each with an image."""
    model = build_pictured(family, reach=32)
    inputs: Any = pictured_prompt(model, seed=1)
    speculative = loop(PromptLookup(model.get_output_embeddings().out_features))
    first = model.generate(**inputs, **{**KEPT, "max_new_tokens": 4}, pad_token_id=0)
    ids = torch.cat([first.sequences, WORDS.expand(2, 3)], 1)
    new = torch.ones(2, ids.shape[1] - inputs["input_ids"].shape[1], dtype=torch.int64)
    given = {"attention_mask": torch.cat([inputs["attention_mask"], new], 1)}
    if "mm_token_type_ids" in inputs:
        given["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], 0 * new], 1)
    whole = model.generate(**{**inputs, **given, "input_ids": ids}, **PLAIN, eos_token_id=None)
    ours = model.generate(
        ids,
        **given,
        **{cache_name(model): cache_of(first)},
        **PLAIN,
        eos_token_id=None,
        custom_generate=speculative,
    )
    assert torch.equal(ours, whole)
