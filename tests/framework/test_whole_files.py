"""Files that are written whole or not at all, and never through a link."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import InvalidInput
from draftwood.apps.distil.run import save_beside
from draftwood.base.whole_files import check_writable, inner_folder, write_bytes, write_json, written_whole
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from draftwood.strategies.heads.files import CONFIG, WEIGHTS, write_head
from draftwood.zoo.distil.rows import save_whole

pytestmark = pytest.mark.posix


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_older_file_is_replaced_and_its_other_names_are_left_alone(tmp_path):
    file, other = tmp_path / "a", tmp_path / "b"
    file.write_text("old")
    other.hardlink_to(file)
    write_json(file, {"new": 1})
    assert file.read_text() == '{\n "new": 1\n}\n'
    assert other.read_text() == "old"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(file.stat().st_mode) == 0o666 & ~mask
    with pytest.raises(InvalidInput, match="is there already"):
        write_bytes(file, [b"newer"], new=True)
    assert names(tmp_path) == ["a", "b"]


@pytest.mark.parametrize("there", [True, False])
def test_nothing_is_written_through_a_link(tmp_path, there):
    target, link = tmp_path / "mine", tmp_path / "link"
    if there:
        target.write_text("mine")
    link.symlink_to(target)
    for write in (check_writable, lambda file: write_bytes(file, [b"theirs"])):
        with pytest.raises(InvalidInput, match="is a symbolic link, and nothing is written through one"):
            write(link)
    assert link.is_symlink()
    assert target.exists() == there
    assert not there or target.read_text() == "mine"
    with pytest.raises(InvalidInput, match="is a symbolic link"):
        inner_folder(link)


def test_devices_pipes_and_folders_are_no_names_of_files(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    for file, reason in (
        (Path("/dev/null"), "device or a pipe"),
        (tmp_path / "pipe", "device or a pipe"),
        (tmp_path / "folder", "is a folder"),
        (tmp_path / "none" / "file", "does not exist"),
    ):
        with pytest.raises(InvalidInput, match=reason):
            check_writable(file)
        with pytest.raises(InvalidInput):
            write_bytes(file, [b"x"])
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(InvalidInput, match="cannot be made"):
        inner_folder(tmp_path / "pipe")


def test_what_breaks_off_leaves_the_old_file_alone(tmp_path, monkeypatch):
    file = tmp_path / "a"
    write_bytes(file, [b"old"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(InvalidInput, match="a' cannot be written: No space left on device"):
            write_bytes(file, [b"new"])
    with pytest.raises(KeyboardInterrupt), written_whole(file) as part:
        _stopped(part)
    assert file.read_text() == "old"
    assert names(tmp_path) == ["a"]


def _stopped(part: Path) -> None:
    part.write_text("half")
    raise KeyboardInterrupt


WRITERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "weights of a head": (WEIGHTS, lambda at: write_head(at, {"a": 1}, {"w": torch.zeros(2)})),
    "description of a head": (CONFIG, lambda at: write_head(at, {"a": 1}, {"w": torch.zeros(2)})),
    "a checkpoint": ("checkpoint.pt", lambda at: save_whole(at / "checkpoint.pt", {"a": 1})),
    "an index": ("tokens.npy.new", lambda at: _index(at)),
    "the folder of a draft": ("model.part", lambda at: save_beside(_save, at)),
    "a file of a draft": ("weights", lambda at: save_beside(_save, at)),
}


def _save(part: Path) -> None:
    (part / "weights").write_text("new")


def _index(at: Path) -> None:
    SuffixIndex.of([np.arange(20) % 7], vocab_size=9, vocabulary="x").save(at)


@pytest.mark.parametrize("name", WRITERS)
def test_no_writer_follows_a_link(tmp_path, name):
    place, write = WRITERS[name]
    ours, mine = tmp_path / "ours", tmp_path / "mine"
    ours.mkdir()
    if name == "an index":
        _index(ours)
    if place == "model.part":
        mine.mkdir()
        (mine / "letter").write_text("Dear Sir")
    else:
        mine.write_text("mine")
    (ours / place).symlink_to(mine)
    with suppress(InvalidInput):
        write(ours)
    if mine.is_dir():
        assert names(mine) == ["letter"]
    else:
        assert mine.read_text() == "mine"
