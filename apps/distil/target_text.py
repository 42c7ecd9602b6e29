"""The text that a target writes for training: its length, its sources, and the held-out part."""

from __future__ import annotations

from pathlib import Path
from statistics import median_low
from typing import Any

import attrs

from draftwood.apps.distil import texts
from draftwood.apps.models import by_name as models
from draftwood.apps.models import identity
from draftwood.apps.terminal.progress import progress
from draftwood.base.errors import InvalidInput
from draftwood.zoo.distil.rows import RowPlan, Rows, written

_SHORT = (32, 96, 160)  # prompts of short rows
_LONGEST = 1500


def source(
    name: str, target: Any, tokenizer: Any, files: dict[str, list[Path]], plan: RowPlan
) -> dict[str, Any]:
    """All that decides what the model `target`, called `name`, writes, but how much of it; JSON."""
    return {
        "target": name,
        "target_files": identity.of_model(name),
        "precision": str(target.dtype),
        "vocabulary": models.vocabulary_digest(tokenizer),
        "texts": texts.known_by(files),
        "rows": attrs.asdict(attrs.evolve(plan, shards=0)),
    }


def prompt_lengths(longest: int | None, new: int, context: int | None) -> tuple[int, ...]:
    """Lengths of prompts: short ones, and between them two of which rows become long."""
    length = longest or min(_LONGEST, context or _LONGEST)
    if context is not None and length > context:
        raise InvalidInput(
            f"longest is {length} but the models were made for {context} tokens; give at most that many."
        )
    short = tuple(prompt for prompt in _SHORT if prompt + new <= length)
    if not short:
        raise InvalidInput(
            f"Rows of {length} tokens have no room for a prompt of {_SHORT[0]} and {new} new tokens; give a "
            "smaller --new-tokens or a larger --longest."
        )
    most = length - new
    if most <= 2 * _SHORT[-1]:
        return short
    return (_SHORT[0], length * 2 // 3, _SHORT[1], most, _SHORT[2])


def shown(target: Any, streams: dict[str, Any], folder: Path, plan: RowPlan, what: str) -> list[Rows]:
    """The rows of `plan`, written now or before, with their progress."""
    return list(progress(written(target, streams, folder, plan=plan), what, total=plan.shards))


def exam(plan: RowPlan) -> RowPlan:
    """Returns the held-out rows: every temperature, after middling and after the longest prompts."""
    temperatures = tuple(sorted(set(plan.temperatures)))
    prompts = tuple(sorted({median_low(plan.prompts), max(plan.prompts)}))
    return attrs.evolve(
        plan,
        shards=len(temperatures) * len(prompts),
        temperatures=temperatures,
        prompts=prompts,
        seed=plan.seed + 1,
    )
