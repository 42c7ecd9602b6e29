"""Mutated files before everything that reads files: a result or one sentence, never a traceback."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from draftwood_cli import app
from typer.testing import CliRunner

from draftwood import DraftwoodError, read_tuned
from draftwood.apps.bench import measure
from draftwood.apps.bench.plan import BenchPlan, data_sets, from_file
from draftwood.apps.files import datasets
from draftwood.apps.generate import text_file
from draftwood.apps.generate.prompt_file import read_prompts
from draftwood.apps.models.asked import PromptLine
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from tests.soak.mutated import mutated
from tests.soak.result import SoakResult

SECONDS = 60
LONGEST = 600  # characters of a sentence

TUNED: dict[str, Any] = {
    "format": "draftwood-tuned",
    "version": 1,
    "target": {"name": "llama-7m", "vocab_size": 4096, "weight_bytes": 29377536},
    "draft": {"name": "llama-draft", "vocab_size": 4096, "weight_bytes": 1000000},
    "recipe": "sequoia",
    "options": {"budget": 8, "depth": 3, "acceptance": [0.6, 0.2]},
    "drafter": "model",
    "drafter_options": {},
    "gain": 1.5,
    "vocabulary": "0" * 64,
    "temperature": 0.6,
    "dtype": "float32",
}
PLAN = """
pairs = ["llama-7m,llama-draft"]
strategies = ["dyspec:budget=4", "leviathan:length=2", "chain+recursive-rejection"]
temperatures = [0, 0.6]
budgets = [2, 4]
prompt_lengths = [8]
new_tokens = [4]
prompts = 2
repetitions = 2
seed = 3
"""
REQUESTS: list[dict[str, Any]] = [
    {
        "custom_id": "a",
        "method": "POST",
        "url": "/v1/completions",
        "body": {
            "model": "llama-7m",
            "prompt": ["Hi", "Dear Sir,"],
            "max_tokens": 4,
            "stop": [".", "?"],
            "n": 2,
        },
    },
    {
        "custom_id": "b",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "llama-7m",
            "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}],
            "temperature": 0.5,
            "logprobs": True,
            "top_logprobs": 2,
        },
    },
]
QUESTIONS = [
    {"question": "What is 1 + 3?", "answer": "#### 4"},
    {"question": "And 2 * 3?", "answer": "2 * 3 = 6 #### 6"},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]},
    {"question_id": 81, "category": "writing", "turns": ["One", "Two"]},
    {"text": "Once upon a time"},
    {"prompt": "def f(", "completion": "x)"},
]


@attrs.frozen(eq=False)
class Reader:
    """Something that reads a file.

    Attributes:
        file: the sound one.
        lines: whether each of its lines is a document.
        read: reads the file at the place of the sound one, below a separate folder; returns what was said on
            stderr with an exit code, or raises.
    """

    file: Path
    lines: bool
    read: Callable[[Path], tuple[int, str]]


def _command(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stderr


def _direct(action: Callable[[], object]) -> tuple[int, str]:
    try:
        action()
    except DraftwoodError as error:
        return 1, f"Error: {error}\n"
    return 0, ""


def _tuned(file: Path) -> None:
    known = read_tuned(file)
    known.sampling, known.draft_sampling, known.method()


def readers(base: Path) -> dict[str, Reader]:
    """Sound files below `base`, each with what reads it."""
    (base / "tuned").mkdir(parents=True)
    (base / "tuned" / "tuned.json").write_text(json.dumps(TUNED, indent=1))
    (base / "plan").mkdir()
    (base / "plan" / "run.toml").write_text(PLAN)
    lines = "".join(json.dumps(one) + "\n" for one in QUESTIONS)
    for name, kept in (("questions", QUESTIONS[:2]), ("chats", QUESTIONS[2:3]), ("any", QUESTIONS)):
        (base / name).mkdir()
        (base / name / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    (base / "texts").mkdir()
    (base / "texts" / "notes.jsonl").write_text(lines)
    for name, rows in (
        ("prompts", [{"prompt": "Hi", "id": 1, "tags": {"a": [0.5]}}] * 3),
        ("requests", REQUESTS),
    ):
        (base / name).mkdir()
        (base / name / "asked.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (base / "part").mkdir()
    _part(base / "part")
    trace = base / "trace" / "trace.json"
    trace.parent.mkdir()
    code, said = _command("generate", "--prompt", "Hi", "--max-new-tokens", 8, "--trace", trace)
    assert code == 0, said
    sizes: Any = measure._SIZES
    vars(measure)["_SIZES"] = (1, 2, 4)
    try:
        words = "--prompts 2 --prompt-length 8 --new-tokens 4 --temperature 0 --temperature 1 --budget 2"
        code, said = _command("bench", "--to", base / "run", *words.split(), "--strategy", "dyspec")
    finally:
        measure._SIZES = sizes
    assert code == 0, said
    notes = base / "index.txt"
    notes.write_text("Once upon a time there was a tree.\n" * 20)
    code, said = _command("index", notes, "--out", base / "index")
    assert code == 0, said
    largest = max((one for one in (base / "index").iterdir() if one.suffix != ".json"), key=os.path.getsize)
    return {
        "trace": Reader(
            trace, False, lambda at: _command("view", at / "trace.json", "--to", at / "page.html")
        ),
        "run.json": Reader(base / "run" / "run.json", False, _report),
        "cells.jsonl": Reader(base / "run" / "cells.jsonl", True, _report),
        "tuned": Reader(
            base / "tuned" / "tuned.json", False, lambda at: _direct(lambda: _tuned(at / "tuned.json"))
        ),
        "plan": Reader(base / "plan" / "run.toml", False, lambda at: _direct(lambda: _plan(at / "run.toml"))),
        **{
            name: Reader(
                base / name / "data.jsonl", True, lambda at: _direct(lambda: datasets.read(at / "data.jsonl"))
            )
            for name in ("questions", "chats", "any")
        },
        **{
            name: Reader(
                base / name / "asked.jsonl",
                True,
                lambda at: _direct(lambda: read_prompts(at / "asked.jsonl")),
            )
            for name in ("prompts", "requests")
        },
        "part of texts": Reader(base / "part" / "out.jsonl.part", True, _opened),
        "texts to index": Reader(
            base / "texts" / "notes.jsonl",
            True,
            lambda at: _command("index", at / "notes.jsonl", "--out", at / "out"),
        ),
        "index.json": Reader(base / "index" / "index.json", False, _index),
        "arrays of an index": Reader(largest, False, _index),
    }


LINES = [PromptLine(number=n, shown=f"Count to {n}") for n in range(4)]


def _part(at: Path) -> None:
    """A part with two of four texts."""
    with text_file.opened(at / "out.jsonl", {"target": "x"}, LINES, 3) as file:
        for line in LINES[1:3]:
            file.add({"number": line.number, "prompt": line.shown, "text": "x", "tokens": [1], "seed": 0})


def _opened(at: Path) -> tuple[int, str]:
    """Go on from a part: it is refused, or as it was until something is added."""
    part = at / "out.jsonl.part"
    before = part.read_bytes()

    def use() -> None:
        with text_file.opened(at / "out.jsonl", {"target": "x"}, LINES, 3) as file:
            first = before.split(b"\n", 1)[0] + b"\n"
            if part.read_bytes() != before and before.startswith(first) and b"\n" in before[len(first) :]:
                raise AssertionError("a part was changed by reading it")
            for line in file.missing:
                file.add({"number": line.number, "prompt": line.shown, "text": "y"})
            file.finish()

    try:
        code, said = _direct(use)
    except AssertionError as error:
        return 2, f"Error: {error}\n"
    if code and part.read_bytes() != before:
        return 2, f"Error: a part was refused and changed; {said}"
    return code, said


def _report(at: Path) -> tuple[int, str]:
    return _command("bench", "--to", at, "--report")


def _plan(file: Path) -> None:
    data_sets(BenchPlan(**from_file(file)).resolved())


def _index(at: Path) -> tuple[int, str]:
    def use() -> None:
        index = SuffixIndex.open(at)
        low, high = index.all_suffixes
        index.followers(low, high, 1, examples=20)

    return _direct(use)


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    def ring(*_: object) -> None:
        raise TimeoutError(f"it runs on after {seconds} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _wrong(read: Callable[[Path], tuple[int, str]], at: Path) -> str | None:
    try:
        with _within(SECONDS):
            code, said = read(at)
    except Exception as error:
        return f"{type(error).__name__}: {error!s:.300}"
    errors = [line for line in said.splitlines() if line.startswith(("Error", "Unexpected", "Traceback"))]
    if code == 0:
        return f"it ended well and said {errors[0]!r:.300}" if errors else None
    if (
        code != 1
        or len(errors) != 1
        or not errors[0].startswith("Error: ")
        or said.splitlines()[-1] != errors[0]
    ):
        return f"exit code {code}, and it said {said!r:.600}"
    return (
        f"{len(errors[0])} characters are no sentence: {errors[0]!r:.200}"
        if len(errors[0]) > LONGEST
        else None
    )


def hostile(count: int, *, seed: int = 0) -> SoakResult:
    """`count` mutated files, in turns of every kind."""
    result, rng = SoakResult("hostile files"), random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        known = readers(Path(folder) / "sound")
        at = Path(folder) / "at"
        for number in range(count):
            name = list(known)[number % len(known)]
            reader = known[name]
            shutil.copytree(reader.file.parent, at)
            content = mutated(reader.file.read_bytes(), rng, lines=reader.lines)
            (at / reader.file.name).write_bytes(content)
            wrong = _wrong(reader.read, at)
            result.tried(name, wrong and f"{wrong}; file {number} of seed {seed}: {_shown(content, reader)}")
            shutil.rmtree(at)
    return result


def _shown(content: bytes, reader: Reader) -> str:
    """Where the content differs from the sound one."""
    sound = reader.file.read_bytes()
    first = next((i for i, (a, b) in enumerate(zip(content, sound, strict=False)) if a != b), 0)
    return f"{content[max(first - 60, 0) : first + 120]!r}"
