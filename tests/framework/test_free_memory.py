"""Memory that is left, by what operating systems tell of it."""

import os

import pytest

from draftwood.base import free_memory as module
from draftwood.base.free_memory import free_memory


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Files in place of what Linux tells, by name; none is there at first."""
    for name in ("MACHINE", "LIMIT", "USED"):
        monkeypatch.setattr(module, name, tmp_path / name)
    return tmp_path


def test_linux_tells_what_programs_can_have(told):
    (told / "MACHINE").write_text(
        "MemTotal: 9000 kB\nMemFree:  10 kB\nMemAvailable:    3000 kB\n", encoding="utf-8"
    )
    assert free_memory() == 3000 * 1024


@pytest.mark.parametrize(
    ("limit", "left"), [("max", 3000), (str(5000 * 1024), 1000), (str(4000 * 1024), 0), (str(9**15), 3000)]
)
def test_a_container_has_no_more_than_its_limit(told, limit, left):
    (told / "MACHINE").write_text("MemAvailable:    3000 kB\n", encoding="utf-8")
    (told / "LIMIT").write_text(f"{limit}\n", encoding="utf-8")
    (told / "USED").write_text(f"{4000 * 1024}\n", encoding="utf-8")
    assert free_memory() == left * 1024


def test_elsewhere_free_pages_are_counted(told, monkeypatch):
    pages = {"SC_AVPHYS_PAGES": 7, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr(os, "sysconf", pages.__getitem__, raising=False)
    assert free_memory() == 7 * 4096


def test_where_nothing_is_told_there_is_none(told, monkeypatch):
    monkeypatch.delattr(os, "sysconf", raising=False)
    assert free_memory() == 0
