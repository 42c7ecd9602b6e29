"""Printed text: the text of files, servers and models is only shown as text, by one function."""

from __future__ import annotations

import ast
import io
import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table

from draftwood.apps.terminal import shown
from draftwood.apps.terminal.plain_console import PlainConsole
from draftwood.apps.terminal.shown import visible
from tests.soak.hostile import TUNED

APPS = Path(__file__).resolve().parents[2] / "apps"
HIDDEN = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
EVIL = "\x1b[31m\x1b]0;mine\x07\x9b2J\r\b[bold red]x[/] :boom: \u202e\u2066\u2028$\\frac{$"
"""Colours, a window's title, a cleared screen, markup, an emoji code, overrides, an end of line, maths."""


@given(st.text(st.characters(), max_size=30))
def test_nothing_that_is_hidden_goes_through(text):
    said = visible(text)
    assert not HIDDEN.search(said)
    assert "\n" not in said
    assert not HIDDEN.search(visible(text, lines=True).replace("\t", ""))
    if text.isprintable():
        assert said == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J", r"\x9b2J"),
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\u202eabc\u2069", r"\u202eabc\u2069"),
        ("\ud800", r"\ud800"),
        ("Grüße, می‌خواهم, \U0001f469\u200d\U0001f4bb", "Grüße, می‌خواهم, \U0001f469\u200d\U0001f4bb"),
    ],
)
def test_what_is_seen(text, said):
    assert visible(text) == said


def test_a_table_follows_no_markup(capsys):
    console = PlainConsole()
    table = Table(title=EVIL)
    table.add_column(EVIL, no_wrap=True)
    table.add_row(EVIL)
    console.print(table, width=200)
    console.print(EVIL, style="bold", width=200)
    out = capsys.readouterr().out
    assert not HIDDEN.search(out)
    assert out.count("[bold red]x[/] :boom: ") == 4


def test_a_text_goes_to_a_pipe_as_it_is_and_to_a_terminal_visibly(monkeypatch):
    for terminal, said in ((False, EVIL + "\n\t"), (True, visible(EVIL) + "\n\t")):
        out = io.StringIO()
        monkeypatch.setattr(out, "isatty", lambda terminal=terminal: terminal, raising=False)
        monkeypatch.setattr(sys, "stdout", out)
        shown.write_out(EVIL + "\n\t")
        assert out.getvalue() == said


def test_there_is_no_other_door():
    """No module prints but by `shown` and `PlainConsole`; a `Text` would go past them."""
    found = []
    for file in sorted(APPS.rglob("*.py")):
        if file.name in ("shown.py", "plain_console.py") or file.parent.name == "cli":
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            wrong = called in ("print", "Console", "typer.echo", "typer.secho") or (
                called.startswith("sys.std") and called.endswith("write")
            )
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "rich":
                wrong |= any(alias.name in ("print", "Text", "Markdown") for alias in node.names)
            if wrong:
                found.append(f"{file.relative_to(APPS)}: {ast.unparse(node)[:60]}")
    assert found == []


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run that has all that a report shows: two contests, a refused contender, questions."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("runs")
    (folder / "asked.jsonl").write_text(
        '{"question_id": 1, "category": "writing", "turns": ["Hello."], "reference": []}\n'
    )
    words = "--prompts 1 --new-tokens 3 --temperature 0 --temperature 1 --strategy leviathan:length=2"
    words += " --pair mamba2-draft,mamba2-draft --strategy generate-assisted"
    words += " --strategy chain+typical:length=2"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
        data = ["--data", str(folder / "asked.jsonl"), "--to", str(folder / "run")]
        result = CliRunner().invoke(app, ["bench", *words.split(), *data])
    assert result.exit_code == 0, result.output
    return folder / "run"


def spoilt(value: Any, names: dict[str, str]) -> Any:
    """Every text in `value` made evil, names of the run the same everywhere."""
    if isinstance(value, dict):
        return {spoilt(key, names) if key in names else key: spoilt(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [spoilt(one, names) for one in value]
    if not isinstance(value, str):
        return value
    for name, evil in names.items():
        value = value.replace(name, evil)
    return value


@pytest.mark.parametrize("colours", [False, True])
def test_a_folder_whose_every_text_is_evil(draftwood, run, tmp_path, monkeypatch, colours):
    if colours:
        monkeypatch.setenv("FORCE_COLOR", "1")
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    names = {
        "mamba2-draft": f"mamba{EVIL}",
        "asked": f"asked{EVIL}",
        "length=2": f"length=2{EVIL.replace(':', '')}",
    }
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    first, *cells = [spoilt(line, names) for line in lines]
    for part in ("versions", "hardware"):
        first[part] = dict.fromkeys(first[part], EVIL)
    first["created"] = EVIL
    for cell in cells:
        cell |= {name: EVIL for name in ("refused",) if name in cell}
        if "question" in cell:
            cell["question"] |= {"category": EVIL, "answer": EVIL}
    assert any("refused" in cell for cell in cells)
    (folder / "cells.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (first, *cells)))
    (folder / "run.json").write_text(json.dumps(first))
    result = draftwood("bench", "--to", folder, "--report", "--plots", "--spec-bench")
    assert result.exit_code == 0, result.output
    said = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout) if colours else result.stdout
    assert not HIDDEN.search(said + result.stderr)
    for part in ("run", "did not run", "tokens/round"):
        assert part in said
    shown_whole = "".join(said.split())
    assert shown_whole.count("[boldred]x[/]") > 12
    assert "".join(visible(EVIL).split()) in shown_whole
    if colours:  # its own are bold headings; none of the markup's
        assert "\x1b[1;31m" not in result.stdout
        assert "\x1b[31m" not in result.stdout


FILES: dict[str, tuple[str, str, Callable[[Path], list[object]]]] = {
    "a cell": ("cells.jsonl", json.dumps({EVIL: 1}), lambda at: ["bench", "--to", at, "--report"]),
    "run.json": ("run.json", json.dumps({"format": EVIL}), lambda at: ["bench", "--to", at, "--report"]),
    "a version": (
        "run.json",
        json.dumps({"format": "draftwood-bench", "version": EVIL}),
        lambda at: ["bench", "--to", at, "--report"],
    ),
    "a plan": (
        "plan.toml",
        f"[{json.dumps(EVIL)}]",
        lambda at: ["bench", "--file", at / "plan.toml", "--to", at / "r"],
    ),
    "a plan's value": (
        "plan.toml",
        f"dtype = {json.dumps('x' + EVIL)}",
        lambda at: ["bench", "--file", at / "plan.toml", "--to", at / "r"],
    ),
    "a trace": ("t.json", json.dumps({"format": EVIL}), lambda at: ["view", at / "t.json"]),
    "a trace's version": (
        "t.json",
        json.dumps({"format": "draftwood-trace", "version": EVIL}),
        lambda at: ["view", at / "t.json"],
    ),
    "a tuned file": (
        "tuned.json",
        json.dumps(TUNED | {"recipe": EVIL}),
        lambda at: ["generate", "--tuned", at / "tuned.json", "--prompt", "x"],
    ),
    "a tuned model": (
        "tuned.json",
        json.dumps(TUNED | {"drafter": f"mine:{EVIL}", "draft": None}),
        lambda at: ["generate", "--tuned", at / "tuned.json", "--prompt", "x"],
    ),
    "a prompt": (
        "p.jsonl",
        json.dumps({EVIL: 1}),
        lambda at: ["generate", "--data", at / "p.jsonl", "--out", at / "o.jsonl"],
    ),
    "a part": (
        "o.jsonl.part",
        json.dumps({"format": "draftwood-texts", "version": EVIL}) + "\n",
        lambda at: ["generate", "--data", at / "ok.txt", "--out", at / "o.jsonl"],
    ),
    "a batch": (
        "p.jsonl",
        json.dumps({"custom_id": EVIL, "method": "GET", "url": EVIL, "body": {EVIL: 1}}) + "\n"
        + json.dumps({"custom_id": EVIL, "body": {}}),
        lambda at: ["generate", "--data", at / "p.jsonl", "--out", at / "o.jsonl"],
    ),
    "a head": (
        "config.json",
        json.dumps({"architectures": [f"Eagle3{EVIL}"], EVIL: 1, "draft_vocab_size": EVIL}),
        lambda at: ["check-head", "llama-7m", at],
    ),
    "an index": (
        "index.json",
        json.dumps({"format": "draftwood-index", "version": EVIL}),
        lambda at: ["generate", "--drafter", "retrieval", "-o", f"index={at}", "--prompt", "x"],
    ),
    "a schema": (
        "s.json",
        json.dumps({"type": EVIL}),
        lambda at: ["generate", "--json-schema", at / "s.json", "--prompt", "x"],
    ),
    "a model's config": (
        "config.json",
        json.dumps({"model_type": EVIL, "architectures": [EVIL]}),
        lambda at: ["generate", "--target", at, "--tokenizer", "tokenizer", "--prompt", "x"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_an_error_that_quotes_a_file(draftwood, tmp_path, name):
    file, content, words = FILES[name]
    (tmp_path / file).write_text(content)
    (tmp_path / "ok.txt").write_text("Hello\n")
    result = draftwood(*words(tmp_path))
    assert result.exit_code == 1, result.output
    assert not HIDDEN.search(result.stdout + result.stderr)
    assert result.stderr.splitlines()[-1].startswith("Error: ")
