"""Results folders that are not ours, or not of this run: refused in one sentence, without a changed byte."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftwood import zoo
from draftwood.apps.bench import command
from tests.apps.cells import cells
from tests.apps.others import altered, snapshot

pytestmark = [pytest.mark.posix, pytest.mark.usefixtures("few_reads")]

WORDS = ("--prompts", 1, "--prompt-length", 12, "--new-tokens", 3, "--strategy", "leviathan:length=2")
RUN, CELLS = Path("results/run.json"), Path("results/cells.jsonl")
Bench = Callable[..., tuple[object, ...]]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with models, and the results of a run over them."""
    from draftwood_cli import app
    from typer.testing import CliRunner

    folder = tmp_path_factory.mktemp("whole")
    for name in ("llama-7m", "llama-draft", "llama-7m-eagle3"):
        shutil.copytree(zoo.path(name), folder / name.replace("llama-7m", "target"))
        zoo.tokenizer().save_pretrained(folder / name.replace("llama-7m", "target"))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
        patched.chdir(folder)
        result = CliRunner().invoke(app, [str(word) for word in bench()])
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture
def here(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder as it was before its last cell was written."""
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("draftwood.apps.bench.measure._SIZES", (1, 2, 4))
    for name in ("results.json", "results.csv"):
        Path("results", name).unlink()
    CELLS.write_bytes(b"".join(CELLS.read_bytes().splitlines(keepends=True)[:-1]))
    return tmp_path


def bench(*more: object) -> tuple[object, ...]:
    head = "dyspec:budget=3:drafter=target-eagle3"
    return ("bench", "--to", "results", "--pair", "target,llama-draft", *WORDS, "--strategy", head, *more)


def changed(file: Path, **changes: Any) -> None:
    """The first line, or all, of a file of the run says something else."""
    line, *rest = file.read_bytes().split(b"\n") if file == CELLS else (file.read_bytes(),)
    file.write_bytes(b"\n".join([json.dumps(json.loads(line) | changes).encode(), *rest]))


def both(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        for file in (RUN, CELLS):
            changed(file, **changes)

    return change


def configured(**changes: Any) -> Callable[[], None]:
    def change() -> None:
        own = json.loads(RUN.read_bytes())["configuration"]
        both(configuration=own | changes)()

    return change


def written(content: bytes | Callable[[bytes], bytes], file: Path = CELLS) -> Callable[[], None]:
    return lambda: void(file.write_bytes(content(file.read_bytes()) if callable(content) else content))


def void(_: object) -> None:
    pass


def alone(content: bytes) -> Callable[[], None]:
    """The cells' file is all that there is, and is not of bench."""

    def change() -> None:
        RUN.unlink()
        CELLS.write_bytes(content)

    return change


def linked(file: Path) -> Callable[[], None]:
    def change() -> None:
        file.rename("elsewhere")
        file.symlink_to(Path("elsewhere").absolute())

    return change


# What is done to the results of a run that ended early, and what is said then.
FOREIGN: dict[str, tuple[Callable[[], None], str]] = {
    "notes as cells": (written(b"my notes\nwithout an end"), "cells.jsonl' is no file of draftwood bench"),
    "no cells at all": (written(b""), "cells.jsonl' is no file of draftwood bench"),
    "cells without the first line": (
        written(lambda c: c.split(b"\n", 1)[1]),
        "cells.jsonl' is no file of draftwood bench",
    ),
    "a first line cut in two": (written(lambda c: c[:60]), "cells.jsonl' is no file of draftwood bench"),
    "nothing but somebody's cells": (alone(b'{"a": 1}\n{"b": 2'), "cells.jsonl' is no file of draftwood"),
    "nothing but an empty file": (alone(b""), "cells.jsonl' is no file of draftwood bench"),
    "somebody's run.json": (written(b'{"scripts": {}}', RUN), "was not written by `draftwood bench`"),
    "a run.json cut in two": (written(lambda c: c[:90], RUN), "is damaged"),
    "the run.json of another run": (lambda: changed(RUN, created="then"), "belong to two runs"),
    "another version": (both(version=99), "is of version 99"),
    "a run of before": (both(version=2), "whose cells do not name their weights"),
    "other versions": (both(versions={"torch": "1", "draftwood": "1", "transformers": "1"}), "torch was"),
    "another machine": (both(hardware={"device": "abacus", "machine": "x", "system": "y"}), "device was"),
    "another seed": (configured(seed=9), "seed was 9 and is 0"),
    "a cell twice": (written(lambda c: c + c.splitlines(keepends=True)[1]), "it is there twice"),
    "all twice": (written(lambda c: c + c), "not a cell"),
    "a line that is no cell": (written(lambda c: c + b'{"key": "x"}\n{"tor'), "not a cell (kind is missing)"),
    "a link to cells": (linked(CELLS), "is a symbolic link"),
    "a link to run.json": (linked(RUN), "is a symbolic link"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_results_that_are_not_of_this_run(refused, here, name):
    change, reason = FOREIGN[name]
    change()
    before = snapshot(here)
    assert reason in refused(*bench())
    assert snapshot(here) == before


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        ("target/model-00002-of-00002.safetensors", "models.target was"),
        ("llama-draft/model.safetensors", "models.llama-draft was"),
        ("target-eagle3/model.safetensors", "files.dyspec:budget=3:drafter=target-eagle3.head was"),
    ],
)
def test_two_models_in_folders_of_one_name(refused, here, file, reason):
    altered(Path(file))
    before = snapshot(here)
    assert reason in refused(*bench())
    assert snapshot(here) == before


@pytest.mark.parametrize(
    ("link", "words", "reason"),
    [
        ("results.json", (), "'results/results.json' is a symbolic link"),
        ("results.csv", (), "'results/results.csv' is a symbolic link"),
        ("plots", ("--plots",), "'results/plots' is a symbolic link"),
        ("plots/speed.png", ("--plots",), "'results/plots/speed.png' is a symbolic link"),
    ],
)
def test_a_report_writes_through_no_link(draftwood, here, link, words, reason):
    """Somebody's folder whose links lead out of it."""
    Path("pictures").mkdir()
    Path("pictures/mine.png").write_bytes(b"mine")
    Path("results/plots").mkdir()
    place = Path("results", link)
    if place.is_dir():
        place.rmdir()
    target = Path("pictures") if link == "plots" else Path("pictures/mine.png")
    place.symlink_to(target.absolute())
    before = snapshot(Path("pictures"))
    result = draftwood("bench", "--to", "results", "--report", *words)
    assert result.exit_code == 1
    assert f"Error: {reason}" in result.stderr
    assert snapshot(Path("pictures")) == before
    assert place.is_symlink()


def test_a_run_that_ended_early_goes_on_in_the_folder_it_left(draftwood, here, whole):
    kept = CELLS.read_bytes()
    with CELLS.open("ab") as torn:
        torn.write(b'{"key": "te')
    result = draftwood(*bench())
    assert result.exit_code == 0, result.output
    assert "1 are missing." in result.stderr
    assert CELLS.read_bytes().startswith(kept)
    keys = [[cell["key"] for cell in cells(folder / "results")] for folder in (here, whole)]
    assert keys[0] == keys[1]


def test_a_run_json_that_is_missing_is_made_of_the_cells_first_line(draftwood, here):
    run = json.loads(RUN.read_bytes())
    RUN.unlink()
    assert draftwood(*bench()).exit_code == 0
    assert json.loads(RUN.read_bytes()) == run


def test_cells_that_are_missing_at_the_end_are_named(draftwood, here, monkeypatch):
    before = CELLS.read_bytes()
    monkeypatch.setattr(command, "run", lambda *_: ([], iter(())))
    result = draftwood(*bench())
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: 1 of 5 cells were not measured: pair | target,llama-draft | ")
    assert result.stderr.endswith("; repeat the command, which measures them.\n")
    assert CELLS.read_bytes() == before


def test_the_folders_of_distil(refused, draftwood, here):
    Path("text.txt").write_text("".join(f"The King said {i} to him, and went.\n" for i in range(200)))
    small = ("--tokens", 64, "--new-tokens", 8, "--longest", 56, "--steps", 1, "--batch", 64)
    words = ("distil", "target", "llama-draft", "text.txt", "-o", "out", *small)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("draftwood.zoo.distil.rows.SHARD_TOKENS", 200)
        patched.setattr("draftwood.apps.distil.command.SHARD_TOKENS", 200)
        assert draftwood(*words).exit_code == 0
    altered(Path("llama-draft/model.safetensors"))
    before = snapshot(here)
    assert "draft_files was" in refused(*words)
    assert snapshot(here) == before
    altered(Path("target/model-00002-of-00002.safetensors"))
    assert "target_files was" in refused(*words)
    shutil.rmtree("out")
    Path("out").mkdir()
    for name, reason in (("run.json", "is a symbolic link"), ("rows", "holds other files")):
        Path("out", name).symlink_to(Path("results").absolute())
        before = snapshot(here)
        assert reason in refused(*words)
        assert snapshot(here) == before
        Path("out", name).unlink()
    os.mkfifo("out/run.json")
    before = snapshot(here)
    assert "is no ordinary file" in refused(*words)
    assert snapshot(here) == before
