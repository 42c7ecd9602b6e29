"""The cells of a results folder, without the line that says what run they are of."""

import json
from pathlib import Path
from typing import Any


def cells(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "cells.jsonl").read_text(encoding="utf-8").splitlines()
    run, *found = [json.loads(line) for line in lines]
    assert run["format"] == "draftwood-bench"
    return found
