"""Held-out prompts to measure a draft on: GSM8K test, HumanEval, test split of WikiText-2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

_WIKITEXT_TOKENS = 64


def prompts(folder: Path, tokenizer: Any, *, count: int = 20) -> dict[str, list[Tensor]]:
    """`count` prompts a domain, evenly spread over its file, each int64 `[length]`.

    Problems are put as in the training text (`Question: ...`, `Answer:`), code as it stands, and
    prose as the first 64 tokens of a paragraph.
    """
    import torch

    maths = [f"Question: {row['question']}\nAnswer:" for row in _rows(folder / "gsm8k_test.jsonl")]
    code = [row["prompt"] for row in _rows(folder / "humaneval.jsonl")]
    lines = (folder / "wikitext2_test.txt").read_text(encoding="utf-8").splitlines()
    prose = [line.strip() for line in lines if len(line) > 500]
    found = {}
    for name, texts in {"gsm8k": maths, "humaneval": code, "wikitext2": prose}.items():
        if len(texts) < count:
            raise InvalidInput(f"{name} has {len(texts)} prompts but count={count}; give fewer")
        chosen = [texts[i * len(texts) // count] for i in range(count)]
        tokens = [torch.tensor(row) for row in tokenizer(chosen)["input_ids"]]
        found[name] = [row[:_WIKITEXT_TOKENS] for row in tokens] if name == "wikitext2" else tokens
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
