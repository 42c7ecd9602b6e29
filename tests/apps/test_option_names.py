"""An option's name means the same in every command."""

from importlib import import_module
from pathlib import Path
from types import UnionType
from typing import get_args, get_type_hints

import pytest
from draftwood_cli import COMMANDS


def types_of(command: str) -> dict[str, set[object]]:
    """Returns the types that each parameter of a command accepts."""
    module, _ = COMMANDS[command]
    hints = get_type_hints(getattr(import_module(module), command.replace("-", "_")))
    return {
        name: set(get_args(hint)) if isinstance(hint, UnionType) else {hint} for name, hint in hints.items()
    }


@pytest.mark.parametrize("command", COMMANDS)
def test_prompts_is_a_number_and_data_names_files(command):
    found = types_of(command)
    assert "count" not in found
    assert found.get("prompts", {int}) <= {int, type(None)}
    assert found.get("data", {Path}) <= {Path, list[str], list[Path], type(None)}


def test_commands_that_read_a_file_of_prompts_have_the_option():
    assert {c for c in COMMANDS if "data" in types_of(c)} == {"generate", "bench", "tune", "check-head"}
