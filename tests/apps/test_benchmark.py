"""`python -m benchmarks`: on the zoo's smallest models."""

import json
import re

import pytest
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.apps.files.datasets import read


@pytest.fixture
def measure():
    from benchmarks.__main__ import app

    return lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])


def test_verifiers_on_prompts_from_files(measure, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?"}\n')
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n')
    (tmp_path / "wikitext2_test.txt").write_text("The town lies on the river. " * 30 + "\n")
    few = ["--prompts", 1, "--tokens", 5, "--branching", 2, "--repetitions", 1]
    result = measure("verifiers", "traversal", "--data", tmp_path, *few)
    assert result.exit_code == 0, result.output
    head, _, baseline, traversal = result.stdout.splitlines()
    assert "3 prompts" in head
    assert "trees of 2 nodes" in head
    assert baseline.split()[0] == "recursive-rejection"
    assert "+0.0% (+0.0% to +0.0%)" in baseline
    name, mean, low, _, high = traversal.split()[:5]
    assert name == "traversal"
    assert 1 <= float(low) <= float(mean) <= float(high) <= 2


def test_heads_and_drafts_contest_on_a_widened_target(measure, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?"}\n')
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n')
    (tmp_path / "wikitext2_test.txt").write_text("The town lies on the river. " * 30 + "\n")
    for name in ("mt_bench", "spec_bench_half"):
        question = {"question_id": 1, "category": "writing", "turns": ["Describe a town."]}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(question) + "\n")
    few = ["--prompts", 1, "--tokens", 4, "--strategy", "leviathan:length=2", "--temperature", 0]
    result = measure(
        *("heads", "llama-7m-eagle3", "llama-7m-dspark", "llama-draft", "--data", tmp_path),
        *(*few, "--widen", 8e6, "--to", tmp_path / "found.json"),
    )
    assert result.exit_code == 0, result.output
    first, _, ordinary, _, *lines = result.stdout.splitlines()
    assert re.search("llama-7m widened to 8.[0-9]M parameters, float32, llama-7m-eagle3 [23].[0-9]M", first)
    assert ordinary.split()[:2] == ["T=0", "generate()"]
    assert [line.split()[-1] for line in lines if " vs it " not in line] == ["100.0%"] * 3
    by_drafter = {one["drafter"]: one for one in json.loads((tmp_path / "found.json").read_text())}
    assert by_drafter.keys() == {"", "llama-7m-eagle3", "llama-7m-dspark", "llama-draft"}
    assert all(len(one["seconds"]) == len(one["rounds"]) == 5 for one in by_drafter.values())


def test_hard_prompts_are_translations_and_questions_behind_passages(measure, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "#### 5"}\n' * 3)
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n' * 3)
    passages = [f"Town {number} lies on the river. " * 30 for number in range(4)]
    (tmp_path / "wikitext2_test.txt").write_text("\n\n".join(passages))
    asked = {"translation": "Translate German to English: Ein Satz,", "qa": "Where is town"}
    questions = [
        {"question_id": number, "category": kind, "turns": [f"{text} {number}?"]}
        for number, (kind, text) in enumerate(2 * list(asked.items()))
    ]
    (tmp_path / "spec_bench_half.jsonl").write_text("".join(json.dumps(one) + "\n" for one in questions))
    result = measure("hard-prompts", tmp_path, tmp_path / "hard", "--prompts", 2, "--length", 64)
    assert result.exit_code == 0, result.output
    translation, retrieval = (
        read(tmp_path / "hard" / f"{name}.jsonl").prompts for name in ("translation", "retrieval")
    )
    assert [one.text for one in translation] == [
        f"User: {asked['translation']} {number}?\nAssistant:" for number in (0, 2)
    ]
    assert len({one.text for one in retrieval}) == 2
    for number, one in zip((1, 3), retrieval, strict=True):
        assert one.text.endswith(f"lies on the river.\n\nUser: {asked['qa']} {number}?\nAssistant:")
        assert len(zoo.tokenizer()(one.text)["input_ids"]) == pytest.approx(64, abs=2)
    result = measure("hard-prompts", tmp_path, tmp_path / "hard", "--prompts", 3)
    assert result.exit_code == 1
    assert "has 2 prompts but prompts=3; give fewer." in result.stderr


def test_what_cannot_be_read_is_one_sentence(measure):
    result = measure("verifiers", "--data", "/no/such")
    assert result.exit_code == 1
    (sentence,) = result.stderr.splitlines()
    assert "cannot be read" in sentence


def test_packed_trees_compute_less_and_hold_one_state(measure, monkeypatch):
    few = ["packed", "--target", "mamba2-draft", "--context", "9", "--repetitions", "2"]
    result = measure(*few)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    counts = [tuple(map(int, line[3:5])) for line in lines if line[0] == "depth"]
    # Packed, with snapshots, recomputing, and by paths.
    assert counts == [
        *[(15, 1), (15, 16), (15, 1), (32, 8)],
        *[(31, 1), (31, 32), (31, 1), (80, 16)],
        *[(63, 1), (63, 64), (63, 1), (192, 32)],
    ]
    assert all(float(line[3].rstrip("x")) > 2 for line in lines if line[0] != "depth")
    monkeypatch.setattr("benchmarks.kernels.packed.CLOSE", 0.0)
    result = measure(*few, "--deepest", "4")
    assert result.exit_code == 1
    assert "Packed and unrolled logits of mamba2-draft differ by" in result.stderr


def test_many_rows_are_written_by_every_way(measure, tmp_path):
    few = ["--rows", "1,2", "--repetitions", "1", "--tokens", "6", "--target", "llama-draft"]
    result = measure("many-rows", *few, "--temperature", "1", "--output", tmp_path / "rates.csv")
    assert result.exit_code == 0, result.output
    lines = (tmp_path / "rates.csv").read_text(encoding="utf-8").splitlines()
    rates = [line.split(",") for line in lines[1:]]
    assert {rate[0] for rate in rates} == {"1", "2"}
    assert len(rates) == 2 * 8
    assert all(float(rate[3]) > 0 for rate in rates)
    assert "1.00x" in result.output


def test_long_texts_are_drafted_by_the_target_itself(measure, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?", "answer": "#### 5"}\n' * 40)
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n' * 40)
    passages = [f"Town {number} lies on the river. " * 30 for number in range(4)]
    (tmp_path / "wikitext2_test.txt").write_text("\n\n".join(passages))
    question = {"question_id": 1, "category": "qa", "turns": ["Where is the town?"]}
    (tmp_path / "spec_bench_half.jsonl").write_text(json.dumps(question) + "\n")
    few = ["--lengths", "40,60", "--windows", "8,100", "--target", "llama-draft", "--rows", 2]
    result = measure("long-texts", "--data", tmp_path, *few, "--tokens", 6, "--output", tmp_path / "ms.csv")
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines() if line.endswith("4 of 4")]
    assert len(lines) == 2 * 9  # every text of every way is that of ordinary decoding
    by_name = {" ".join(line[:-6]): float(line[-6]) for line in lines}
    assert by_name["generate()"] == by_name["ordinary decoding"] == 1
    assert by_name["100, chain of 4"] > 2  # it reads the whole text
    assert len((tmp_path / "ms.csv").read_text(encoding="utf-8").splitlines()) == 1 + 2 * 2 * 9 * 3


def test_the_help_parts_times_from_research_and_names_every_measurement(measure, monkeypatch):
    monkeypatch.setenv("COLUMNS", "150")
    help_text = measure("--help").stdout
    times, research = help_text.split("Times of kernels and passes")[1].split("Research questions")
    assert {line.split()[1] for line in times.splitlines() if line.startswith("│")} == {
        *(
            "captured",
            "engine-folders",
            "engine-passes",
            "engines",
            "first-token",
            "gpu",
            "kernels",
            "long-texts",
            "many-rows",
            "mixed-rows",
            "offloaded",
            "packed",
            "plain-round",
            "prefix-cost",
            "round",
            "speed",
            "streamed",
        ),
    }
    assert {line.split()[1] for line in research.splitlines() if line.startswith("│")} == {
        *("agreement", "blocks", "broken-heads", "certainty", "constraints", "encoder-decoders"),
        *("families", "growth"),
        "half-precision",
        *(
            "hard-prompts",
            "heads",
            "level",
            "methods-2026",
            "optimum",
            "overlaps",
            "pictured",
            "recipes",
            "retokenised",
            "rollouts",
            "samples",
            "shapes",
            "speech",
            "transformers-tests",
            "verifiers",
        ),
        "vocabularies",
    }


@pytest.mark.thorough
def test_texts_of_a_streamed_target_are_those_of_ordinary_decoding(measure, tmp_path):
    result = measure(
        *("streamed", tmp_path, "--parameters", 12e6, "--budget", 6, "--tokens", 8, "--temperature", 0)
    )
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    found = {line[0]: line for line in lines if line and line[0] in ("dyspec:budget=6", "race:budget=6")}
    assert len(found) == 2
    for line in found.values():
        faster, per_round, ratio = map(float, line[1:4])
        assert ratio == pytest.approx(faster / per_round, abs=0.02)
        assert per_round > 1.5
        draft, passes = (float(share.rstrip("%")) / 100 for share in line[5:7])
        assert float(line[4]) > 0
        assert draft > 0
        assert passes > 0.5
        assert draft + passes < 1
        assert float(line[7]) > 1  # draft calls
        assert line[8:] == ["3", "of", "3"]
