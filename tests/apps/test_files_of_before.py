"""Files that earlier versions wrote: read as they were meant, or refused with what makes them anew.

`data/before` holds them as those versions wrote them.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from benchmarks.research.families import write
from benchmarks.research.families_check import Finding
from benchmarks.research.recipes import Task, stored
from draftwood import InvalidInput, read_tuned
from draftwood.apps.files.trace import READ, VERSION
from draftwood.apps.view.reading import read
from draftwood.strategies.drafters.medusa import load_heads, save_heads
from draftwood.strategies.drafters.suffix_index import SuffixIndex

BEFORE = Path(__file__).resolve().parents[1] / "data" / "before"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a folder of before, which may be written to."""
    return lambda name: Path(shutil.copytree(BEFORE / name, tmp_path / name))


def test_a_trace_of_version_2_is_shown_as_it_was() -> None:
    assert (min(READ), max(READ)) == (2, VERSION)
    (row,) = read(BEFORE / "trace-2.json")["rows"]
    texts = [text for one in row["rounds"] for text in one["texts"]]
    assert "".join(texts) == json.loads((BEFORE / "trace-2.json").read_text())["outputs"][0]["text"]


def test_a_trace_of_version_1_is_refused(refused: Callable[..., str]) -> None:
    assert refused("view", BEFORE / "trace-1.json") == (
        f"Error: {str(BEFORE / 'trace-1.json')!r} is a trace of version 1, and this draftwood reads "
        "versions 2 and 3; make the trace again with `draftwood generate --trace`."
    )


def test_a_results_folder_without_the_newer_fields_is_shown(
    draftwood: Callable[..., Result], copied: Callable[[str], Path]
) -> None:
    folder = copied("bench-2")
    result = draftwood("bench", "--to", folder, "--report")
    assert result.exit_code == 0, result.output
    results = {row["contender"]: row for row in json.loads((folder / "results.json").read_text())["results"]}
    assert set(results) == {"generate", "dyspec:budget=3"}
    figures = results["dyspec:budget=3"]["figures"]
    cells = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    (text,) = [
        cell for cell in cells if cell.get("contender") == "dyspec:budget=3" and cell["kind"] == "text"
    ]
    assert figures["tokens_per_round"]["value"] == len(text["tokens"]) / text["rounds"]
    assert "depth" not in text
    assert not {"depth_share", "tree_depth", "overhead"} & set(figures)


def test_a_results_folder_of_version_1_is_refused(
    refused: Callable[..., str], copied: Callable[[str], Path]
) -> None:
    folder = copied("bench-1")
    for words in (["--report"], ["--prompts", 1]):
        assert refused("bench", "--to", folder, *words) == (
            f"Error: {str(folder / 'run.json')!r} is of version 1, and this draftwood reads versions 2 and "
            "3; measure again with `draftwood bench --to` another folder."
        )


def test_an_option_that_is_gone_is_refused_in_the_name_of_the_file_that_has_it(
    refused: Callable[..., str], tmp_path: Path
) -> None:
    sentence = refused("bench", "--file", BEFORE / "bench.toml", "--to", tmp_path)
    assert f"Error: {str(BEFORE / 'bench.toml')!r}: " in sentence
    assert "no longer has the option 'luck': it gained nothing; name the verifier without it." in sentence


def test_a_tuned_file_of_version_1_is_read(tmp_path: Path) -> None:
    assert read_tuned(BEFORE / "tuned-1.json").ordinary
    content = json.loads((BEFORE / "tuned-1.json").read_text())
    file = tmp_path / "tuned.json"
    file.write_text(json.dumps(content | {"recipe": "class-ordered", "options": {"branching": "2,2"}}))
    assert read_tuned(file).method().policy.branches
    file.write_text(json.dumps(content | {"recipe": "class-ordered", "options": {"luck": 0.5}}))
    with pytest.raises(
        InvalidInput,
        match="names a strategy or option that is not here, .*'luck'",
    ):
        read_tuned(file)


def test_heads_without_a_version_are_those_of_version_1(copied: Callable[[str], Path]) -> None:
    folder = copied("heads-0")
    heads = load_heads(folder)
    assert (heads.count, heads.hidden_size, heads.vocab_size) == (1, 2, 3)
    save_heads(heads, folder, target="toy")
    description = json.loads((folder / "heads.json").read_text())
    assert (description["format"], description["version"]) == ("draftwood-heads", 1)
    (folder / "heads.json").write_text(json.dumps(description | {"version": 2}))
    with pytest.raises(
        InvalidInput, match=r"heads-0' says 'draftwood-heads' of version 2, .*zoo.train medusa"
    ):
        load_heads(folder)


def test_an_index_of_version_1_is_read() -> None:
    index = SuffixIndex.open(BEFORE / "index-1")
    assert (len(index.tokens), index.vocab_size) == (4, 4096)


def test_cells_of_recipes_belong_to_one_task(tmp_path: Path) -> None:
    task = Task({"prose": [[1], [2]]}, 24, "llama-draft")
    with pytest.raises(
        InvalidInput, match="line 1, is no cell of version 2 of 2 prompts, 24 tokens, llama-draft"
    ):
        stored(BEFORE / "recipes.jsonl", task)
    line = json.loads((BEFORE / "recipes.jsonl").read_text()) | {"version": 2, "task": task.words}
    file = tmp_path / "cells.jsonl"
    file.write_text(json.dumps(line) + "\n")
    assert stored(file, task) == [line]
    other: Any = Task(task.prompts, 32, task.draft)
    with pytest.raises(InvalidInput, match="32 tokens"):
        stored(file, other)
    file.write_text("{\n")
    with pytest.raises(InvalidInput, match="line 1, is not JSON"):
        stored(file, task)
    assert stored(tmp_path / "none.jsonl", task) == []


def test_a_table_of_families_with_other_columns_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "families.csv"
    write(file, Finding("llama"))
    write(file, Finding("gemma"))
    with file.open(newline="") as lines:
        heading, *rows = csv.reader(lines)
    assert [row[0] for row in rows] == ["gemma", "llama"]
    file.write_text(",".join(["name", *heading[1:]]) + "\nllama" + "," * (len(heading) - 1) + "\n")
    with pytest.raises(InvalidInput, match="has the columns name, .* `python -m benchmarks families`"):
        write(file, Finding("gemma"))
