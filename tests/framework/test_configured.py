"""What a model's generation config asks for holds for every way in, or is said to be left out."""

import copy
import logging

import pytest
import torch

from draftwood import InvalidInput, SamplingParams, SpeculativeDecoder, load
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.generate_fuzz.models import draft, model

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]
ASKED = [
    {"repetition_penalty": 1.6},
    {"no_repeat_ngram_size": 2},
    {"suppress_tokens": [*range(10, 30)]},
    {"bad_words_ids": [[36], [31, 32]]},
    {"sequence_bias": {(11,): 3.0, (12, 13): -4.0}},
    {"repetition_penalty": 1.2, "suppress_tokens": [12], "bad_words_ids": [[13]], "no_repeat_ngram_size": 3},
    {"eos_token_id": [5, *range(20, 40)]},
]


def asking(**options):
    target = copy.deepcopy(model("llama"))
    target.generation_config.update(**options)
    return target


def decoder(target):
    return SpeculativeDecoder(load(target), draft(), LayeredDySpec(8), RecursiveRejection())


def plain(target, **options):
    ids = torch.tensor([PROMPT])
    return target.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, **options
    )


@pytest.mark.parametrize("options", ASKED, ids=lambda options: "-".join(options))
def test_a_greedy_text_is_that_of_generate(options):
    target = asking(**options)
    expected = plain(target)
    assert not torch.equal(expected, plain(model("llama")))
    speculative = decoder(target)
    assert torch.equal(speculative.generate([PROMPT], max_new_tokens=20), expected)
    with speculative.session(max_new_tokens=20) as session:
        own = session.add(PROMPT, sampling=SamplingParams())
        usual = session.add(PROMPT)
        while session.unfinished:
            session.run()
        assert session.text(own) == session.text(usual) == expected[0].tolist()


def test_processors_of_the_call_come_after_those_of_the_config():
    target = asking(suppress_tokens=[*range(10, 30)])

    def lifts(ids, scores):
        return scores.masked_fill(torch.arange(scores.shape[1]) == 10, 1e6)

    written = decoder(target).generate(
        [PROMPT], max_new_tokens=4, sampling=SamplingParams(processors=[lifts])
    )
    assert torch.equal(written, plain(target, logits_processor=[lifts])[:, : len(PROMPT) + 4])


def test_the_config_of_now_counts():
    target = asking()
    speculative = decoder(target)
    before = speculative.generate([PROMPT], max_new_tokens=20)
    assert torch.equal(before, plain(target))
    target.generation_config.repetition_penalty = 1.6
    assert torch.equal(speculative.generate([PROMPT], max_new_tokens=20), plain(target))


def test_what_is_left_out_is_said_once(caplog):
    speculative = decoder(asking(min_new_tokens=8, begin_suppress_tokens=[9]))
    with caplog.at_level(logging.WARNING, logger="draftwood"):
        for _ in range(2):
            speculative.generate([PROMPT], max_new_tokens=2)
    (said,) = [record.getMessage() for record in caplog.records if "left out" in record.getMessage()]
    assert "min_new_tokens=8 and begin_suppress_tokens=[9]" in said


def test_greedy_calls_leave_torchs_generator_alone():
    speculative, state = decoder(model("llama")), torch.get_rng_state()
    speculative.generate([PROMPT], max_new_tokens=8)
    assert torch.equal(torch.get_rng_state(), state)
    sampled = [
        speculative.generate([PROMPT], max_new_tokens=8, sampling=SamplingParams(1.0)).tolist()
        for _ in range(4)
    ]
    assert len(set(map(str, sampled))) > 1
    assert not torch.equal(torch.get_rng_state(), state)


def test_a_criterion_may_raise_stop_iteration():
    def enough(ids, scores):
        if ids.shape[1] > len(PROMPT) + 2:
            raise StopIteration("enough")
        return torch.zeros(len(ids), dtype=torch.bool)

    with pytest.raises(StopIteration, match="enough"):
        decoder(model("llama")).generate([PROMPT], max_new_tokens=8, stopping_criteria=[enough])
    with pytest.raises(InvalidInput):
        decoder(model("llama")).generate([[]])
