"""The tutorials run unchanged: files are saved, Python is run, and commands print what the page shows."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from draftwood_cli import app
from typer.testing import CliRunner

from draftwood.protocols import registry

DOCS = Path(__file__).parents[1] / "docs"
TRANSCRIPT = "tutorials/policy.md"  # `make thorough` runs it as a reader would, by the installed command
PAGES = (
    "start.md",
    "idea.md",
    TRANSCRIPT,
    "tutorials/verifier.md",
    "tutorials/drafter.md",
    "tutorials/backend.md",
    "tutorials/recurrent-layer.md",
)
BLOCK = re.compile(r"^```(python|console|toml)(?: title=\"([\w.]+)\")?\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: str) -> Iterator[tuple[str, str, str]]:
    """Language, file name (or nothing) and text of every block that is run."""
    for found in BLOCK.finditer((DOCS / page).read_text(encoding="utf-8")):
        yield found[1], found[2] or "", found[3]


def commands(text: str) -> Iterator[tuple[str, list[str], int]]:
    """Every `$ draftwood ...`, the lines shown below it, and the exit code shown."""
    for part in text.split("$ draftwood ")[1:]:
        first, *lines = part.rstrip("\n").splitlines()
        code = re.fullmatch(r"\[exit code (\d+)\]", lines[-1]) if lines else None
        yield first, lines[:-1] if code else lines, int(code[1]) if code else 0


def assert_shown(shown: list[str], output: str) -> None:
    """The output is what is shown, line by line; `...` stands for any lines, or for some of a line.

    The rules of a table are as long as its figures.
    """
    printed = [re.sub("─+", "─", line) for line in output.splitlines()]
    # The numbers of printed lines that the lines shown so far may end before.
    reached = {0}
    for line in shown:
        if line == "...":
            reached = set(range(min(reached, default=len(printed) + 1), len(printed) + 1))
            continue
        parts = (" +".join(map(re.escape, part.split())) for part in re.sub("─+", "─", line).split("..."))
        pattern = re.compile(" *" + r".*\S.*".join(parts) + " *")
        reached = {at + 1 for at in reached if at < len(printed) and pattern.fullmatch(printed[at])}
        assert reached, f"{line!r} is not printed (any more) where it is shown:\n{output}"
    assert len(printed) in reached, f"what is shown is not all that is printed:\n{output}"


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
    """Installs a pyproject.toml that only names entry points, as `pip install --editable .` does."""
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


def in_this_process(arguments: str, folder: Path) -> tuple[int, str]:
    """Exit code and standard output of `draftwood ARGUMENTS`."""
    result = CliRunner().invoke(app, shlex.split(arguments))
    return result.exit_code, result.stdout if result.exit_code < 2 else result.output


def installed(arguments: str, folder: Path) -> tuple[int, str]:
    """Runs the installed command in a shell, as the page's reader types it."""
    known = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
    known["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    if list(folder.glob("*.dist-info")):
        known["PYTHONPATH"] = str(folder)  # what was installed from it
    done = subprocess.run(
        f"draftwood {arguments}",
        shell=True,
        cwd=folder,
        env=known,
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout if done.returncode < 2 else done.stderr


@pytest.mark.docs
@pytest.mark.parametrize(
    ("page", "run"),
    [
        *((page, in_this_process) for page in PAGES),
        pytest.param(TRANSCRIPT, installed, marks=pytest.mark.thorough),
    ],
)
def test_a_page_runs_from_top_to_bottom(page, run, folder, monkeypatch):
    if page == TRANSCRIPT:
        monkeypatch.setenv("COLUMNS", "80")  # as wide as what is no terminal
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
                exit_code, output = run(arguments, folder)
                assert exit_code == code, output
                assert_shown(shown, output)
        ran += 1
    assert ran


@pytest.mark.parametrize(
    "shown",
    [
        ["b", "a"],
        ["a"],
        ["a", "b 2", "c"],
        ["a", "b 1 ... 2", "..."],
        ["a", "b ..."],
        ["...", "b", "..."],
        [],
    ],
)
def test_what_is_not_printed_is_seen(shown):
    with pytest.raises(AssertionError, match="is not"):
        assert_shown(shown, "a\nb   1 2\nc\n")


@pytest.mark.parametrize(
    "shown",
    [["a", "b 1 2", "c"], ["..."], ["a", "..."], ["...", "c"], ["a", "b ... 2", "c"], ["a", "b ...", "c"]],
)
def test_what_is_left_out_may_be_anything(shown):
    assert_shown(shown, "a\nb   1 2  \nc\n")
