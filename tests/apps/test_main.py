"""The program itself: help that is quick and shows examples, a version, unknown commands."""

from subprocess import check_output
from sys import executable

import pytest

from draftwood import __version__


@pytest.mark.parametrize("command", [[], ["demo"], ["generate"], ["strategies"], ["prove"]])
def test_help_shows_examples(draftwood, command):
    result = draftwood(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:" in result.stdout
    assert "  draftwood " in result.stdout


def test_help_does_not_load_transformers():
    loaded = check_output(
        [executable, "-c", "import sys, draftwood.apps.main; print(*sys.modules)"], text=True
    ).split()
    assert "draftwood.apps.main" in loaded
    assert not {"transformers", "rich.table", "triton"} & set(loaded)


def test_version(draftwood):
    assert draftwood("--version").stdout == f"draftwood {__version__}\n"


def test_unknown_command(draftwood):
    result = draftwood("genrate")
    assert result.exit_code == 2
    assert "generate" in result.output
    assert "Traceback" not in result.output
