"""The texts of a run as Spec-Bench's answers, for its own `evaluation/speed.py` (hemingkx/Spec-Bench)."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftwood.apps.files.datasets import DataSet
from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import inner_folder, write_text


def write(folder: Path, cells: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Write one file for each contender of each contest; returns their names.

    A line is a question with all its turns; each repetition is one of its choices. Contenders of
    transformers but the ordinary one do not tell what a round gave, so their `accept_lengths` are empty.
    A first token that the prompt's own pass gives is no step, and not in them.

    Args:
        folder: where they go; made where it is missing.
        cells: everything that was measured.

    Raises:
        InvalidInput: no prompt of the run is a question of Spec-Bench.
    """
    files: dict[str, dict[str, Any]] = {}
    for key, cell in cells.items():
        if cell["kind"] == "text" and "question" in cell and "refused" not in cell:
            answers = files.setdefault(_name(cell), {})
            line = answers.setdefault(f"{cell['data']} {cell['prompt']}", _line(key, cell))
            _add(line["choices"], cell)
    if not files:
        raise InvalidInput(
            "The run holds no answer to a question of Spec-Bench, whose rows have question_id, category and "
            "turns; bench one with --spec-bench."
        )
    inner_folder(folder)
    for name, answers in files.items():
        lines = (json.dumps(line, ensure_ascii=False) + "\n" for line in answers.values())
        write_text(folder / name, "".join(lines))
    return sorted(files)


def check(sets: Mapping[str, DataSet]) -> None:
    """Raise `InvalidInput` where none of the data sets has a question of Spec-Bench."""
    if all(prompt.question is None for data_set in sets.values() for prompt in data_set.prompts):
        raise InvalidInput(
            "--spec-bench needs questions; give --data a file with question_id, category and turns."
        )


def _name(cell: Mapping[str, Any]) -> str:
    """The file of a cell's contender and contest, whatever the data set."""
    parts = (cell["contender"], cell["pair"], f"T{cell['temperature']:g}", cell["new_tokens"])
    cut = f"-cut{cell['prompt_length']}" if cell["prompt_length"] else ""
    return "-".join(re.sub(r"[^\w.=+]+", "-", str(part)) for part in parts) + f"{cut}.jsonl"


def _line(key: str, cell: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "question_id": cell["question"]["id"],
        "category": cell["question"]["category"],
        "answer_id": uuid.uuid5(uuid.NAMESPACE_OID, key).hex,
        "model_id": _name(cell).removesuffix(".jsonl"),
        "choices": [],
        "tstamp": cell["question"]["answered"],
    }


def _add(choices: list[dict[str, Any]], cell: Mapping[str, Any]) -> None:
    """Append a turn, which comes after the turns before it."""
    number = cell["repetition"]
    if number == len(choices):
        lists = ("turns", "decoding_steps", "new_tokens", "wall_time", "accept_lengths")
        choices.append({"index": number, **{name: [] for name in lists}})
    choice = choices[number]
    choice["turns"].append(cell["question"]["answer"])
    choice["decoding_steps"].append(cell["rounds"])
    choice["new_tokens"].append(len(cell["tokens"]))
    choice["wall_time"].append(cell["seconds"])
    choice["accept_lengths"] += cell["accept_lengths"] or []
