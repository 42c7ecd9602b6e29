"""Prompts in the chat template of the target's tokenizer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import InvalidInput, zoo
from draftwood.apps.heads import check_head
from draftwood.apps.models.chat import encoded
from draftwood.strategies.mtp.checkpoint import save_layer
from draftwood.zoo.heads.mtp import new_layer, new_layout
from draftwood.zoo.heads.settings import compared


@pytest.fixture
def tokenizer() -> Any:
    return zoo.tokenizer()


def test_every_prompt_is_a_message_of_the_template(tokenizer: Any) -> None:
    texts = ["Dear Sir,", "Once upon"]
    assert encoded(tokenizer, texts, chat=False) == tokenizer(texts)["input_ids"]
    tokenizer.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\\n{% endfor %}bot:"
    found = encoded(tokenizer, texts, chat=True)
    assert [tokenizer.decode(row, skip_special_tokens=True) for row in found] == [
        f"user: {text}\\nbot:" for text in texts
    ]


def test_what_cannot_be_done_is_told(tokenizer: Any) -> None:
    with pytest.raises(InvalidInput, match="no chat template; leave it out"):
        encoded(tokenizer, ["Hi"], chat=True)
    tokenizer.chat_template = "{{ raise_exception('only pictures') }}"
    with pytest.raises(InvalidInput, match=r"chat template of the target's tokenizer fails .only pictures"):
        encoded(tokenizer, ["Hi"], chat=True)


def test_a_file_of_prompts_has_messages_of_its_own(refused: Any, tmp_path: Any) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("Hi")
    assert "cannot be combined with --chat" in refused("generate", "--data", file, "--chat")


SAID = [("user", "Hello?"), ("assistant", "Yes."), ("user", "And then?")]
MESSAGES = {"messages": [{"role": role, "content": text} for role, text in SAID]}
TURNS = {"turns": ["Hello there?", "And then?"]}


def lines(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def greedy(folder: Path, text: str, tokens: int) -> str:
    """The text with which the model in `folder` goes on, by transformers."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(text, return_tensors="pt")
    made = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).generate(
        **inputs, max_new_tokens=tokens, do_sample=False
    )
    return str(tokenizer.decode(made[0, inputs.input_ids.shape[1] :], skip_special_tokens=True))


def test_a_file_of_conversations_is_answered(draftwood: Any, refused: Any, chatting: Path) -> None:
    """The last turn of each, after the answers that the file gives."""
    call = ("generate", "--target", chatting, "--drafter", "prompt-lookup", "--max-new-tokens", 8, "--chat")
    last = "user: Hello? ~assistant: Yes. ~user: And then? ~bot:"
    for name, row, text in (
        ("told.jsonl", MESSAGES, last),
        ("asked.jsonl", {"prompt": "How many?"}, "user: How many? ~bot:"),
    ):
        result = draftwood(*call, "--prompt-file", lines(chatting / name, row))
        assert result.exit_code == 0, result.output
        assert result.stdout.rstrip("\n") == greedy(chatting, text, 8).rstrip("\n")
    both = draftwood(*call, "--json", "--prompt-file", lines(chatting / "both.jsonl", MESSAGES, MESSAGES))
    assert len(both.stdout.splitlines()) == 2
    unanswered = lines(chatting / "turns.jsonl", TURNS)
    assert "Prompt 1 of" in (said := refused(*call, "--prompt-file", unanswered))
    assert "several turns without answers; give them as messages" in said
    # Another file is one user's message.
    (chatting / "plain.txt").write_text("Hello?")
    plain = draftwood(*call, "--prompt-file", chatting / "plain.txt")
    assert plain.stdout.rstrip("\n") == greedy(chatting, "user: Hello? ~bot:", 8).rstrip("\n")


def test_a_head_is_checked_after_conversations(
    draftwood: Any, refused: Any, chatting: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By their last turns; earlier answers are the file's, or else the target's own."""
    model = zoo.load("llama-draft")
    save_layer(
        new_layer(model, new_layout(model, intermediate=8, depths=2), seed=0),
        tmp_path / "head",
        target="chat",
    )
    read: list[str] = []
    tokenizer = zoo.tokenizer()

    def noted(target: Any, made: Any, rows: Sequence[Any], *, depths: int) -> Any:
        words = (row.tokens[0, : row.prompt] for row in rows)
        read.extend(str(tokenizer.decode(tokens, skip_special_tokens=True)) for tokens in words)
        return compared(target, made, rows, depths=depths)

    monkeypatch.setattr(check_head, "compared", noted)
    call = ("check-head", chatting, tmp_path / "head", "--prompts", 2, "--tokens", 8, "--depths", 1, "--chat")
    answer = greedy(chatting, "user: Hello there? ~bot:", 8)
    for row, text in (
        (MESSAGES, "user: Hello? ~assistant: Yes. ~user: And then? ~bot:"),
        (TURNS, f"user: Hello there? ~assistant: {answer} ~user: And then? ~bot:"),
    ):
        result = draftwood(*call, "--data", lines(tmp_path / "asked.jsonl", row, row))
        assert "as configured" in result.stdout, result.output
        assert read[-2:] == [text, text]
    assert "has no chat template; leave it out" in refused(
        "check-head", "llama-draft", tmp_path / "head", *call[3:]
    )
