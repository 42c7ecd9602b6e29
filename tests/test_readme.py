"""The README's Python runs unchanged, block after block."""

import re
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"


def test_every_python_block_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert len(blocks) == 4
    scope: dict[str, Any] = {"__name__": "readme"}
    for block in blocks:
        exec(compile(block, str(README), "exec"), scope)
    assert capsys.readouterr().out.startswith("def fibonacci(n):")
    assert scope["ids"].shape[1] > scope["inputs"].input_ids.shape[1]


def test_it_names_the_two_commands_that_the_makefile_has():
    targets = re.findall(
        r"^(\w+):", (README.parent / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    commands = re.findall(r"^make (\w+)", README.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands == ["demo", "test"]
    assert set(commands) <= set(targets)


def test_it_is_short():
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 150
