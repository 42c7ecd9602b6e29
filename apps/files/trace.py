"""`--trace FILE`: every round's tree and outcome as JSON, for `draftwood view` and for programs.

The layout has a version number; a change that a reader would notice raises it. docs/viewer.md describes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from draftwood import Round, RowRecord
from draftwood.apps.files.machine import versions
from draftwood.apps.files.text import IncrementalText, decode
from draftwood.decoding.generation import Generation

FORMAT, VERSION = "draftwood-trace", 3
READ = (2, 3)
"""The versions that `draftwood view` shows; 2 has other names in its statistics."""


def document(
    generation: Generation,
    *,
    tokenizer: Any,
    prompts: Sequence[Mapping[str, Any]],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """The trace of one call.

    Args:
        generation: made with `trace=True`.
        tokenizer: gives the tokens' texts.
        prompts: `text` and `tokens` of every row.
        settings: models, strategies and sampling, as they were asked for.
    """
    outputs: list[dict[str, Any]] = [
        {"text": decode(tokenizer, tokens), "tokens": tokens, "finish_reason": reason}
        for tokens, reason in zip(generation.tokens, generation.finish_reasons, strict=True)
    ]
    texts = [iter(_texts(tokenizer, p["tokens"], o["tokens"])) for p, o in zip(prompts, outputs, strict=True)]
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "settings": dict(settings),
        "prompts": [dict(prompt) for prompt in prompts],
        "outputs": outputs,
        "statistics": generation.statistics.summary(),
        "rounds": [_round(one, tokenizer, texts) for one in generation.statistics.history],
    }


def _texts(tokenizer: Any, prompt: Sequence[int], tokens: Sequence[int]) -> list[str]:
    """Returns the text that each of `tokens` adds after `prompt`.

    A token that ends within a character adds nothing; the one that completes it adds it whole.
    """
    text = IncrementalText(tokenizer, list(prompt), shown=len(prompt))
    added = [text.add([token]) for token in tokens]
    return [*added[:-1], added[-1] + text.rest()] if added else []


def _round(one: Round, tokenizer: Any, texts: Sequence[Iterator[str]]) -> dict[str, Any]:
    return {
        "seconds": one.seconds,
        "draft_seconds": one.draft_seconds,
        "target_seconds": one.target_seconds,
        "verify_seconds": one.verify_seconds,
        "draft_calls": one.draft_calls,
        "rows": [_row(record, tokenizer, texts[record.row]) for record in one.rows],
    }


def _row(record: RowRecord, tokenizer: Any, texts: Iterator[str]) -> dict[str, Any]:
    tree, outcome = record.tree, record.outcome
    assert tree is not None, "the generation was not made with trace=True"
    return {
        "row": record.row,
        "tokens": list(record.tokens),
        "texts": [next(texts) for _ in record.tokens],
        "finished": record.finished,
        "tree": {
            "tokens": tree.tokens,
            "texts": [tokenizer.decode([token]) for token in tree.tokens],
            "parents": tree.parents,
            "draft_probs": tree.draft_probs,
            "target_probs": tree.target_probs,
        },
        "outcome": {
            "path": list(outcome.path),
            "extra": outcome.extra,
            "extra_text": tokenizer.decode([outcome.extra]),
            "extra_target_prob": tree.extra_target_prob,
            "bonus": outcome.bonus,
        },
    }
