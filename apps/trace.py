"""`--trace FILE`: every round's tree and outcome as JSON, for `draftwood view` and for programs.

The layout has a version number; a change that a reader would notice raises it. docs/viewer.md describes it.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from draftwood import Round, RowRecord
from draftwood.apps.machine import versions
from draftwood.apps.text import IncrementalText, decode
from draftwood.errors import InvalidInput
from draftwood.generation import Generation

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
    """What each of `tokens` adds to the text behind `prompt`.

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


def check_writable(file: Path) -> None:
    """Raise `InvalidInput` where `file` cannot be written, before any work is done for it."""
    folder = file.resolve().parent
    if file.is_dir():
        raise InvalidInput(f"{str(file)!r} is a folder; name a file to write.")
    if not folder.is_dir():
        raise InvalidInput(f"The folder {str(folder)!r} does not exist; make it first.")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"The folder {str(folder)!r} cannot be written to; choose another.")


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `file` whole or not at all."""
    write_text(file, json.dumps(content, allow_nan=False, indent=1) + "\n")


def write_text(file: Path, text: str) -> None:
    """Write `text` to `file` whole or not at all."""
    # In a locale of another encoding, a file's name from the command line holds bytes as half characters.
    write_bytes(file, [text.encode("utf-8", "surrogateescape")])


def write_bytes(file: Path, chunks: Iterable[bytes]) -> None:
    """Write `chunks` to `file` whole or not at all; when this returns, they survive whatever happens.

    Raises:
        InvalidInput: they cannot be written, as on a full disk.
    """
    handle, temporary = tempfile.mkstemp(dir=file.resolve().parent, prefix=f".{file.name}-")
    try:
        with os.fdopen(handle, "wb") as out:
            out.writelines(chunks)
            out.flush()
            os.fsync(out.fileno())
        # mkstemp keeps its file to the owner; what is written is as readable as any file the user makes.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)
        os.replace(temporary, file)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
            raise InvalidInput(f"{str(file)!r} cannot be written: {reason}.") from error
        raise
