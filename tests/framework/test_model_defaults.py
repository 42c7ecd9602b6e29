"""Defaults of a model's generation config, compared with `generate` on the same model."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import SamplingParams, SpeculativeDecoder, create, load
from draftwood.decoding.model_defaults import ModelDefaults
from draftwood.integrations.custom_generate import custom_generate
from draftwood.strategies.drafters.model import ModelDrafter
from tests.backends.attention_models import VOCAB, tiny

NEW = 12


@pytest.fixture(scope="module")
def decoder() -> SpeculativeDecoder:
    torch.manual_seed(3)
    target, draft = tiny().eval(), tiny().eval()
    policy = create("policies", "layered-dyspec", {"budget": 6})
    return SpeculativeDecoder(load(target), ModelDrafter(load(draft)), policy, create("verifiers", "greedy"))


def configured(model: Any, **options: Any) -> Any:
    fresh = type(model.generation_config)(eos_token_id=5, pad_token_id=0, **options)
    model.generation_config = fresh
    return model


options = st.fixed_dictionaries(
    {},
    optional={
        "repetition_penalty": st.sampled_from([0.7, 1.0, 1.4, 3.0]),
        "no_repeat_ngram_size": st.sampled_from([0, 1, 2]),
        "bad_words_ids": st.just([[3], [4, 7], [5]]),
        "sequence_bias": st.just([[[2], 4.0], [[9, 11], -6.0]]),
        "min_length": st.sampled_from([0, 6, 30]),
        "suppress_tokens": st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=20),
        "remove_invalid_values": st.booleans(),
    },
)


@given(asked=options, prompt=st.lists(st.integers(6, VOCAB - 1), min_size=1, max_size=5))
@settings(max_examples=25, deadline=None)
def test_texts_are_those_of_generate(
    decoder: SpeculativeDecoder, asked: dict[str, Any], prompt: list[int]
) -> None:
    model = configured(decoder.target.model, **asked)
    expected = model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)
    got: Any = decoder.generate([prompt], max_new_tokens=NEW)
    assert got.tolist() == expected.tolist()
    # With processors of the call after them, and in a row of its own settings.
    own = SamplingParams(processors=[lambda ids, scores: scores.roll(1, -1)])
    expected = model.generate(
        torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, logits_processor=list(own.processors)
    )
    with decoder.session(max_new_tokens=NEW) as session:
        row = session.add(prompt, sampling=own)
        while session.unfinished:
            session.run()
        assert session.text(row) == expected[0].tolist()


def test_a_text_has_its_least_length(decoder: SpeculativeDecoder) -> None:
    model = configured(decoder.target.model, sequence_bias=[[[5], 1e4]], min_length=7)
    got: Any = decoder.generate([[6, 7, 8]], max_new_tokens=NEW)
    assert (
        got.tolist()
        == model.generate(torch.tensor([[6, 7, 8]]), max_new_tokens=NEW, do_sample=False).tolist()
    )
    assert got.shape[1] == 8
    assert int(got[0, -1]) == 5


def test_a_loop_of_generate_does_not_ask_them_twice(decoder: SpeculativeDecoder) -> None:
    model = configured(decoder.target.model, repetition_penalty=1.7)
    loop = custom_generate(drafter=decoder.drafter, policy=decoder.policy, verifier=decoder.verifier)
    prompt = torch.tensor([[6, 7, 8, 9]])
    expected = model.generate(
        prompt, max_new_tokens=NEW, do_sample=False, output_scores=True, return_dict_in_generate=True
    )
    got = model.generate(
        prompt,
        max_new_tokens=NEW,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        custom_generate=loop,
    )
    assert got.sequences.tolist() == expected.sequences.tolist()
    torch.testing.assert_close(torch.stack(got.scores), torch.stack(expected.scores), atol=1e-4, rtol=0)


def test_what_is_left_out_is_said_once(decoder: SpeculativeDecoder, caplog: pytest.LogCaptureFixture) -> None:
    configured(decoder.target.model, min_new_tokens=3, do_sample=True, temperature=0.6)
    with caplog.at_level(logging.WARNING):
        decoder.generate([[6, 7]], max_new_tokens=2)
        decoder.generate([[6, 7]], max_new_tokens=2)
    (record,) = caplog.records
    assert "asks for min_new_tokens=3, do_sample=True, temperature=0.6, which" in record.getMessage()
    caplog.clear()
    configured(decoder.target.model, do_sample=True, temperature=0.6)
    with caplog.at_level(logging.WARNING):
        decoder.generate([[6, 7]], max_new_tokens=2, sampling=SamplingParams())
    assert not caplog.records


def test_what_is_no_model_of_transformers_has_none() -> None:
    assert ModelDefaults.of(object(), ends=[], device=torch.device("cpu")).processors == ()
