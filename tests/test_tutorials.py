"""The tutorials run as they stand: files are saved, Python is run, and commands print what the page shows."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from draftwood import registry
from draftwood.apps.main import app

DOCS = Path(__file__).parents[1] / "docs"
PAGES = (
    "start.md",
    "idea.md",
    "tutorials/policy.md",
    "tutorials/verifier.md",
    "tutorials/drafter.md",
    "tutorials/backend.md",
)
BLOCK = re.compile(r"^```(python|console|toml)(?: title=\"([\w.]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Language, file name (or nothing) and text of every block that is run."""
    for found in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        yield found[1], found[2] or "", found[3]


def commands(text: str) -> Iterator[tuple[list[str], list[str], int]]:
    """Arguments of every `$ draftwood ...`, the lines shown below it, and the exit code shown."""
    for part in text.split("$ draftwood ")[1:]:
        first, *lines = part.splitlines()
        code = re.fullmatch(r"\[exit code (\d+)\]", lines[-1]) if lines else None
        shown = [line for line in lines if line != "..." and not line.startswith("[exit code ")]
        yield shlex.split(first), shown, int(code[1]) if code else 0


def assert_shown(shown: list[str], output: str) -> None:
    """The lines stand in the output, in their order; a line of the page may be the beginning of one."""
    place = 0
    for line in shown:
        found = output.find(line, place)
        assert found >= 0, f"{line!r} is not printed (any more):\n{output}"
        place = found + len(line)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty current folder; what is registered in it is known, and modules saved in it are forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    known = set(sys.modules)
    yield tmp_path
    registry._entries.cache_clear()
    for name in set(sys.modules) - known:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def install(project: str, folder: Path) -> None:
    """What `pip install --editable .` does with a pyproject.toml that only names entry points."""
    import tomllib

    data = tomllib.loads(project)
    info = folder / "mine-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {data['project']['name']}\nVersion: 0.1\n")
    lines = []
    for group, names in data["project"]["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in names.items())]
    (info / "entry_points.txt").write_text("\n".join(lines))
    registry._entries.cache_clear()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_runs_from_top_to_bottom(page, folder):
    scope, ran = {"__name__": "tutorial"}, 0
    for language, title, text in blocks(page):
        if language == "toml":
            install(text, folder)
        elif title:
            (folder / title).write_text(text, encoding="utf-8")
            compile(text, title, "exec")
        elif language == "python":
            exec(compile(text, page, "exec"), scope)
        else:
            for arguments, shown, code in commands(text):
                result = CliRunner().invoke(app, arguments)
                assert result.exit_code == code, result.output
                assert_shown(shown, result.stdout)
        ran += 1
    assert ran


@pytest.mark.parametrize("shown", [["b", "a"], ["c"], ["a", "a"]])
def test_what_is_not_printed_is_seen(shown):
    with pytest.raises(AssertionError, match="is not printed"):
        assert_shown(shown, "a\nb\n")
