"""Conversations in `draftwood bench`: later turns follow the model's own answers, for all contenders."""

import json
from collections import Counter
from typing import Any

import attrs
import pytest
import torch

from draftwood import zoo
from draftwood.apps.bench import measure
from draftwood.apps.bench.figures import rows
from draftwood.apps.bench.plan import BenchPlan, Contest
from draftwood.apps.models.chat import answer_tokens
from tests.apps.cells import cells

TURNS = [["Hello.", "Who are you?", "And I?"], ["Name a river."], ["What is 2 + 2?", "And 3 + 3?"]]
NEW = 5
PAIR, CHAIN = "llama-7m,llama-draft", "leviathan:length=2"

pytestmark = pytest.mark.usefixtures("few_reads")


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "chats.jsonl"
    file.write_text("".join(json.dumps({"turns": turns}) + "\n" for turns in TURNS))
    return file


@pytest.fixture
def bench(draftwood, chats):
    def run(folder, *more):
        words = ["--to", folder, "--data", chats, "--prompts", 3, "--new-tokens", NEW, "--strategy", CHAIN]
        result = draftwood("bench", *words, *more)
        assert result.exit_code == 0, result.output
        return cells(folder)

    return run


def conversation(turns):
    """Returns the prompt of every turn and the answer of greedy `generate`, by a separate loop."""
    model: Any = zoo.load("llama-7m")
    tokenizer, prompt, found = zoo.tokenizer(), list[int](), []
    for place, asked in enumerate(turns):
        prompt = prompt + tokenizer("\n" * bool(place) + f"User: {asked}\nAssistant:")["input_ids"]
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None
        )
        text = output[0, len(prompt) :].tolist()
        found.append((len(prompt), text))
        prompt = prompt + answer_tokens(tokenizer, text, ["\nUser:"])
    return found


def test_every_turn_stands_behind_the_models_own_answers(bench, tmp_path):
    found = bench(tmp_path / "r", "--temperature", 0, "--temperature", 0.8)
    texts = {
        (cell["temperature"], cell["contender"], cell["prompt"], cell["turn"]): cell
        for cell in found
        if cell["kind"] == "text"
    }
    assert len(texts) == 2 * 2 * 6
    for prompt, turns in enumerate(TURNS):
        for turn, (length, text) in enumerate(conversation(turns)):
            for contender in ("generate", CHAIN):
                assert texts[0, contender, prompt, turn]["tokens"] == text
                for temperature in (0, 0.8):
                    assert texts[temperature, contender, prompt, turn]["prompt_tokens"] == length
    kinds = Counter(cell["kind"] for cell in found)
    assert kinds == {"answer": 3, "passes": 1, "text": 24, "pair": 12}
    assert [cell["kind"] for cell in found[:4]] == ["answer"] * 3 + ["passes"]


@pytest.mark.thorough  # test_bench.py kills a run of single turns
def test_a_run_broken_off_in_a_conversation_goes_on_with_the_same_prompts(bench, tmp_path):
    words = ("--temperature", 0.8, "--turns", 2)
    whole = bench(tmp_path / "r", *words)
    file = tmp_path / "r" / "cells.jsonl"
    written = file.read_text().splitlines(keepends=True)
    for kept in (1, 2, 3, 8):
        file.write_text("".join(written[:kept]))
        again = bench(tmp_path / "r", *words)
        for part in ("key", "tokens", "prompt_tokens"):
            assert [cell.get(part) for cell in again] == [cell.get(part) for cell in whole], (kept, part)


def test_turns_can_be_limited_and_prompts_cut(bench, tmp_path):
    first = bench(tmp_path / "first", "--turns", 1)
    assert {cell.get("turn", 0) for cell in first} == {0}
    assert "answer" not in {cell["kind"] for cell in first}
    cut = bench(tmp_path / "cut", "--prompt-length", 6)
    longest = {
        turn: {c["prompt_tokens"] for c in cut if c.get("turn") == turn and c["kind"] == "text"}
        for turn in (0, 2)
    }
    assert longest == {0: {6}, 2: {6}}
    # The beginning of a first turn is kept, and the end of a longer conversation.
    tokens = {(c["prompt"], c["turn"]): c["tokens"] for c in cut if c["kind"] == "text"}
    model: Any = zoo.load("llama-7m")
    tokenizer = zoo.tokenizer()
    first = tokenizer("User: Hello.\nAssistant:")["input_ids"][:6]
    answer = next(c["tokens"] for c in cut if c["kind"] == "answer" and c["prompt"] == 0)
    second = (first + answer + tokenizer("\nUser: Who are you?\nAssistant:")["input_ids"])[-6:]
    for turn, prompt in enumerate((first, second)):
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=NEW, do_sample=False, eos_token_id=None
        )
        assert tokens[0, turn] == output[0, 6:].tolist()


def test_answers_are_those_of_float32_whatever_the_models_run_in(bench, tmp_path, monkeypatch):
    load, loaded = measure.load, []

    def watched(plan, pair, dtype):
        loaded.append(dtype)
        return load(plan, pair, dtype)

    monkeypatch.setattr(measure, "load", watched)
    half = bench(tmp_path / "half", "--dtype", "bfloat16")
    assert loaded == ["float32", "bfloat16"]  # answers and checks first
    for cell in (cell for cell in half if cell["kind"] == "answer"):
        _, text = conversation(TURNS[cell["prompt"]])[cell["turn"]]
        assert cell["tokens"] == answer_tokens(zoo.tokenizer(), text, ["\nUser:"])
    assert {cell["turn"] for cell in half if cell["kind"] == "check"} == {0, 1, 2}


def test_a_conversation_that_exceeds_the_context_is_refused(refused, chats, tmp_path):
    words = ["--data", chats, "--prompts", 3, "--new-tokens", 700, "--to", tmp_path / "r"]
    sentence = refused("bench", *words)
    assert "Prompt 0 of chats" in sentence
    assert "in all turns" in sentence
    assert "--turns" in sentence


def test_an_answer_ends_where_the_model_or_the_user_would(tmp_path):
    tokenizer = zoo.tokenizer()
    answer = tokenizer(" It is four.")["input_ids"]
    more = tokenizer("\nUser: Thanks.\nAssistant: You are")["input_ids"]
    assert answer_tokens(tokenizer, [*answer, tokenizer.eos_token_id, *more], ["\nUser:"]) == answer
    kept = answer_tokens(tokenizer, [*answer, *more], ["\nUser:"])
    assert kept == answer
    assert answer_tokens(tokenizer, answer, ["\nUser:"]) == answer
    assert answer_tokens(tokenizer, more, ["\nUser:"]) == []


def test_turns_of_a_conversation_count_together(monkeypatch):
    """Each turn keeps its text of median time, and a conversation is one prompt of the intervals."""
    contest = Contest(PAIR, "d", 0.0, 0, 4)
    known = ["first_token_seconds", "first_tokens", "draft_calls", "draft_cost", "drafted", "accepted"]
    known += ["draft_seconds", "target_seconds", "verify_seconds", "prefill_seconds", "right"]
    found = dict[str, Any]()
    for contender in ("generate", CHAIN):
        for prompt, turn, repetition, seconds in [
            *((0, 0, r, s) for r, s in enumerate((1.0, 2.0, 9.0))),
            *((0, 1, r, s) for r, s in enumerate((30.0, 10.0, 20.0))),
            *((1, 0, r, s) for r, s in enumerate((3.0, 3.0, 3.0))),
        ]:
            place = {"kind": "text", "contender": contender, "prompt": prompt, "turn": turn}
            text = {"repetition": repetition, "seconds": seconds, "tokens": [1, 2, 3, 4], "rounds": 2}
            cell = {
                **attrs.asdict(contest),
                **dict.fromkeys(known),
                **place,
                **text,
                "prompt_tokens": 5,
                "peak_memory": 1,
            }
            found[str(len(found))] = cell
    plan = BenchPlan(strategies=[CHAIN], new_tokens=[4], repetitions=3)
    _, row = rows(plan, ["d"], found)
    assert row.prompts == 2
    assert row.figures["seconds_per_token"].value == pytest.approx((2 + 20 + 3) / 12)
    assert row.figures["seconds_per_token"].high == pytest.approx(22 / 8)
    assert row.check.agreement == 1
