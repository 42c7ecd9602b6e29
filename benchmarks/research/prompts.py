"""The prompts that the benchmarks share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.research import held_out
from draftwood.apps.models.prompts import PROMPTS


def prompts_of(
    data: Path | None,
    tokenizer: Any,
    count: int,
    *,
    domains: Sequence[str] = held_out.DOMAINS[:3],
    calibration: bool = False,
) -> list[list[int]]:
    """The tokens of `count` prompts a domain: from `data`, as `held_out.prompts` says, else built-in ones."""
    if data is None:
        return [tokenizer(text)["input_ids"] for texts in PROMPTS.values() for text in texts[:count]]
    by_domain = held_out.prompts(data, tokenizer, count=count, domains=domains, calibration=calibration)
    return [row.tolist() for rows in by_domain.values() for row in rows]
