"""Held-out prompts to measure a draft on: GSM8K, HumanEval, WikiText-2, MT-Bench, Spec-Bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.apps.files.datasets import read
from draftwood.base.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from torch import Tensor

_WIKITEXT_TOKENS = 64
FILES = {
    "gsm8k": "gsm8k_test.jsonl",
    "humaneval": "humaneval.jsonl",
    "wikitext2": "wikitext2_test.txt",
    "mt-bench": "mt_bench.jsonl",
    "spec-bench": "spec_bench_half.jsonl",
}
DOMAINS = tuple(FILES)
TASKS = ("retrieval", "summary", "problems", "code")


def prompts(
    folder: Path,
    tokenizer: Any,
    *,
    count: int = 20,
    domains: Sequence[str] = ("gsm8k", "humaneval", "wikitext2"),
    calibration: bool = False,
) -> dict[str, list[Tensor]]:
    """`count` prompts a domain, evenly spread over its file, each int64 `[length]`.

    Of a file every second prompt is for what is measured and reported, and the others for `calibration`:
    what chooses shapes and acceptance vectors decodes no prompt of a table.

    Problems are put as in the training text (`Question: ...`, `Answer:`), code unchanged, prose as the
    first 64 tokens of a paragraph, and the first turn of a chat as the user's.

    Raises:
        InvalidInput: an unknown domain, one with fewer prompts, or a file that cannot be read.
    """
    import torch

    by_domain = {}
    for name in domains:
        if name not in FILES:
            raise InvalidInput(f"There is no domain {name!r}{nearest(name, FILES)}")
        stored = read(folder / FILES[name])
        half = attrs.evolve(stored, prompts=stored.prompts[int(calibration) :: 2])
        chosen = [prompt.text for prompt in half.spread(count)]
        tokens = [torch.tensor(row) for row in tokenizer(chosen)["input_ids"]]
        by_domain[name] = [row[:_WIKITEXT_TOKENS] for row in tokens] if name == "wikitext2" else tokens
    return by_domain


def long_prompts(
    folder: Path, tokenizer: Any, *, count: int = 8, length: int = 1000, tasks: Sequence[str] = TASKS
) -> dict[str, list[Tensor]]:
    """`count` prompts of `length` tokens for each of `tasks`, each int64 `[length]`.

    `retrieval` and `summary` put passages of WikiText-2 before a question of Spec-Bench and before
    `Summary:`; `problems` puts solved problems of GSM8K before one, `code` definitions of HumanEval.

    Raises:
        InvalidInput: a file that cannot be read, or has too little text.
    """
    import torch

    passages, problems, code, chats = (
        read(folder / FILES[name]).prompts for name in ("wikitext2", "gsm8k", "humaneval", "spec-bench")
    )
    questions = [chat.text for chat in chats if chat.question and chat.question[1] == "qa"]
    before = {
        "retrieval": [f"{passage.text}\n\n" for passage in passages],
        "summary": [f"{passage.text}\n\n" for passage in passages],
        "problems": [f"{problem.text} {problem.answer}\n" for problem in problems],
        "code": [f"{definition.text}\n" for definition in code],
    }
    last = {
        "retrieval": questions,
        "summary": ["Summary:"],
        "problems": [problem.text for problem in problems],
        "code": [definition.text for definition in code],
    }
    rows: dict[str, list[Tensor]] = {}
    for name in tasks:
        encoded = tokenizer(before[name])["input_ids"]
        if sum(map(len, encoded)) < length:
            raise InvalidInput(f"The prompts of {name} hold too little text for {length} tokens; give fewer.")
        ends = tokenizer(last[name])["input_ids"]
        rows[name] = []
        for number in range(count):
            place = (number + 1) * len(encoded) // count - 1
            row = list(ends[place * len(ends) // len(encoded)])
            while len(row) < length:
                place -= 1
                row = encoded[place] + row
            rows[name].append(torch.tensor(row[-length:]))
    return rows
