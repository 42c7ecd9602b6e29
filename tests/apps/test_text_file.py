"""`draftwood generate --data FILE --out FILE`: every text once, in order, whatever broke the run off."""

import errno
import json
import os

import pytest

from draftwood import OutOfMemory
from draftwood.apps.files.journal import Journal
from draftwood.apps.generate import on_ray, text_file
from draftwood.backends.kinds.packed import PackedBackend

pytestmark = pytest.mark.usefixtures("few_reads")

PROMPTS = [f"Question: What is {n} plus {n + 3}?" for n in range(6)]
OPTIONS = ("--max-new-tokens", 5, "--temperature", 0.8, "-o", "budget=4", "--rows", 3)


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([PROMPTS[0], "", *PROMPTS[1:]]) + "\n", encoding="utf-8")
    return file


def read(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def texts(records):
    """Without what depends on the clock."""
    return [{name: value for name, value in record.items() if name != "statistics"} for record in records]


PEACE: list[dict] = []


@pytest.fixture
def whole(draftwood, prompts, tmp_path_factory):
    """Returns the file of an undisturbed run."""
    if PEACE:
        return PEACE
    out = tmp_path_factory.mktemp("peace") / "whole.jsonl"
    result = draftwood("generate", "--data", prompts, "--out", out, "--seed", 7, *OPTIONS)
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("6 texts, 30 tokens in ")
    assert [path.name for path in out.parent.iterdir()] == ["whole.jsonl"]
    PEACE.extend(texts(read(out)))
    return PEACE


def test_every_line_is_the_text_of_its_prompt_as_rows_of_one_call_write_it(
    draftwood, prompts, whole, tmp_path
):
    given = [word for prompt in PROMPTS for word in ("--prompt", prompt)]
    together = draftwood("generate", *given, "--seed", 7, "--json", *OPTIONS[:-2])
    assert [line["text"] for line in whole] == [
        json.loads(line)["text"] for line in together.stdout.splitlines()
    ]
    assert [line["number"] for line in whole] == list(range(6))
    assert [line["prompt"] for line in whole] == PROMPTS
    assert len({line["seed"] for line in whole}) == 6
    assert whole[0]["seed"] == 7
    assert {line["finish_reason"] for line in whole} == {"length"}
    # One row at a time, and the layout of JSON lines.
    lines = tmp_path / "prompts.jsonl"
    lines.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    out = tmp_path / "one.jsonl"
    draftwood("generate", "--data", lines, "--out", out, "--seed", 7, *OPTIONS[:-1], 1)
    assert texts(read(out)) == whole
    statistics = read(out)[0]["statistics"]
    assert statistics["new_tokens"] == 5
    assert statistics["rounds"] <= 5


class _Killed(BaseException):
    """Ends everything, as SIGKILL does."""


def killed(*_, **__):
    raise _Killed


@pytest.mark.parametrize("left", [0, 1, 4, 6])
def test_a_run_that_broke_off_goes_on(draftwood, prompts, whole, tmp_path, monkeypatch, left):
    out, append = tmp_path / "out.jsonl", Journal.append
    kept: list[int] = []

    def dying(self, record):
        if len(kept) == left:
            with self.path.open("ab") as half:  # the disk has a part of the line
                half.write(json.dumps(record).encode()[:40])
            raise _Killed
        kept.append(record["number"])
        return append(self, record)

    run = ("generate", "--data", prompts, "--out", out, *OPTIONS)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", dying)
        if left == 6:  # when the last text is written, before the file of all of them
            patched.setattr(text_file, "write_bytes", killed)
        draftwood(*run, "--seed", 7)
    assert not out.exists()
    part = tmp_path / "out.jsonl.part"
    before = part.read_bytes()
    result = draftwood(*run)  # the seed is that of the run
    assert result.exit_code == 0, result.output
    if 0 < left < 6:
        assert f"{left} texts are there already, {6 - left} are missing." in result.stderr
    assert texts(read(out)) == whole
    assert not part.exists()
    assert out.read_bytes().count(b"\n") == 6
    for line in before.splitlines()[1 : left + 1]:
        assert line in out.read_bytes().splitlines()


def test_a_run_killed_between_the_file_and_the_end_of_the_part(
    draftwood, prompts, whole, tmp_path, monkeypatch
):
    out = tmp_path / "out.jsonl"
    run = ("generate", "--data", prompts, "--out", out, *OPTIONS, "--seed", 7)
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "remove", killed)
        draftwood(*run)
    assert out.exists()
    assert (tmp_path / "out.jsonl.part").exists()
    assert draftwood(*run).exit_code == 0
    assert texts(read(out)) == whole
    assert not (tmp_path / "out.jsonl.part").exists()


def test_another_run_is_refused_in_one_sentence(draftwood, refused, prompts, tmp_path, monkeypatch):
    out = tmp_path / "out.jsonl"
    with monkeypatch.context() as patched:
        patched.setattr(text_file, "write_bytes", killed)
        draftwood("generate", "--data", prompts, "--out", out, *OPTIONS, "--seed", 7)
    run = ("generate", "--data", prompts, "--out", out)
    assert "temperature was 0.8 and is 0.5" in refused(*run, *OPTIONS, "--temperature", 0.5)
    assert "seed was 7 and is 8" in refused(*run, *OPTIONS, "--seed", 8)
    assert 'option was ["budget=4"] and is null' in refused(*run, *OPTIONS[:4])
    prompts.write_text("Another prompt\n")
    assert "prompts.count was 6 and is 1" in refused(*run, *OPTIONS)
    part = tmp_path / "out.jsonl.part"
    part.write_bytes(part.read_bytes() + b"no line\n")
    assert "prompts.count was" in refused(*run, *OPTIONS)
    prompts.write_text("\n".join(PROMPTS))
    assert "line 8: no text of this run" in refused(*run, *OPTIONS)
    part.write_text('{"format": "other"}\n')
    assert "is no file of draftwood generate and is left as it is" in refused(*run)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data", "{prompts}"], "--data needs --out"),
        (["--data", "{prompts}", "--out", "texts.txt"], "give a file that ends in .jsonl"),
        (["--data", "{prompts}", "--out", "{there}"], "is there already; name another file"),
        (["--data", "{prompts}", "--out", "{new}", "--prompt", "x"], "it cannot be combined with --prompt."),
        (["--data", "{prompts}", "--out", "{new}", "--json"], "it cannot be combined with --json."),
        (["--data", "{prompts}", "--out", "{new}", "--workers", "2"], "--workers needs --ray"),
        (
            ["--data", "{prompts}", "--out", "{new}", "--ray", "auto", "--offload", "o"],
            "one process's folder",
        ),
        (["--data", "{missing}", "--out", "{new}"], "cannot be read"),
        (["--data", "{empty}", "--out", "{new}"], "holds no prompt"),
        (["--data", "{turns}", "--out", "{new}"], "prompt 1 is a conversation of several turns"),
        (["--prompt", "x", "--out", "{new}"], "--out needs --data"),
        (["--prompt", "x", "--ray", "auto"], "--ray needs --data"),
    ],
)
def test_what_does_not_go_together(refused, prompts, tmp_path, words, sentence):
    (tmp_path / "there.jsonl").write_text("\n")
    (tmp_path / "empty.txt").write_text("\n\n")
    (tmp_path / "turns.jsonl").write_text('{"turns": ["a", "b"]}\n')
    files = {name: tmp_path / name for name in ("missing",)}
    files |= {"prompts": prompts, "there": tmp_path / "there.jsonl", "new": tmp_path / "new.jsonl"}
    files |= {"empty": tmp_path / "empty.txt", "turns": tmp_path / "turns.jsonl"}
    assert sentence in refused("generate", *(word.format(**files) for word in words))
    assert not list(tmp_path.glob("new*"))


def test_a_full_disk_is_one_sentence_and_the_run_goes_on(draftwood, prompts, whole, tmp_path, monkeypatch):
    out, sync, calls = tmp_path / "out.jsonl", os.fsync, []

    def full(handle):
        calls.append(handle)
        if len(calls) > 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    run = ("generate", "--data", prompts, "--out", out, *OPTIONS, "--seed", 7)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        result = draftwood(*run)
    assert result.exit_code == 1
    *_, progress, sentence = result.stderr.splitlines()
    assert progress == "3 of 6 texts are written; the same command continues."
    assert sentence.endswith(
        "No space left on device; make room and repeat the command, which continues from here."
    )
    assert draftwood(*run).exit_code == 0
    assert texts(read(out)) == whole


def test_a_prompt_that_does_not_fit_is_refused_and_the_others_are_written(
    draftwood, prompts, whole, tmp_path, monkeypatch
):
    """Memory for three rows of ordinary length; one prompt needs more than there is."""
    fit, extend = [], PackedBackend.extend

    def small(self, tokens, *rest):
        if sum(self.lengths) > 90:
            fit.append(list(self.lengths))
            raise OutOfMemory("The device ran out of memory; use fewer rows.")
        return extend(self, tokens, *rest)

    monkeypatch.setattr(PackedBackend, "extend", small)
    prompts.write_text("\n".join([*PROMPTS[:4], "word " * 100, *PROMPTS[4:]]))
    out = tmp_path / "out.jsonl"
    result = draftwood("generate", "--data", prompts, "--out", out, *OPTIONS, "--seed", 7)
    assert result.exit_code == 1
    assert "1 of 7 prompts were refused; number 4, the first, because: The device ran out" in result.stderr
    lines = texts(read(out))
    assert max(map(len, fit)) > 1  # it did run beside others
    assert lines[4] == {
        "number": 4,
        "prompt": "word " * 100,
        "refused": "The device ran out of memory; use fewer rows.",
    }
    assert lines[:4] == whole[:4]
    assert [line["prompt"] for line in lines[5:]] == PROMPTS[4:]


def test_without_ray_its_option_is_one_sentence(refused, prompts, tmp_path, monkeypatch):
    monkeypatch.setattr(on_ray, "find_spec", lambda _: None)
    run = ("generate", "--data", prompts, "--out", tmp_path / "out.jsonl", "--ray", "auto")
    assert "pip install 'draftwood[ray]'" in refused(*run)
    assert not list(tmp_path.glob("out*"))


def test_texts_that_a_machine_without_memory_refuses_are_not_lost(draftwood, prompts, whole, tmp_path):
    """Memory runs out for everything, from the third text on."""
    out, extend, calls = tmp_path / "out.jsonl", PackedBackend.extend, []

    def none(self, tokens, *rest):
        calls.append(len(self.lengths))
        if len(calls) > 6:
            raise RuntimeError("[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate")
        return extend(self, tokens, *rest)

    run = ("generate", "--data", prompts, "--out", out, *OPTIONS, "--seed", 7)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(PackedBackend, "extend", none)
        result = draftwood(*run)
    assert result.exit_code == 1
    sentence = result.stderr.splitlines()[-1]
    assert sentence.startswith("Error: There is no memory even for three tokens (")
    assert sentence.endswith("; make room and repeat the command, which continues from here.")
    assert not out.exists()
    assert b"refused" not in (tmp_path / "out.jsonl.part").read_bytes()
    assert draftwood(*run).exit_code == 0
    assert texts(read(out)) == whole
