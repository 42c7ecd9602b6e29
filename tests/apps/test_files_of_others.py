"""Files that are not ours, or not of this run: refused in one sentence, without a changed byte."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood import InvalidInput, zoo
from draftwood.apps.files import journal
from draftwood.apps.files.journal import Journal
from draftwood.apps.generate import on_ray, text_file
from draftwood.apps.generate.text_writer import TextWriter
from tests.apps.others import altered, snapshot

pytestmark = [pytest.mark.posix, pytest.mark.usefixtures("few_reads")]

PROMPTS = ["Count from 1 to 4:", "Once upon a time", "def f(", "Dear Sir,"]
TEXTS = ("--max-new-tokens", 4, "--temperature", 0.8, "-o", "budget=3", "--seed", 7)


class Killed(BaseException):
    """Ends everything, as SIGKILL does."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft and a head in folders, to be named from there."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("llama-7m", "llama-draft", "llama-7m-eagle3"):
        shutil.copytree(zoo.path(name), folder / name)
        zoo.tokenizer().save_pretrained(folder / name)
    return folder


@pytest.fixture
def here(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompts, from which models are found as target/, draft/ and head/."""
    for name, there in (("target", "llama-7m"), ("draft", "llama-draft"), ("head", "llama-7m-eagle3")):
        shutil.copytree(models / there, tmp_path / name, copy_function=os.link)
    (tmp_path / "prompts.txt").write_text("\n".join(PROMPTS))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def texts(drafter: str = "draft") -> tuple[object, ...]:
    models = ("--target", "target", "--drafter", drafter)
    return ("generate", *models, "--data", "prompts.txt", "--out", "work/out.jsonl", *TEXTS)


PART, OUT = Path("work/out.jsonl.part"), Path("work/out.jsonl")
LEFT: dict[str, bytes] = {}


@pytest.fixture
def left(draftwood: Callable[..., Any], here: Path) -> bytes:
    """The part that a run leaves which is killed after 3 of 4 texts; it is at its place."""
    for drafter in ("draft", "head"):
        if drafter not in LEFT:
            append = Journal.append

            def dying(self: Journal, record: Any, append: Any = append) -> Any:
                if list(self.records())[2:]:
                    raise Killed
                return append(self, record)

            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(Journal, "append", dying)
                draftwood(*texts(drafter))
            LEFT[drafter] = PART.read_bytes()
            assert LEFT[drafter].count(b"\n") == 4
            PART.unlink()
    PART.write_bytes(LEFT["draft"])
    return LEFT["draft"]


def first(content: bytes, **changes: Any) -> bytes:
    """A journal whose first line says something else."""
    line, rest = content.split(b"\n", 1)
    return json.dumps(json.loads(line) | changes).encode() + b"\n" + rest


def record(content: bytes, line: int, **changes: Any) -> bytes:
    """A journal one of whose records says something else."""
    lines = content.splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), **changes}).encode()
    return b"\n".join([*lines, b""])


def own_configuration(content: bytes, **changes: Any) -> bytes:
    known = json.loads(content.split(b"\n", 1)[0])
    return first(content, configuration=known["configuration"] | changes)


# What is written in the place of the part, made of a part of this run; and what the sentence says.
FOREIGN: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "notes without an end of line": (lambda _: b"a download that is still running", "is no file of"),
    "notes": (lambda _: b"my notes\nmy last line without an end", "is no file of"),
    "nothing": (lambda _: b"", "is no file of"),
    "an empty line": (lambda _: b"\n", "is no file of"),
    "binary": (lambda _: b"PK\x03\x04" + bytes(range(256)) * 20, "is no file of"),
    "megabytes in one line": (lambda _: b"x" * 2**22, "is no file of"),
    "somebody's records": (lambda _: b'{"number": 0, "text": "mine"}\n', "is no file of"),
    "a list": (lambda _: b"[1, 2]\n[3]\n", "is no file of"),
    "deeply nested": (lambda _: b"[" * 9999 + b"\n", "is no file of"),
    "another format": (lambda c: first(c, format="draftwood-bench"), "is no file of draftwood generate"),
    "a first line cut in two": (lambda c: c[:50], "is no file of"),
    "a mark before the first line": (lambda c: b"\xff\xfe" + c, "is no file of"),
    "a part of before": (lambda c: first(c, version=1), "is of version 1, which does not say what weights"),
    "a part of later": (lambda c: first(c, version=3), "is of version 3"),
    "no configuration": (lambda c: first(c, configuration=[]), "is damaged: its first line has no configur"),
    "another seed": (lambda c: own_configuration(c, seed=8), "seed was 8 and is 7"),
    "other options": (lambda c: own_configuration(c, temperature=0.5), "temperature was 0.5 and is 0.8"),
    "an option more": (lambda c: own_configuration(c, top_k=3), "top_k was 3 and is null"),
    "other prompts": (lambda c: own_configuration(c, prompts={"count": 4}), "prompts.sha256 was null"),
    "no record": (lambda c: c + b"no record\n", "line 5: no text of this run"),
    "a record without a number": (lambda c: record(c, 1, number="0"), "line 2: no text of this run (it has"),
    "a number too large": (lambda c: record(c, 2, number=4), "line 3: no text of this run (its number is 4"),
    "a number below 0": (lambda c: record(c, 2, number=-1), "line 3: no text of this run (its number is -1"),
    "a text twice": (
        lambda c: c + c.splitlines(keepends=True)[1],
        "line 5: no text of this run (it is the sec",
    ),
    "all twice": (lambda c: c + c, "line 5: no text of this run"),
    "another prompt": (lambda c: record(c, 3, prompt="Hi"), "line 4: no text of this run (its prompt is not"),
    "no text": (lambda c: record(c, 1, text=None), "line 2: no text of this run (it has no text)"),
    "not UTF-8": (lambda c: c + b"\xff\n", "line 5: no text of this run"),
    "a wrong line and a torn one": (lambda c: c + b'{"number": 9}\n{"num', "line 5: no text of this run"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_part_that_is_not_of_this_run(refused, here, left, name):
    made, reason = FOREIGN[name]
    PART.write_bytes(made(left))
    before = snapshot(here)
    assert reason in refused(*texts())
    assert snapshot(here) == before


def linked_to(content: bytes | None) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        if content is not None:
            Path("elsewhere").write_bytes(content)
        path.symlink_to(Path("elsewhere").absolute())

    return make


def hard_link(path: Path) -> None:
    Path("elsewhere").write_bytes(b"somebody's letters\n")
    path.hardlink_to("elsewhere")


def folder_link(path: Path) -> None:
    Path("pictures").mkdir()
    path.symlink_to(Path("pictures").absolute())


# What is at the place of the part, or of what is made of it.
PLACES: dict[str, tuple[Path, Callable[[Path], object], str]] = {
    "a link to notes": (PART, linked_to(b"notes\n"), "is a symbolic link, and links are not followed here"),
    "a link to nothing": (PART, linked_to(None), "is a symbolic link, and links are not followed here"),
    "a link to a folder": (PART, folder_link, "is a symbolic link, and links are not followed here"),
    "a hard link to letters": (PART, hard_link, "is no file of draftwood generate"),
    "a folder": (PART, Path.mkdir, "Is a directory"),
    "a pipe": (PART, os.mkfifo, "is no ordinary file"),
    "a finished file": (OUT, lambda path: path.write_text("mine\n"), "is there already"),
    "a finished link": (OUT, linked_to(b"notes\n"), "is a symbolic link, and nothing is written through one"),
    "a finished link to nothing": (OUT, linked_to(None), "is a symbolic link"),
    "a finished folder": (OUT, Path.mkdir, "is a folder"),
    "a finished pipe": (OUT, os.mkfifo, "is a device or a pipe"),
}


@pytest.mark.parametrize("name", PLACES)
def test_what_stands_at_the_place_of_a_file(refused, here, name):
    path, make, reason = PLACES[name]
    make(path)
    before = snapshot(here)
    assert reason in refused(*texts())
    assert snapshot(here) == before


def test_a_link_to_a_part_of_this_run(refused, here, left):
    PART.rename("elsewhere")
    PART.symlink_to(Path("elsewhere").absolute())
    before = snapshot(here)
    assert "is a symbolic link" in refused(*texts())
    assert snapshot(here) == before


@pytest.mark.parametrize("content", [b"mine\n", b""])
def test_a_file_that_takes_the_name_of_the_texts(refused, draftwood, here, left, content, monkeypatch):
    """The part goes on, but never over a file that is not made of it."""
    OUT.write_bytes(content)
    before = snapshot(here)
    assert "is there already" in refused(*texts())
    assert snapshot(here) == before
    OUT.unlink()
    finish = text_file.TextFile.finish

    def late(self: text_file.TextFile) -> None:
        OUT.write_bytes(content)
        finish(self)

    with monkeypatch.context() as patched:
        patched.setattr(text_file.TextFile, "finish", late)
        result = draftwood(*texts())
    assert result.exit_code == 1
    assert "is there already" in result.stderr
    assert OUT.read_bytes() == content
    assert PART.read_bytes().count(b"\n") == 5
    OUT.unlink()
    assert draftwood(*texts()).exit_code == 0
    assert not PART.exists()


@pytest.mark.parametrize(
    ("changed", "drafter", "reason"),
    [
        ("target/model-00002-of-00002.safetensors", "draft", "target_files was"),
        ("draft/model.safetensors", "draft", "drafter_files was"),
        ("head/model.safetensors", "head", "drafter_head_files was"),
        ("target/config.json", "draft", "target_files was"),
        ("target/tokenizer.json", "draft", "target_files was"),
    ],
)
def test_two_models_in_folders_of_one_name(refused, here, left, changed, drafter, reason):
    PART.write_bytes(LEFT[drafter])
    folder, file = Path(changed).parent, Path(changed)
    copied = shutil.copytree(folder, "copy")
    shutil.rmtree(folder)
    shutil.move(copied, folder)
    if file.suffix == ".safetensors":
        size = file.stat().st_size
        altered(file)
        assert file.stat().st_size == size
    else:
        file.write_text(file.read_text() + "\n")
    before = snapshot(here)
    assert reason in refused(*texts(drafter))
    assert snapshot(here) == before


def test_workers_with_other_models_are_refused():
    files = {"target_files": "a", "drafter_files": None}
    on_ray._check_files(files, dict(files))
    for other in (
        {**files, "target_files": "b"},
        {**files, "drafter_files": "c"},
        {"target_files": "a", "code": {}},
    ):
        with pytest.raises(InvalidInput, match="files|code"):
            on_ray._check_files(files, other)


def test_the_same_models_elsewhere_go_on(draftwood, here, left):
    shutil.copytree("target", "copy")
    shutil.rmtree("target")
    shutil.move("copy", "target")
    assert draftwood(*texts()).exit_code == 0
    assert len(OUT.read_bytes().splitlines()) == 4


def test_a_second_writer_in_the_moment_when_the_first_one_ends(refused, draftwood, here, left, monkeypatch):
    lock, finished = journal._lock, list[bytes]()

    def late(handle: int, path: Path) -> None:
        if not finished:  # between open and lock, the first one finishes
            finished.append(b"")
            monkeypatch.setattr(journal, "_lock", lock)
            assert draftwood(*texts()).exit_code == 0
            finished.append(OUT.read_bytes())
        lock(handle, path)

    monkeypatch.setattr(journal, "_lock", late)
    assert "is there already" in refused(*texts())
    assert OUT.read_bytes() == finished[1]
    assert sorted(path.name for path in Path("work").iterdir()) == ["out.jsonl"]


def test_texts_that_are_missing_at_the_end_are_named_and_nothing_goes(draftwood, here, left, monkeypatch):
    monkeypatch.setattr(TextWriter, "write", lambda *_: iter(()))
    result = draftwood(*texts())
    assert result.exit_code == 1
    missing = next(n for n in range(4) if f'"number": {n},'.encode() not in left)
    assert result.stderr.splitlines()[-1] == (
        f"Error: 1 of 4 texts were not written: {missing}; repeat the command, which writes them."
    )
    assert PART.read_bytes() == left
    assert not OUT.exists()
