"""Rows that join, leave and go on while others run: no row's text depends on the others."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import attrs
import pytest
import torch
import transformers as hf
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from draftwood import InvalidInput, SamplingParams, SpeculativeDecoder, Streams, load, zoo
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel, enumerate_outcomes
from tests.framework.decoding import DRAFT, TARGET, decoder, drafter, sequentially


class ScoringBackend(ToyBackend):
    """A toy backend that gives logits with its prefill, as packed ones do."""

    gives_first_logits = True

    def first_logits(self, rows):
        self.prefill(rows)
        return torch.stack([self.model.logits(row.tolist()) for row in rows])


SAMPLED = SamplingParams(temperature=0.6)
TARGETS = [ToyBackend, ScoringBackend]


def queue(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(5) for _ in range(rng.randint(1, 12))] for _ in range(count)]


def drain(session):
    rounds = []
    while session.unfinished:
        rounds.append(session.run())
    return rounds


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("rows", "count", "sampling"),
    [
        (1, 20, None),
        (7, 60, SAMPLED),
        (32, 200, SAMPLED),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in ((1, 20, SAMPLED), (7, 60, None), (32, 200, None))
        ),
    ],
)
def test_a_queue_is_written_as_each_prompt_alone(target, sampling, rows, count):
    one, prompts = decoder(target=target(TARGET)), queue(count)
    options = {"max_new_tokens": 7, "sampling": sampling}
    out: Any = one.generate(prompts, max_rows=rows, seed=4, **options, return_dict_in_generate=True)
    assert max(len(finished_round.rows) for finished_round in out.statistics.history) == rows
    for row, (prompt, seed, written) in enumerate(zip(prompts, out.seeds, out.tokens, strict=True)):
        if sampling is None:
            assert written == sequentially(prompt, 7)
        elif row % (count // 20) == 0:
            assert one.generate([prompt], seed=seed, **options)[0, len(prompt) :].tolist() == written


@pytest.mark.parametrize("target", TARGETS)
def test_rows_join_while_others_run_and_leave_when_they_end(target):
    one = decoder(target=target(TARGET))
    with one.session(max_new_tokens=12, seed=1) as session:
        first = session.add([1, 2, 3], max_new_tokens=30)
        for _ in range(2):
            session.run()
        second = session.add([0], max_new_tokens=3)
        third = session.add([4, 4, 1])
        assert session.unfinished == 3
        drain(session)
        assert one.target.lengths == []
    for row, prompt, count in ((first, [1, 2, 3], 30), (second, [0], 3), (third, [4, 4, 1], 12)):
        assert session.text(row) == prompt + sequentially(prompt, count)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    "policy", [DySpec(6), Chain(4, "top-k"), DynaTree(warmup=1)], ids=["tree", "chain", "learns"]
)
def test_a_kept_row_goes_on_with_its_next_turn(target, policy):
    one = decoder(target=target(TARGET), policy=policy)
    with one.session(max_new_tokens=8, seed=1) as session:
        chat = session.add([1, 2, 3], kept=True)
        session.add([0], max_new_tokens=40)
        for turn in ([2, 2], [1], list(range(5)) * 20):
            while chat not in {row.index for row in session._loop.held if row.idle}:
                session.run()
            before = session.text(chat)
            with mock.patch.object(one.target, "prefill", side_effect=AssertionError("a second prefill")):
                session.extend(chat, turn)
                session.run()
        drain(session)
        expected = before + turn
        assert session.text(chat) == expected + sequentially(expected, 8)
        session.release(chat)
        assert one.target.lengths == []


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_cancelled_wherever_it_stands_and_the_others_go_on(target):
    one = decoder(target=target(TARGET))
    with one.session(max_new_tokens=10, max_rows=3, seed=1) as session:
        chat, running, stays, waiting, last = (
            session.add(prompt, kept=prompt == [4]) for prompt in ([4], [1, 2], [0, 3], [2], [3, 3])
        )
        session.run()
        session.cancel(running)
        session.cancel(waiting)
        while not session._rows[chat].idle:
            session.run()
        written = session.text(chat)
        session.extend(chat, [1, 1])
        session.cancel(chat)
        drain(session)
        assert one.target.lengths == []
        assert written == [4, *sequentially([4], 10)]
        assert session.text(stays) == [0, 3, *sequentially([0, 3], 10)]
        assert session.text(last) == [3, 3, *sequentially([3, 3], 10)]
        assert session.text(waiting) == [2]
        assert len(session.text(running)) < 10
        for gone in (running, stays, 99):
            with pytest.raises(InvalidInput, match=f"Row {gone} is not being written"):
                session.cancel(gone)
        session.forget(stays)
        with pytest.raises(KeyError):
            session.text(stays)
        again = session.add([1])
        for wrong in (stays, again):
            with pytest.raises(
                InvalidInput, match=f"Row {wrong} is still being written or kept, or never existed"
            ):
                session.forget(wrong)


def test_a_kept_row_ends_within_an_accepted_path():
    """Tokens that were accepted after the end of its text are not part of the state that goes on."""
    text = sequentially([1, 2, 3], 20)
    end = text[5]
    one = decoder(target=ScoringBackend(TARGET), draft=drafter(TARGET), policy=Chain(12, "top-k"))
    with one.session(max_new_tokens=20, eos_token_id=end) as session:
        row = session.add([1, 2, 3], kept=True)
        (*_, last) = drain(session)
        written = text[: text.index(end) + 1]
        assert session.text(row) == [1, 2, 3, *written]
        assert last.rows[0].outcome.accepted >= len(last.rows[0].tokens)
        assert one.target.lengths == [2 + len(written) + 1 - 1]
        session.extend(row, [0, 0], max_new_tokens=6)
        drain(session)
        text = [1, 2, 3, *written, 0, 0]
        expected = sequentially(text, 6)
        stop = expected.index(end) + 1 if end in expected else 6
        assert session.text(row) == text + expected[:stop]


@pytest.mark.parametrize("target", TARGETS)
def test_the_drafter_reads_the_next_turn_too(target):
    """A draft that is the target itself is right in every round, if it has read the same text."""
    one = decoder(target=target(TARGET), draft=drafter(TARGET), policy=Chain(3, "top-k"))
    with one.session(max_new_tokens=9) as session:
        session.add([0, 4], max_new_tokens=30)
        row = session.add([1, 2, 3], kept=True)
        while row not in {held.index for held in session._loop.held if held.idle}:
            session.run()
        session.extend(row, [2, 0, 1])
        records = [record for one_round in drain(session) for record in one_round.rows if record.row == row]
    assert sum(record.outcome.accepted for record in records) > 3
    assert all(record.outcome.accepted == record.outcome.drafted for record in records)


def law_of_session(target):
    """The law of two turns of two tokens."""
    toy = ToyModel(2, seed=5)
    one = SpeculativeDecoder(
        target(toy), ModelDrafter(ToyBackend(ToyModel(2, seed=6))), DySpec(2), RecursiveRejection()
    )

    def write(rng):
        with (
            mock.patch.object(Streams, "seeded", return_value=Streams(rng, rng)),
            one.session(max_new_tokens=2, sampling=SamplingParams(temperature=0.7)) as session,
        ):
            row = session.add([0], kept=True)
            drain(session)
            session.extend(row, [1])
            drain(session)
            return tuple(session.text(row))

    law: dict[tuple[int, ...], float] = {}
    for weight, text in enumerate_outcomes(write):
        law[text] = law.get(text, 0.0) + weight
    return toy, law


@pytest.mark.parametrize("target", TARGETS)
def test_two_turns_have_the_targets_law(target):
    toy, law = law_of_session(target)
    assert sum(law.values()) == pytest.approx(1)
    for text, chance in law.items():
        expected = 1.0
        for position in (1, 2, 4, 5):
            expected *= float(toy.probs(list(text[:position]), 0.7)[text[position]])
        assert chance == pytest.approx(expected, abs=1e-12)
    assert len(law) == 2**4


def test_a_text_of_one_token_asks_neither_drafter_nor_a_pass():
    one = decoder(target=ScoringBackend(TARGET))
    with (
        mock.patch.object(one.drafter, "prefill", side_effect=AssertionError("the drafter read the prompt")),
        mock.patch.object(ScoringBackend, "extend", side_effect=AssertionError("a pass")),
    ):
        out: Any = one.generate([[1, 2], [3]], max_new_tokens=1, return_dict_in_generate=True)
    assert out.tokens == [sequentially([1, 2], 1), sequentially([3], 1)]
    assert (out.statistics.target_calls, out.statistics.new_tokens) == (0, 2)


def test_the_first_tokens_are_no_round():
    one = decoder(target=ScoringBackend(TARGET))
    out: Any = one.generate([[1, 2], [3]], max_new_tokens=11, return_dict_in_generate=True, trace=True)
    statistics = out.statistics
    prefill, *rounds = statistics.history
    assert prefill.prefill
    assert statistics.rounds == rounds
    assert [len(record.tokens) for record in prefill.rows] == [1, 1]
    assert [record.tree.tokens for record in prefill.rows] == [[2], [3]]
    records = [record for one_round in rounds for record in one_round.rows]
    assert statistics.tokens_per_round == pytest.approx(20 / len(records))
    assert statistics.sums["prefill_tokens"] == statistics.sums["first_tokens"] == 2
    assert 0 < statistics.first_token_seconds < statistics.seconds


@pytest.mark.parametrize("target", TARGETS)
def test_processors_criteria_and_policy_states_follow_their_rows(target):
    """Rows that join late have the right texts and states."""
    asked = []

    class Longest(hf.StoppingCriteria):
        def __call__(self, ids, scores, **_):
            assert ids.shape[0] == 1
            asked.append(ids[0].tolist())
            return torch.tensor([int(ids[0, -1]) == 4 and ids.shape[1] > 6])

    sampling = SamplingParams(temperature=0.0, processors=[RepetitionPenaltyLogitsProcessor(1.7)])
    options = {"sampling": sampling, "max_new_tokens": 14, "stopping_criteria": [Longest()]}
    one = decoder(target=target(TARGET), policy=DynaTree(warmup=1))
    prompts = queue(9, seed=2)
    out: Any = one.generate(prompts, max_rows=2, seed=6, **options, return_dict_in_generate=True)
    asked.clear()
    for row, prompt in enumerate(prompts):
        alone: Any = one.generate([prompt], seed=out.seeds[row], **options, return_dict_in_generate=True)
        assert (alone.tokens, alone.finish_reasons) == ([out.tokens[row]], [out.finish_reasons[row]])
        assert alone.policy_states == [out.policy_states[row]]
    assert "criteria" in out.finish_reasons


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        (lambda session: session.add([]), "is empty"),
        (lambda session: session.add([7]), "outside the vocabulary"),
        (lambda session: session.add([1], max_new_tokens=0), "max_new_tokens is 0"),
        (lambda session: session.add([1], seed=-1), "seed is -1"),
        (lambda session: session.add([1], policy_state=3), "does not learn"),
        (lambda session: session.run(), "No row is left"),
        (lambda session: session.extend(0, [1]), "Row 0 is not there"),
        (lambda session: session.release(session.add([1], kept=True)), "still being written"),
    ],
)
def test_what_a_session_refuses_is_one_sentence(calls, message):
    with decoder().session() as session, pytest.raises(InvalidInput, match=message):
        calls(session)


def test_a_row_that_was_not_kept_is_gone():
    with decoder().session(max_new_tokens=2) as session:
        row = session.add([1])
        drain(session)
        with pytest.raises(InvalidInput, match=f"Row {row} is not there"):
            session.extend(row, [1])


@pytest.mark.parametrize("options", [{"max_rows": 0}, {"max_rows": 1.5}])
def test_how_many_rows_is_an_integer(options):
    with pytest.raises(InvalidInput, match="max_rows is"):
        decoder().generate([[1]], **options)


def test_a_session_locks_its_parts_and_lets_go():
    one = decoder()
    with one.session() as session:
        session.add([1, 2])
        session.run()
        with pytest.raises(InvalidInput, match="already decoding"):
            one.generate([[1]])
    assert one.target.lengths == []
    with pytest.raises(InvalidInput, match="not open"):
        session.run()
    one.generate([[1]], max_new_tokens=2)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-7m", "lookup"),
        *(
            pytest.param(*one, marks=pytest.mark.thorough)
            for one in (("llama-7m", "model"), ("mamba2-5m", "lookup"), ("mamba2-5m", "model"))
        ),
    ],
)
def test_real_models_go_on_with_a_chat_beside_other_rows(name, kind):
    model: Any = zoo.load(name)
    model.generation_config.eos_token_id = None
    target = load(model)
    drafts = (
        ModelDrafter(load(zoo.load("llama-draft"))) if kind == "model" else PromptLookup(target.vocab_size)
    )
    one = SpeculativeDecoder(target, drafts, LayeredDySpec(8), RecursiveRejection())
    tokenizer = zoo.tokenizer()
    first, second, beside = (
        tokenizer(text)["input_ids"]
        for text in ("Once upon a time", " The next day Tom wanted to " * 15, "Lily saw a big dog")
    )

    def wanted(text, count):
        ids = torch.tensor([text])
        return model.generate(ids, max_new_tokens=count, do_sample=False)[0].tolist()

    with one.session(max_new_tokens=12) as session:
        chat, other = session.add(first, kept=True), session.add(beside, max_new_tokens=40)
        for _ in range(3):
            session.run()
        late = session.add(beside[:3])
        drain(session)
        text = session.text(chat)
        assert text == wanted(first, 12)
        session.extend(chat, second)
        again = session.add(first, max_new_tokens=20)
        drain(session)
        assert session.text(chat) == wanted(text + second, 12)
        assert session.text(other) == wanted(beside, 40)
        assert session.text(late) == wanted(beside[:3], 12)
        assert session.text(again) == wanted(first, 20)


def test_a_row_that_waits_takes_no_part_in_draft_requests():
    seen = []

    @attrs.define(eq=False)
    class Watching(ModelDrafter):
        def distributions(self, requests):
            seen.append([None if request is None else len(request) for request in requests])
            return super().distributions(requests)

    one = decoder(draft=Watching(ToyBackend(DRAFT)))
    with one.session(max_new_tokens=4) as session:
        session.add([1], kept=True)
        drain(session)
        seen.clear()
        session.add([2])
        drain(session)
    assert seen
    assert all(counts[0] is None and counts[1] for counts in seen)


@pytest.mark.thorough
@pytest.mark.parametrize("sampling", [None, SAMPLED], ids=["greedy", "sampled"])
def test_a_queue_of_200_real_prompts_is_written_as_each_alone(sampling):
    # A draw falls on the other side of a bound where rounding moves the bound, and how many rows share a pass
    # decides on that: in float32 it befell one text of the 200.
    dtype = torch.float32 if sampling is None else torch.float64
    models: list[Any] = [zoo.load(name) for name in ("llama-7m", "llama-draft")]
    target, draft = (model.to(dtype) for model in models)
    target.generation_config.eos_token_id = None
    one = SpeculativeDecoder(load(target), load(draft), LayeredDySpec(16), RecursiveRejection())
    tokenizer, rng = zoo.tokenizer(), random.Random(3)
    words = ["the", "cat", "ran", "that", "3", "plus", "def", "return", "Question", "Answer", "said", "and"]
    prompts = [tokenizer(" ".join(rng.choices(words, k=rng.randint(2, 60))))["input_ids"] for _ in range(200)]
    options = {"max_new_tokens": 24, "sampling": sampling}
    out: Any = one.generate(prompts, max_rows=32, seed=8, **options, return_dict_in_generate=True)
    assert max(len(finished_round.rows) for finished_round in out.statistics.history) == 32
    for prompt, seed, written in zip(prompts, out.seeds, out.tokens, strict=True):
        alone: Any = one.generate([prompt], seed=seed, **options)
        assert alone[0, len(prompt) :].tolist() == written
