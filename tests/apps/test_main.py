"""The program itself: help that is quick, fits the terminal and shows examples; pipes, other encodings."""

import io
import os
import sys
from subprocess import run

import pytest
from draftwood_cli import COMMANDS, main

from draftwood import __version__


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_shows_examples_within_80_columns(draftwood, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    result = draftwood(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n    draftwood " in result.stdout
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 80, max(lines, key=len)
    assert "\\n" not in result.stdout  # a shell hands it on as two characters


def test_the_list_has_the_first_line_of_every_help(draftwood, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    listed = draftwood("--help").stdout
    width = max(map(len, COMMANDS))
    for name, (_, first_line) in COMMANDS.items():
        assert f"  {name:<{width}}  {first_line}\n" in listed
        assert draftwood(name, "--help").stdout.splitlines()[2] == f"  {first_line}"


def test_help_version_and_typing_errors_load_nothing_heavy():
    code = (
        "import sys, draftwood_cli\n"
        "for words in (['--help'], ['--version'], ['genrate'], []):\n"
        "    try: draftwood_cli.app(words)\n"
        "    except SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    loaded = run([sys.executable, "-c", code], text=True, capture_output=True, check=True).stderr
    modules = set(loaded.splitlines()[-1].split())
    assert "draftwood_cli" in modules
    assert not {"torch", "numpy", "transformers", "rich.table", "draftwood"} & modules


def test_version(draftwood):
    assert draftwood("--version").stdout == f"draftwood {__version__}\n"


def test_unknown_command(draftwood):
    result = draftwood("genrate")
    assert result.exit_code == 2
    assert "Did you mean 'generate'?" in result.output
    assert "Traceback" not in result.output


@pytest.mark.posix
@pytest.mark.parametrize(
    "words",
    [
        ["generate", "--help"],
        *(
            pytest.param(one, marks=pytest.mark.thorough)
            for one in (["--help"], ["strategies"], ["strategies", "--json"])
        ),
    ],
)
def test_a_reader_that_went_away_is_no_error_message(start, words):
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as nobody:
        process = start(*words, stdout=nobody)
        errors = process.stderr.read()
    assert process.wait(timeout=300) == 1
    assert errors == ""


@pytest.mark.parametrize("encoding", ["ascii", "iso-8859-1"])
def test_what_a_terminal_cannot_show_is_replaced(monkeypatch, encoding):
    shown = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", shown)
    monkeypatch.setattr("draftwood_cli.app", lambda prog_name: print("Tōkyō → 東京", flush=True))
    main()
    assert shown.buffer.getvalue().decode(encoding).count("?") >= 3
