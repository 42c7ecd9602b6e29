"""Pairs of `draftwood bench` whose draft is a head, and prompts in a chat template."""

import json
from typing import Any

import pytest

from draftwood import zoo
from tests.apps.cells import cells

SHORT = ("--prompts", 2, "--new-tokens", 6)


@pytest.fixture(autouse=True)
def few_passes(monkeypatch):
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))


@pytest.mark.parametrize("where", ["zoo", "folder"])
def test_a_head_drafts_for_every_strategy_of_its_pair(draftwood, tmp_path, where):
    head = "llama-7m-eagle3" if where == "zoo" else str(zoo.path("llama-7m-eagle3"))
    named = f"leviathan:length=2:drafter={head}"
    asked = ("generate-assisted", "leviathan:length=2", "chain:length=2", named)
    strategies = [word for strategy in asked for word in ("--strategy", strategy)]
    words = ("bench", "--pair", f"llama-7m,{head}", *SHORT, *strategies, "--to", tmp_path / "r", "--plots")
    result = draftwood(*words)
    assert result.exit_code == 0, result.output
    assert "generate-assisted did not run: it drafts with a model, and this pair has a head." in result.stdout
    assert "Some rest on only 2 prompts" in " ".join(result.stdout.split())
    found = {cell["key"]: cell for cell in cells(tmp_path / "r")}
    texts = [cell for cell in found.values() if cell["kind"] == "text" and "refused" not in cell]
    by_contender: dict[str, list[Any]] = {}
    for cell in texts:
        by_contender.setdefault(cell["contender"], []).append((cell["tokens"], cell.get("accepted")))
    assert by_contender["leviathan:length=2"] == by_contender[named] == by_contender["chain:length=2"]
    assert {cell["kind"] for cell in found.values()} == {"text", "passes"}
    again = draftwood(*words)
    assert again.exit_code == 0, again.output
    assert {cell["key"]: cell for cell in cells(tmp_path / "r")} == found


def test_prompts_are_messages_of_the_template(draftwood, refused, chatting, tmp_path):
    file = tmp_path / "asked.jsonl"
    rows: list[Any] = [{"turns": ["Hello there?", "And then?"]}, {"turns": ["How many?"]}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    pair = ("--pair", f"{chatting},{chatting}", "--strategy", "leviathan:length=2")
    words = ("bench", *pair, "--data", file, *SHORT, "--to", tmp_path / "r", "--chat")
    result = draftwood(*words, "--turns", 1)
    assert result.exit_code == 0, result.output
    lengths = {
        cell["prompt"]: cell["prompt_tokens"] for cell in cells(tmp_path / "r") if cell["kind"] == "text"
    }
    tokenizer = zoo.tokenizer()
    expected = [f"user: {row['turns'][0]} ~bot:" for row in rows]
    for number, text in enumerate(expected):
        assert lengths[number] - len(tokenizer(text, add_special_tokens=False)["input_ids"]) in (0, 1)
    plain = draftwood(*(word for word in words if word != "--chat"), "--turns", 1)
    assert plain.exit_code == 1
    assert "chat" in plain.stderr  # the same folder holds another run
    assert "has no chat template" in refused("bench", "--chat", *SHORT, "--to", tmp_path / "other")


def test_every_turn_of_a_chat_follows_the_turns_before_it(draftwood, chatting, tmp_path):
    """With the answers of the file where it has them, else with the target's greedy text."""
    said = [("user", "Hello?"), ("assistant", "Yes."), ("user", "And then?")]
    messages = [{"role": role, "content": text} for role, text in said]
    files = {"asked": {"turns": ["Hello there?", "And then?"]}, "told": {"messages": messages}}
    words: list[Any] = [
        "bench",
        "--pair",
        f"{chatting},{chatting}",
        "--strategy",
        "leviathan:length=2",
        "--chat",
    ]
    for name, row in files.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(row) + "\n")
        words += ["--data", tmp_path / f"{name}.jsonl"]
    once = [word if word != 2 else 1 for word in SHORT]
    result = draftwood(*words, *once, "--to", tmp_path / "r")
    assert result.exit_code == 0, result.output
    found = cells(tmp_path / "r")
    answers = [cell for cell in found if cell["kind"] == "answer"]
    assert [cell["data"] for cell in answers] == ["asked"]  # the other file has its own
    tokenizer = zoo.tokenizer()
    answer = tokenizer.decode(answers[0]["tokens"])
    expected = {
        ("asked", 0): "user: Hello there? ~bot:",
        ("asked", 1): f"user: Hello there? ~assistant: {answer} ~user: And then? ~bot:",
        ("told", 0): "user: Hello? ~bot:",
        ("told", 1): "user: Hello? ~assistant: Yes. ~user: And then? ~bot:",
    }
    lengths = {(c["data"], c["turn"]): c["prompt_tokens"] for c in found if c["kind"] == "text"}
    assert lengths.keys() == expected.keys()
    for place, text in expected.items():
        assert lengths[place] == len(tokenizer(text)["input_ids"]), place
