"""Held-out prompts to measure a draft on: GSM8K, HumanEval, WikiText-2, MT-Bench, Spec-Bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.apps.datasets import read
from draftwood.errors import InvalidInput, nearest

if TYPE_CHECKING:
    from torch import Tensor

_WIKITEXT_TOKENS = 64
_FILES = {
    "gsm8k": "gsm8k_test.jsonl",
    "humaneval": "humaneval.jsonl",
    "wikitext2": "wikitext2_test.txt",
    "mt-bench": "mt_bench.jsonl",
    "spec-bench": "spec_bench_half.jsonl",
}
DOMAINS = tuple(_FILES)


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

    Problems are put as in the training text (`Question: ...`, `Answer:`), code as it stands, prose as the
    first 64 tokens of a paragraph, and the first turn of a chat as the user's.

    Raises:
        InvalidInput: an unknown domain, one with fewer prompts, or a file that cannot be read.
    """
    import torch

    by_domain = {}
    for name in domains:
        if name not in _FILES:
            raise InvalidInput(f"There is no domain {name!r}{nearest(name, _FILES)}")
        stored = read(folder / _FILES[name])
        half = attrs.evolve(stored, prompts=stored.prompts[int(calibration) :: 2])
        chosen = [prompt.text for prompt in half.spread(count)]
        tokens = [torch.tensor(row) for row in tokenizer(chosen)["input_ids"]]
        by_domain[name] = [row[:_WIKITEXT_TOKENS] for row in tokens] if name == "wikitext2" else tokens
    return by_domain
