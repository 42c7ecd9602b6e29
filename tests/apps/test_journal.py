"""Journals: a line is whole or not there, one process writes, and what is not ours stays as it is."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import InvalidInput
from draftwood.apps.files import journal
from draftwood.apps.files.journal import Journal
from draftwood.apps.files.journal_work import Work
from draftwood.base import whole_files

RECORDS = st.lists(st.dictionaries(st.text(max_size=3), st.integers(0, 9) | st.text(max_size=30)), max_size=6)


def work(**changes: Any) -> Work:
    fields: dict[str, Any] = {
        "format": "test",
        "version": 1,
        "program": "the test",
        "description": {"configuration": {"seed": 3, "models": {"a": "1", "b": "2"}}},
        "remedy": "take another",
    }
    return Work(**fields | changes)


def other() -> Work:
    return work(description={"configuration": {"seed": 4, "models": {"a": "1", "b": "9"}}})


def read(file: Journal) -> list[Any]:
    found = [(place, json.loads(line)) for _, place, line in file.records()]
    assert all(json.loads(file.line(place)) == record for place, record in found)
    return [record for _, record in found]


@settings(max_examples=60, deadline=None)
@given(records=RECORDS, more=RECORDS, data=st.data())
def test_whatever_part_of_a_journal_is_left_its_whole_lines_are_read_and_it_goes_on(
    records, more, data, tmp_path_factory
):
    path = tmp_path_factory.mktemp("j") / "j"
    with journal.opened(path, work()) as file:
        assert file.is_new
        places = [file.append(record) for record in records]
        assert read(file) == records
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    left = whole[: data.draw(st.integers(first, len(whole)), "left")]
    path.write_bytes(left)
    kept = [record for place, record in zip(places, records, strict=True) if sum(place) <= len(left)]
    with journal.opened(path, work()) as file:
        assert not file.is_new
        assert read(file) == kept
        assert path.read_bytes() == left  # reading changes nothing
        for record in more:
            file.append(record)
        assert read(file) == kept + more
    if more:
        with journal.opened(path, work()) as file:
            assert read(file) == kept + more


def test_a_torn_line_is_as_long_as_the_chunks_that_are_read(tmp_path):
    path = tmp_path / "j"
    long = {"text": "x" * (3 * journal._CHUNK)}
    with journal.opened(path, work()) as file:
        file.append(long)
        file.append({"n": 1})
    with path.open("ab") as torn:
        torn.write(b"y" * (2 * journal._CHUNK + 5))
    with journal.opened(path, work()) as file:
        assert read(file) == [long, {"n": 1}]


def test_other_work_is_named_by_what_differs_and_gives_way_only_where_nothing_was_written(tmp_path):
    path = tmp_path / "j"
    with journal.opened(path, work()):
        pass
    with journal.opened(path, other()) as file:
        assert file.is_new
        file.append({})
    content = path.read_bytes()
    with pytest.raises(
        InvalidInput, match=r"seed was 4 and is 3; models.b was \"9\" and is \"2\"; take another"
    ):
        journal._opened(path, work())
    assert path.read_bytes() == content
    with journal.opened(path, work(description=other().description, free=frozenset({"seed"}))):
        pass
    fixed = tmp_path / "fixed"
    with journal.opened(fixed, work(gives_way=False)):
        pass
    for call in (journal._opened, journal.check):
        with pytest.raises(InvalidInput, match="seed was 3 and is 4"):
            call(fixed, work(description=other().description, gives_way=False))
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def _try(path: Path, told: Any) -> None:
    try:
        with journal.opened(path, work()):
            told.put("opened")
    except InvalidInput as error:
        told.put(str(error))


@pytest.mark.posix
def test_a_second_writer_is_told_and_changes_nothing(tmp_path):
    path = tmp_path / "j"
    context = multiprocessing.get_context("fork")
    told = context.Queue()
    with journal.opened(path, work()) as file:
        file.append({"n": 1})
        before = path.read_bytes()
        process = context.Process(target=_try, args=(path, told))
        process.start()
        assert told.get(timeout=60) == f"Another process writes to {str(path)!r}; wait for it."
        process.join()
        assert path.read_bytes() == before
        file.append({"n": 2})


@pytest.mark.posix
def test_a_journal_that_ends_while_it_is_opened_is_made_anew_and_not_written_to(tmp_path, monkeypatch):
    """The moment when the first of two writers has taken its journal away, and the second has it open."""
    path, lock = tmp_path / "j", journal._lock
    with journal.opened(path, work()) as file:
        file.append({"n": 1})
    moved = tmp_path / "moved"

    def late(handle: int, name: Path) -> None:
        if not moved.exists():
            path.rename(moved)
        lock(handle, name)

    content = path.read_bytes()
    monkeypatch.setattr(journal, "_lock", late)
    with journal.opened(path, work()) as file:
        assert file.is_new
        file.append({"n": 2})
        assert read(file) == [{"n": 2}]
    assert moved.read_bytes() == content


def test_one_that_appears_while_another_is_made_is_opened(tmp_path, monkeypatch):
    path, take = tmp_path / "j", whole_files.take_name
    made = list[Path]()

    def slow(part: Path, name: Path) -> None:
        if not made:
            made.append(name)
            with journal.opened(path, work()) as file:
                file.append({"n": 1})
        take(part, name)

    monkeypatch.setattr(journal, "take_name", slow)
    with journal.opened(path, work()) as file:
        assert not file.is_new
        assert read(file) == [{"n": 1}]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.posix
def test_without_locks_a_second_writer_is_seen_by_what_it_wrote(tmp_path, monkeypatch):
    import fcntl

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", none)
    path = tmp_path / "j"
    with journal.opened(path, work()) as one, journal.opened(path, work()) as two:
        two.append({"n": 2})
        with pytest.raises(InvalidInput, match="was written to by another program"):
            one.append({"n": 1})
        assert read(two) == [{"n": 2}]


def test_a_full_disk_leaves_whole_lines(tmp_path, monkeypatch):
    path, write = tmp_path / "j", os.write
    with journal.opened(path, work()) as file:
        file.append({"n": 1})
        before = path.read_bytes()

        def some(handle: int, words: Any) -> int:
            if len(words) < 8:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(handle, words[:5])

        with monkeypatch.context() as patched:
            patched.setattr(os, "write", some)
            with pytest.raises(InvalidInput, match="No space left on device; make room and repeat"):
                file.append({"text": "more than there is room for"})
            assert path.read_bytes() == before
            with pytest.raises(InvalidInput, match="No space left on device"):
                journal._opened(tmp_path / "new", work())
        assert [one.name for one in tmp_path.iterdir()] == ["j"]
        file.append({"n": 2})
        assert read(file) == [{"n": 1}, {"n": 2}]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def none(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", none)
    path = tmp_path / "j"
    with journal.opened(path, work()) as file:
        file.append({"n": 1})
    with journal.opened(path, work()) as file:
        assert read(file) == [{"n": 1}]
