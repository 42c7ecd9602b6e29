"""Plain English in docstrings, comments, messages and pages, with a list of exceptions that only shrinks."""

import pytest

from tests.plain_english import EXCEPTIONS, count, counts, exceptions, lowered, prose, too_many


def test_no_file_has_more_than_it_may():
    found = [
        f"{name}: {number} {kind}, allowed {limit}"
        for name, kind, number, limit in too_many(counts(), exceptions())
    ]
    assert not found, f"{found}; `python -m tests.plain_english` prints all counts"


def test_pages_and_programs_for_users_have_no_exceptions():
    """Except for the names of results and of transformers' fields, which are quoted."""
    rewritten = ("docs/", "zoo/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "ARCHITECTURE.md")
    left = {name: kinds for name, kinds in exceptions().items() if name.startswith(rewritten)}
    assert left == {"docs/_site/tables.py": {"words": 1}}
    openings = [name for name, kinds in exceptions().items() if "openings" in kinds]
    assert not [name for name in openings if name.startswith(("apps/", "benchmarks/"))]


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('def f():\n    """What comes of it."""\n', {"openings": 1}),
        ('def f():\n    """Whatever comes of it."""\n', {}),
        ('def f():\n    """Returns what comes of it."""\n', {}),
        ('class A:\n    """The same, but red."""\n', {"openings": 1}),
        ("x = 1  # behind the root\n", {"words": 1}),
        ("behind = 1\nbeside = behind\n", {}),
        ('x = "it stands alone"\n', {"words": 2}),
        ('x = "T stands for the target"\n', {}),
        ('"""A file of its own."""\n', {"words": 1}),
    ],
)
def test_code_is_counted(source, found):
    assert count("a.py", source) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("# Title\n\nIt works. Nor does it fail.\n", {"openings": 1}),
        ("# Title\n\nOf 3 rows two are here.\n", {"openings": 1}),
        ("| a | behind |\n", {"words": 1}),
        ("```\nbehind\n```\n<!-- table: a -->\nbeside\n<!-- end -->\n", {}),
    ],
)
def test_pages_are_counted(text, found):
    assert count("a.md", text) == found
    assert prose("```\nx\n```\ny") == "\ny"


def test_exceptions_only_shrink():
    allowed = {"a.py": {"words": 2, "openings": 1}, "b.py": {"words": 1}}
    found = {"a.py": {"words": 1, "openings": 3}, "c.py": {"words": 1}}
    assert lowered(found, allowed) == {"a.py": {"words": 1, "openings": 1}}
    assert list(too_many(found, allowed)) == [("a.py", "openings", 3, 1), ("c.py", "words", 1, 0)]


def test_every_exception_is_a_file():
    assert all((EXCEPTIONS.parents[1] / name).is_file() for name in exceptions())
