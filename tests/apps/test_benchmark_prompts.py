"""Held-out prompts of the benchmarks."""

import json
from pathlib import Path

import pytest

from benchmarks.research import held_out
from draftwood import InvalidInput, zoo


def test_held_out_prompts(tmp_path: Path) -> None:
    with (tmp_path / "gsm8k_test.jsonl").open("w") as file:
        file.writelines(json.dumps({"question": f"What is {i}?"}) + "\n" for i in range(9))
    with (tmp_path / "humaneval.jsonl").open("w") as file:
        file.writelines(json.dumps({"prompt": f"def f{i}():"}) + "\n" for i in range(8))
    (tmp_path / "wikitext2_test.txt").write_text("\n = Title = \n" + f"{'word ' * 120}\n" * 8)
    found = held_out.prompts(tmp_path, zoo.tokenizer(), count=3)
    assert {name: len(rows) for name, rows in found.items()} == {
        "gsm8k": 3,
        "humaneval": 3,
        "wikitext2": 3,
    }
    assert zoo.tokenizer().decode(found["gsm8k"][1]) == "Question: What is 2?\nAnswer:"
    assert all(len(row) == 64 for row in found["wikitext2"])
    others = held_out.prompts(tmp_path, zoo.tokenizer(), count=4, calibration=True)
    assert not {tuple(row.tolist()) for name in ("gsm8k", "humaneval") for row in found[name]} & {
        tuple(row.tolist()) for name in ("gsm8k", "humaneval") for row in others[name]
    }
    with pytest.raises(InvalidInput, match="humaneval has 4 prompts but prompts=5"):
        held_out.prompts(tmp_path, zoo.tokenizer(), count=5)
