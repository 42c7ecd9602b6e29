"""`draftwood demo` with tiny settings."""

import re
from io import StringIO

import pytest

from draftwood import zoo
from draftwood.apps.bench import writers
from draftwood.apps.demo import command as demo
from draftwood.strategies.policies.chain import Chain

TINY = ["demo", "--prompts", 2, "--tokens", 6, "--parameters", 1e6]


def test_demo_shows_text_equality_and_speed(draftwood):
    result = draftwood(*TINY)
    assert result.exit_code == 0, result.output
    for name in ("assisted generation", "chain", "fixed tree", "DySpec"):
        assert f"{name:<20} same text token for token" in result.stdout
        assert f" {name} " in result.stdout.split("tokens/s")[1]
    assert "Nina reads 18 pages" in result.stdout
    assert "A pass over one token takes" in result.stdout
    assert "DySpec writes" in result.stdout or "does not pay on this machine" in result.stdout
    assert result.stderr == ""


def test_demo_fails_where_a_float32_text_differs(draftwood, monkeypatch: pytest.MonkeyPatch):
    write = writers.Speculative.write

    def wrong(self, prompt, tokens, seed):
        text = write(self, prompt, tokens, seed)
        if isinstance(self.decoder.policy, Chain):
            text.tokens[-1] += 1
        return text

    monkeypatch.setattr(writers.Speculative, "write", wrong)
    result = draftwood(*TINY)
    assert result.exit_code == 1
    assert "differs after 83.3% of the tokens" in result.stdout
    assert "tokens/s" not in result.stdout


def test_demo_refuses_no_tokens(refused):
    assert "--tokens is 0" in refused("demo", "--tokens", 0)


def test_a_head_may_draft_the_first_text(refused):
    from rich.console import Console

    def text(head: str | None) -> str:
        console = Console(file=StringIO(), width=100, color_system="truecolor", force_terminal=True)
        ids = zoo.tokenizer()("def add(a, b):")["input_ids"]
        demo._stream(
            console, zoo.load("llama-7m"), zoo.load("llama-draft"), zoo.tokenizer(), ids, 12, head=head
        )
        return console.file.getvalue()  # type: ignore[attr-defined]

    plain, drafted = text(None), text("llama-7m-eagle3")
    assert re.sub(r"\x1b\[[0-9;]*m", "", drafted) == re.sub(r"\x1b\[[0-9;]*m", "", plain)
    assert drafted != plain  # other tokens were accepted, which are green
    assert "'llama-draft', which is no head" in refused("demo", "--head", "llama-draft")
