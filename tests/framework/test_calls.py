"""Arguments that people really pass, and one decoder that is used from several places."""

import threading
from typing import Any

import pytest
import torch
import transformers as hf

from draftwood import IncompatibleModels, InvalidInput, SamplingParams, SpeculativeDecoder
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder, sequentially


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ("some text", "input_ids is the text 'some text'; encode it"),
        (hf.BatchEncoding({"input_ids": [[1]]}), "input_ids is a BatchEncoding"),
        ({"input_ids": [[1]]}, "input_ids is a dict"),
        (torch.tensor([[1.0, 2.0]]), "dtype torch.float32"),
        (torch.ones(1, 2, 3, dtype=torch.int64), "3 dimensions"),
        ([[1.5]], "holds 1.5; token ids are integers"),
        ([[True]], "holds True"),
        (["ab"], "row 0 is 'ab'"),
        ([1, 2, 3], "a list with one list of tokens per row"),
        (7, "input_ids is 7"),
    ],
)
def test_what_is_no_prompt_is_one_sentence(prompts, message):
    with pytest.raises(InvalidInput, match=message):
        decoder().generate(prompts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 2.5}, "max_new_tokens is 2.5; give an integer"),
        ({"max_new_tokens": "3"}, "max_new_tokens is '3'"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": "1"}, "seed is '1'"),
        ({"seed": [1.0]}, "seed is 1.0"),
        ({"attention_mask": torch.ones(1, 1)}, "attention_mask was given with token lists"),
    ],
)
def test_loose_options_are_one_sentence(options, message):
    with pytest.raises(InvalidInput, match=message):
        decoder().generate([[1]], **options)


@pytest.mark.parametrize("mask", [[[1, 1, 0]], [[1, 0, 1]], [[0, 1, 0]]])
def test_right_padding_and_holes_are_refused(mask):
    with pytest.raises(InvalidInput, match="0 after a 1 in row 0"):
        decoder().generate(torch.tensor([[1, 2, 3]]), torch.tensor(mask))


def test_numpy_and_tensor_rows_are_token_lists():
    rows = [torch.tensor([1, 2, 3]), torch.tensor([0]).numpy()]
    out = decoder().generate(rows, max_new_tokens=4, return_dict_in_generate=True)
    assert out.tokens == [sequentially([1, 2, 3], 4), sequentially([0], 4)]


def test_logprobs_are_the_targets_own():
    out = decoder(DySpec(6)).generate(
        PROMPTS,
        max_new_tokens=9,
        sampling=SamplingParams(0.7),
        seed=3,
        output_logprobs=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    for prompt, new, actual in zip(PROMPTS, out.tokens, out.logprobs, strict=True):
        expected = [
            float(TARGET.logits(prompt + new[:index]).log_softmax(-1)[token])
            for index, token in enumerate(new)
        ]
        assert actual == pytest.approx(expected, abs=1e-5)
    assert len(out.logits) == 9
    assert out.logits[4].shape == (3, 5)


def test_two_threads_on_one_decoder_get_one_text_or_one_sentence():
    one, came = decoder(), []
    start = threading.Barrier(4)

    def call():
        start.wait()
        try:
            came.append(one.generate(PROMPTS, max_new_tokens=30, return_dict_in_generate=True).tokens)
        except Exception as error:
            came.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = [sequentially(prompt, 30) for prompt in PROMPTS]
    refused = [one for one in came if isinstance(one, Exception)]
    assert all(isinstance(one, InvalidInput) and "already decoding 3 row" in str(one) for one in refused)
    assert all(one == expected for one in came if not isinstance(one, Exception))
    assert len(refused) < 4


@pytest.mark.parametrize("shared", ["target", "drafter"])
def test_two_decoders_on_one_backend_take_turns(shared):
    backend = ToyBackend(TARGET if shared == "target" else DRAFT)

    def made():
        if shared == "target":
            return decoder(target=backend)
        return decoder(draft=ModelDrafter(backend))

    first, second = made(), made()
    running = first.stream(PROMPTS, max_new_tokens=12)
    next(running)
    with pytest.raises(InvalidInput, match="already decoding 3 row"):
        second.generate(PROMPTS[:1], max_new_tokens=5)
    running.close()
    out = second.generate(PROMPTS[:1], max_new_tokens=5, return_dict_in_generate=True)
    assert out.tokens == [sequentially(PROMPTS[0], 5)]


def test_a_backend_as_drafter_is_a_model_that_drafts():
    one = SpeculativeDecoder(ToyBackend(TARGET), ToyBackend(DRAFT), Chain(2), RecursiveRejection())
    out: Any = one.generate(PROMPTS, max_new_tokens=6, return_dict_in_generate=True)
    assert out.tokens == [sequentially(prompt, 6) for prompt in PROMPTS]
    assert any(record.outcome.accepted for round_ in out.statistics.rounds for record in round_.rows)


def test_one_backend_cannot_be_target_and_drafter():
    backend = ToyBackend(TARGET)
    with pytest.raises(IncompatibleModels, match="are one backend"):
        SpeculativeDecoder(backend, ModelDrafter(backend), Chain(2), RecursiveRejection())


@pytest.mark.parametrize("width", [150, 154])
def test_logits_that_were_padded_to_another_width_draft_all_the_same(width):
    target = ToyModel(152, seed=4, order=1)
    narrower = ToyModel(width, seed=4, order=1)
    one = SpeculativeDecoder(
        ToyBackend(target), ModelDrafter(ToyBackend(narrower)), DySpec(6), RecursiveRejection()
    )
    prompts = [[151, 3], [7]]
    out: Any = one.generate(prompts, max_new_tokens=25, return_dict_in_generate=True)
    for prompt, new in zip(prompts, out.tokens, strict=True):
        text = list(prompt)
        for token in new:
            assert token == int(target.logits(text).argmax())
            text.append(token)


def test_widths_further_apart_are_two_tokenizers():
    with pytest.raises(IncompatibleModels, match="which padding does not explain"):
        decoder(draft=ModelDrafter(ToyBackend(ToyModel(6))))
