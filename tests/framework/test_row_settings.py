"""Rows of different settings share rounds, and no row's text depends on the others."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import IncompatibleStrategy, InvalidInput, SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.base.scratch import Scratch
from draftwood.decoding.row_settings import Proposals, targets
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyBackend
from tests.framework.decoding import TARGET, decoder
from tests.framework.test_session import ScoringBackend, drain

PROCESSORS = (
    (),
    (hf.RepetitionPenaltyLogitsProcessor(1.5),),
    (hf.SuppressTokensLogitsProcessor([2]),),
)

sampling_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.7]),
    top_k=st.sampled_from([None, None, 2, 3]),
    top_p=st.sampled_from([None, None, 0.6, 0.9]),
    min_p=st.sampled_from([None, None, 0.2]),
    processors=st.sampled_from(PROCESSORS),
)
rows_of = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 4), min_size=1, max_size=6),
        "seed": st.integers(0, 2**40),
        "max_new_tokens": st.integers(1, 12),
        "sampling": sampling_params,
        "draft_sampling": st.none() | sampling_params,
    }
)


@given(
    rows=st.lists(rows_of, min_size=1, max_size=6),
    target=st.sampled_from([ToyBackend, ScoringBackend]),
    strategy=st.sampled_from(
        [
            (DySpec(6), RecursiveRejection()),
            (LayeredDySpec(8), RecursiveRejection()),
            (Chain(3), Traversal()),
            (Chain(3, "top-k"), RecursiveRejection()),
        ]
    ),
)
@settings(max_examples=60, deadline=None)
def test_rows_of_different_settings_are_each_written_as_alone(rows, target, strategy):
    policy, verifier = strategy
    one = decoder(policy, verifier, target=target(TARGET))
    with one.session(max_rows=4) as session:
        numbers = [session.add(**row) for row in rows]
        drain(session)
        texts = [session.text(number) for number in numbers]
    for text, row in zip(texts, rows, strict=True):
        options = {name: value for name, value in row.items() if name != "prompt"}
        assert one.generate([row["prompt"]], **options)[0].tolist() == text


@given(
    params=st.lists(sampling_params, min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    nodes=st.integers(1, 3),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    empty=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_distributions_by_row_are_those_of_each_row(params, seed, nodes, dtype, empty, data):
    params = [attrs.evolve(one, processors=()) for one in params]
    logits = torch.randn(
        len(params), nodes, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    logits = (4 * logits).to(dtype)
    together = targets(params, logits, Scratch())
    for row, one in enumerate(params):
        assert torch.equal(together[row], one.targets(logits[row], Scratch()))
    if empty:
        logits[-1, 0] = -torch.inf
    counts = data.draw(st.lists(st.integers(0, nodes), min_size=len(params), max_size=len(params)))
    for row, count in enumerate(counts):
        logits[row, count:] = -torch.inf
    some = [None if row % 2 else one for row, one in enumerate(params)]
    for rows in (params, params[:1] * len(params), some):
        together = Proposals(rows).of(logits, Scratch(), counts=counts)
        for row, (of_row, count) in enumerate(zip(rows, counts, strict=True)):
            if of_row is not None:
                alone = of_row.proposals(logits[row, :count], Scratch())
                assert torch.equal(together[row, :count], alone)
                assert not together[row, count:].any()


def test_a_verifier_refuses_a_row_that_it_cannot_judge():
    one = decoder(Chain(2, "top-k"), Greedy())
    with one.session(max_new_tokens=3) as session:
        row = session.add([1])
        with pytest.raises(IncompatibleStrategy, match=r"only supports temperature 0, not 0\.5"):
            session.add([1], sampling=SamplingParams(temperature=0.5))
        assert session.add([2]) == row + 1
        drain(session)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logprobs": -1}, "logprobs is -1; ask for at least 0"),
        ({"logprobs": True}, "logprobs is True; give an integer"),
        ({"stop_strings": ["a"]}, "needs the tokenizer"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_and_the_session_goes_on(options, message):
    with decoder().session(max_new_tokens=3) as session:
        with pytest.raises(InvalidInput, match=message):
            session.add([1], **options)
        assert session.unfinished == 0
        assert session.add([1]) == 0
        drain(session)


@pytest.mark.parametrize("target", [ToyBackend, ScoringBackend])
def test_log_probabilities_are_the_models_own(target):
    one = decoder(LayeredDySpec(6), target=target(TARGET))
    with one.session(max_new_tokens=9, sampling=SamplingParams(temperature=0.9)) as session:
        asked = session.add([1, 2], logprobs=3, seed=4)
        only_written = session.add([1, 2], logprobs=0, seed=4)
        without = session.add([1, 2], seed=4)
        records: dict[int, list[Any]] = {asked: [], only_written: [], without: []}
        for one_round in drain(session):
            for record in one_round.rows:
                records[record.row].append(record)
        text = session.text(asked)
    assert all(record.logprobs is None and record.likeliest is None for record in records[without])
    assert all(record.likeliest is None for record in records[only_written])
    values = [value for record in records[asked] for value in record.logprobs]
    assert values == [value for record in records[only_written] for value in record.logprobs]
    likeliest = [one for record in records[asked] for one in record.likeliest]
    assert len(values) == len(likeliest) == 9
    for place in range(9):
        expected = TARGET.logits(text[: 2 + place]).float().log_softmax(-1)
        assert values[place] == pytest.approx(float(expected[text[2 + place]]), abs=1e-5)
        top = expected.topk(3)
        assert [token for token, _ in likeliest[place]] == top.indices.tolist()
        assert [value for _, value in likeliest[place]] == pytest.approx(top.values.tolist(), abs=1e-5)


def test_stop_strings_belong_to_a_row():
    tokenizer = zoo.tokenizer()
    one = SpeculativeDecoder(
        load(zoo.path("llama-7m"), dtype=torch.float32),
        ModelDrafter(load(zoo.path("llama-draft"), dtype=torch.float32)),
        LayeredDySpec(8),
        RecursiveRejection(),
    )
    prompt = tokenizer("Once upon a time")["input_ids"]
    sequences: Any = one.generate([prompt], max_new_tokens=40)
    whole = sequences[0, len(prompt) :].tolist()
    stop = tokenizer.decode(whole[5:8])
    with one.session(max_new_tokens=40, tokenizer=tokenizer) as session:
        stopped = session.add(prompt, stop_strings=stop)
        goes_on = session.add(prompt)
        reasons = {record.row: record.finished for entry in drain(session) for record in entry.rows}
        assert session.text(goes_on)[len(prompt) :] == whole
        written = session.text(stopped)[len(prompt) :]
    assert written == whole[: len(written)]
    assert len(written) < 40
    assert stop in tokenizer.decode(written)
    assert reasons == {stopped: "criteria", goes_on: "length"}


def test_criteria_are_asked_about_each_turn_of_a_kept_row():
    class Fourth(hf.StoppingCriteria):
        def __call__(self, ids, scores, **_):
            return torch.tensor([int(ids[0, -1]) == 4])

    one = decoder(Chain(3, "top-k"))
    rng = random.Random(0)
    with one.session(max_new_tokens=12) as session:
        row = session.add([1, 2], kept=True, stopping_criteria=[Fourth()])
        text = [1, 2]
        for _ in range(5):
            expected = one_by_one(text)
            drain(session)
            assert session.text(row) == text + expected
            more = [rng.randrange(4) for _ in range(3)]
            text = session.text(row) + more
            session.extend(row, more)
        drain(session)


def one_by_one(text):
    """Greedy decoding of 12 tokens, up to a 4."""
    written: list[int] = []
    while len(written) < 12 and 4 not in written:
        written.append(int(TARGET.logits([*text, *written]).argmax()))
    return written
