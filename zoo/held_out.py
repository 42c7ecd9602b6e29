"""Held-out prompts to measure a draft on: GSM8K, HumanEval, WikiText-2, MT-Bench, Spec-Bench."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from torch import Tensor

_WIKITEXT_TOKENS = 64


def prompts(
    folder: Path,
    tokenizer: Any,
    *,
    count: int = 20,
    domains: Sequence[str] = ("gsm8k", "humaneval", "wikitext2"),
) -> dict[str, list[Tensor]]:
    """`count` prompts a domain, evenly spread over its file, each int64 `[length]`.

    Problems are put as in the training text (`Question: ...`, `Answer:`), code as it stands, prose as the
    first 64 tokens of a paragraph, and the first turn of a chat as the user's.

    Raises:
        InvalidInput: an unknown domain, or one with fewer prompts.
        OSError: a file that cannot be read.
    """
    import torch

    found = {}
    for name in domains:
        if name not in _TEXTS:
            raise InvalidInput(f"There is no domain {name!r}{nearest(name, _TEXTS)}")
        texts = _TEXTS[name](folder)
        if len(texts) < count:
            raise InvalidInput(f"{name} has {len(texts)} prompts but count={count}; give fewer")
        chosen = [texts[i * len(texts) // count] for i in range(count)]
        tokens = [torch.tensor(row) for row in tokenizer(chosen)["input_ids"]]
        found[name] = [row[:_WIKITEXT_TOKENS] for row in tokens] if name == "wikitext2" else tokens
    return found


def _problems(folder: Path) -> list[str]:
    return [f"Question: {row['question']}\nAnswer:" for row in _rows(folder / "gsm8k_test.jsonl")]


def _code(folder: Path) -> list[str]:
    return [row["prompt"] for row in _rows(folder / "humaneval.jsonl")]


def _prose(folder: Path) -> list[str]:
    lines = (folder / "wikitext2_test.txt").read_text(encoding="utf-8").splitlines()
    return [line.strip() for line in lines if len(line) > 500]


def _turns(folder: Path, file: str) -> list[str]:
    return [f"User: {row['turns'][0]}\nAssistant:" for row in _rows(folder / file)]


_TEXTS: dict[str, Callable[[Path], list[str]]] = {
    "gsm8k": _problems,
    "humaneval": _code,
    "wikitext2": _prose,
    "mt-bench": partial(_turns, file="mt_bench.jsonl"),
    "spec-bench": partial(_turns, file="spec_bench_half.jsonl"),
}
DOMAINS = tuple(_TEXTS)


def _rows(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
