"""`draftwood bench --spec-bench`: answers that Spec-Bench's own scripts read."""

import json
from typing import Any

import pytest

from draftwood import zoo
from tests.apps.cells import cells

QUESTIONS: list[dict[str, Any]] = [
    {"question_id": 81, "category": "writing", "turns": ["Hello.", "Who are you?"], "reference": []},
    {"question_id": 241, "category": "qa", "turns": ["Name a river."], "reference": ["Rhine"]},
]
CHAIN = "leviathan:length=2"


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


@pytest.fixture
def questions(tmp_path):
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS))
    return file


def test_every_contender_has_a_file_of_answers(draftwood, refused, questions, tmp_path):
    to = tmp_path / "run"
    words = ["--data", questions, "--prompts", 2, "--new-tokens", 12, "--strategy", CHAIN]
    more = ["--strategy", "generate-assisted", "--repetitions", 2, "--spec-bench"]
    result = draftwood("bench", "--to", to, *words, *more)
    assert result.exit_code == 0, result.output
    names = [f"{who}-llama-7m-llama-draft-T0-12.jsonl" for who in ("generate", "leviathan-length=2")]
    found = {name: (to / "spec-bench" / name).read_text().splitlines() for name in names}
    measured = cells(to)
    tokenizer = zoo.tokenizer()
    for who, lines in zip(("generate", CHAIN), found.values(), strict=True):
        assert len(lines) == 2
        for place, (line, question) in enumerate(zip(map(json.loads, lines), QUESTIONS, strict=True)):
            assert (line["question_id"], line["category"]) == (question["question_id"], question["category"])
            assert line.keys() == {"question_id", "category", "answer_id", "model_id", "choices", "tstamp"}
            assert [choice["index"] for choice in line["choices"]] == [0, 1]
            for choice in line["choices"]:
                own = [
                    cell
                    for cell in measured
                    if (cell["kind"], cell.get("contender"), cell.get("prompt"), cell.get("repetition"))
                    == ("text", who, place, choice["index"])
                ]
                assert len(own) == len(question["turns"])
                assert choice["wall_time"] == [cell["seconds"] for cell in own]
                assert choice["new_tokens"] == [12] * len(own)
                assert choice["decoding_steps"] == [cell["rounds"] for cell in own]
                # What Spec-Bench averages as the mean accepted tokens: one number a step, of all turns.
                assert len(choice["accept_lengths"]) == sum(choice["decoding_steps"])
                without_a_step = sum(cell["prefill_tokens"] for cell in own)
                assert sum(choice["accept_lengths"]) + without_a_step == sum(choice["new_tokens"])
                for text, cell in zip(choice["turns"], own, strict=True):
                    assert str(tokenizer.decode(cell["tokens"])).startswith(text)
                    assert "\nUser:" not in text
    ordinary = json.loads(found[names[0]][0])["choices"][0]["accept_lengths"]
    assert ordinary == [1] * 24
    answers = {line["answer_id"] for lines in found.values() for line in map(json.loads, lines)}
    assert len(answers) == 4
    assisted = to / "spec-bench" / "generate-assisted-llama-7m-llama-draft-T0-12.jsonl"
    assert json.loads(assisted.read_text().splitlines()[0])["choices"][0]["accept_lengths"] == []

    (to / "spec-bench" / names[0]).unlink()
    assert draftwood("bench", "--to", to, "--report", "--spec-bench").exit_code == 0
    assert (to / "spec-bench" / names[0]).read_text().splitlines() == found[names[0]]


def test_without_questions_it_is_refused_before_the_run(refused, tmp_path):
    assert "question_id" in refused("bench", "--to", tmp_path / "run", "--spec-bench")
    assert not (tmp_path / "run").exists()
