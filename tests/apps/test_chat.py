"""Prompts in the chat template of the target's tokenizer."""

from __future__ import annotations

from typing import Any

import pytest

from draftwood import InvalidInput, zoo
from draftwood.apps.models.chat import encoded


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
