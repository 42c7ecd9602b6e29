"""The lines of a file of prompts: plain text, JSON lines, or OpenAI's batch files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.files import datasets
from draftwood.apps.files.conversations import HalfCharacter, WrongField
from draftwood.apps.files.media_files import refuse_files
from draftwood.apps.files.text_input import HALF, read_text
from draftwood.apps.generate import batch_requests
from draftwood.apps.models.asked import PromptLine, Row
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json

WRITTEN = frozenset(
    {
        "finish_reason",
        "lossless",
        "number",
        "prompt_tokens",
        "refused",
        "seed",
        "statistics",
        "text",
        "tokens",
    }
)
"""Fields of a line of texts, which no field of a prompt may be called."""


@attrs.frozen
class PromptFile:
    """The lines of a file of prompts, and a digest of all that they say."""

    lines: Sequence[PromptLine]
    digest: str


def read_prompts(file: Path) -> PromptFile:
    """The lines of a file of prompts; those that no text can follow say why.

    A file that ends in `.jsonl` has one object a line: prompts as for `draftwood bench`, or requests as
    OpenAI's batch files have them. Any other file has one prompt a line. Empty lines count for nothing.

    Raises:
        InvalidInput: the file cannot be read, or is malformed, or holds conversations of several turns.
    """
    text, said = read_text(file, halves=True), hashlib.sha256()
    lines = list[PromptLine]()
    for line, content in _json_lines(file, text) if file.suffix == ".jsonl" else _plain_lines(text):
        lines.append(line)
        said.update(json.dumps(content).encode() + b"\n")
    if not lines:
        raise InvalidInput(f"{str(file)!r} holds no prompt; give a file with at least one.")
    batch_requests.check_ids(file, lines)
    return PromptFile(lines, said.hexdigest())


def _plain_lines(text: str) -> Iterator[tuple[PromptLine, str]]:
    """Every line with what it says."""
    lines = ((place, line) for place, line in enumerate(text.split("\n"), start=1) if line.strip())
    for number, (place, line) in enumerate(lines):
        if (half := HALF.search(line)) is None:
            yield PromptLine(number=number, shown=line, rows=(Row(line),)), line
        else:
            reason = (
                f"Line {place} of the prompts, column {half.start() + 1}: a lone surrogate, half a character "
                "of UTF-16; write it anew."
            )
            yield PromptLine(number=number, shown=line, refused=reason), line


def _json_lines(file: Path, text: str) -> Iterator[tuple[PromptLine, dict[str, Any]]]:
    """Every line with what it says."""
    layout: str | None = None
    for number, (place, words, row) in enumerate(datasets.rows(file, text)):
        if layout is None:
            layout = batch_requests.LAYOUT if batch_requests.is_request(row) else _layout(file, place, row)
        try:
            if layout == batch_requests.LAYOUT:
                line = batch_requests.read(row, number=number)
            else:
                line = _line(row, layout, number=number)
        except HalfCharacter as wrong:
            reason = f"Line {place} of the prompts, column {wrong.column(words)}: {wrong}."
            line = _refused(row, layout, reason, number=number)
        except WrongField as wrong:
            raise InvalidInput(f"{str(file)!r}, line {place}: {wrong}.") from None
        yield line, row


def _layout(file: Path, place: int, row: Mapping[str, Any]) -> str:
    try:
        return datasets.layout_of(file, place, dict(row))
    except InvalidInput as error:
        raise InvalidInput(
            f"{str(error).rstrip('.')}, or custom_id and body as OpenAI's batch files."
        ) from None


def _line(row: dict[str, Any], layout: str, *, number: int) -> PromptLine:
    kept = _kept(row, layout)
    refuse_files(row)
    prompt = datasets.LAYOUTS[layout].prompt(row)
    if prompt.later:
        raise WrongField(
            f"prompt {number + 1} is a conversation of several turns; give single prompts, or use draftwood "
            "bench"
        )
    return PromptLine(number=number, shown=prompt.text, rows=(Row(prompt.text),), kept=kept)


def _refused(row: dict[str, Any], layout: str, reason: str, *, number: int) -> PromptLine:
    if layout == batch_requests.LAYOUT:
        return batch_requests.refused(row, reason, number=number)
    field = datasets.LAYOUTS[layout].field
    value = row[field]
    shown = value if isinstance(value, str) else json.dumps(value)
    return PromptLine(number=number, shown=shown, kept=_kept(row, layout), refused=reason)


def _kept(row: Mapping[str, Any], layout: str) -> dict[str, Any]:
    """The fields that are no prompt, as the line of the texts will have them.

    Raises:
        WrongField: one that it cannot have.
    """
    kept = {name: value for name, value in row.items() if name != "prompt" or layout != "prompt"}
    if taken := next((name for name in kept if name in WRITTEN or name == "prompt"), None):
        raise WrongField(
            f'the field "{taken}" has the name of a field that --out writes; give it another name'
        )
    try:
        parse_json(json.dumps(kept).encode())
    except (ValueError, RecursionError) as error:
        raise WrongField(f"a field cannot be kept in --out ({error}); take it out of the line") from None
    return kept
