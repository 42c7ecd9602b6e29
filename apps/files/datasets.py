"""Prompts from files: JSON lines and plain text, with the layouts of the common data sets recognised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.files.text_input import HALF, half_character, read_text
from draftwood.base.errors import InvalidInput

_PARAGRAPH = 500  # characters that a paragraph of WikiText has at least
_HEADING = re.compile(r"^ = .+ = $", re.MULTILINE)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


@attrs.frozen
class Prompt:
    """One prompt.

    Attributes:
        text: what the model continues.
        answer: the number that a right answer ends with, where the data set has it.
        later: the texts after the model's answers in a conversation, one for each later turn.
        question: number and category of a question of Spec-Bench.
        user: the bare message of the user in a conversation; None where `text` is it.
    """

    text: str
    answer: str | None = None
    later: tuple[str, ...] = ()
    question: tuple[int | str, str] | None = None
    user: str | None = None

    @property
    def message(self) -> str:
        """Returns the text that a chat template takes as the user's first message."""
        return self.text if self.user is None else self.user


@attrs.frozen
class DataSet:
    """The prompts of one file.

    Attributes:
        name: the file's name without its ending.
        layout: how it was read; one of the keys of `LAYOUTS`, or `"text"` or `"wikitext"`.
        prompts: in the file's order.
        stops: strings after which an answer has ended, should a text go on.
    """

    name: str
    layout: str
    prompts: tuple[Prompt, ...]
    stops: tuple[str, ...] = ()

    def spread(self, prompts: int, *, turns: int = 0) -> list[Prompt]:
        """Returns so many prompts, evenly spread over the file, with so many turns at most; 0: all turns.

        Raises:
            InvalidInput: it has fewer prompts.
        """
        if len(self.prompts) < prompts:
            raise InvalidInput(
                f"{self.name} has {len(self.prompts)} prompts but prompts={prompts}; give fewer."
            )
        later = slice(turns - 1 if turns else None)
        chosen = (self.prompts[i * len(self.prompts) // prompts] for i in range(prompts))
        return [attrs.evolve(prompt, later=prompt.later[later]) for prompt in chosen]


@attrs.frozen
class Layout:
    """A way in which the rows of a JSONL file become prompts.

    Attributes:
        field: the field that shows the layout and must be in every row.
        prompt: makes the prompt of a row; raises `WrongField`.
        stops: as in `DataSet`.
    """

    field: str
    prompt: Callable[[dict[str, Any]], Prompt]
    stops: tuple[str, ...] = ()


class WrongField(Exception):
    """A field that cannot be used: its name and what is wrong, as the end of a sentence."""


class HalfCharacter(WrongField):
    """The field of this name holds half a character, which no tokenizer takes."""

    def __init__(self, field: str) -> None:
        super().__init__(f'"{field}" holds a lone surrogate, half a character of UTF-16; write it anew')
        self.field = field

    def column(self, line: str) -> int:
        """Where it is in the line as it is in the file, counted from 1."""
        return half_character(line, self.field)


def read(file: Path) -> DataSet:
    """The data set in `file`: JSON lines where it ends in `.jsonl`, else plain text.

    JSON lines: `question` (GSM8K, whose `answer` is scored), `turns` (MT-Bench and Spec-Bench, what a user
    says in a conversation), or `prompt` (HumanEval and anyone's own; continued unchanged). Plain
    text: the long paragraphs of WikiText, or else every paragraph.

    Raises:
        InvalidInput: it cannot be read, or is malformed; the message names file, line and field.
    """
    text = read_text(file)
    data_set = _json_lines(file, text) if file.suffix == ".jsonl" else _plain(file, text)
    if not data_set.prompts:
        raise InvalidInput(f"{str(file)!r} holds no prompt; give a file with at least one.")
    return data_set


def _plain(file: Path, text: str) -> DataSet:
    if _HEADING.search(text):
        lines = (line.strip() for line in text.splitlines() if len(line) > _PARAGRAPH)
        return DataSet(file.stem, "wikitext", tuple(map(Prompt, lines)))
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    return DataSet(file.stem, "text", tuple(Prompt(part) for part in paragraphs if part))


def _json_lines(file: Path, text: str) -> DataSet:
    layout: str | None = None
    prompts = []
    for line, words, row in rows(file, text):
        layout = layout or layout_of(file, line, row)
        try:
            prompts.append(LAYOUTS[layout].prompt(row))
        except HalfCharacter as wrong:
            raise InvalidInput(
                f"{str(file)!r}, line {line}, column {wrong.column(words)}: {wrong}."
            ) from None
        except WrongField as wrong:
            raise InvalidInput(f"{str(file)!r}, line {line}: {wrong}.") from None
    return DataSet(file.stem, layout or "prompt", tuple(prompts), LAYOUTS[layout].stops if layout else ())


def rows(file: Path, text: str) -> Iterator[tuple[int, str, dict[str, Any]]]:
    """Every row with the number of its line, and the line; one without text is passed over.

    Raises:
        InvalidInput: a line that is no JSON object.
    """
    # splitlines would also split within a JSON string, at characters that JSON allows there.
    for line, words in enumerate(text.split("\n"), start=1):
        if not words.strip():
            continue
        try:
            row = json.loads(words)
        except json.JSONDecodeError as error:
            raise InvalidInput(
                f"{str(file)!r}, line {line}: not JSON ({error.msg} at column {error.colno})."
            ) from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or levels
            raise InvalidInput(
                f"{str(file)!r}, line {line}: a number or the nesting is too long; correct it."
            ) from error
        if not isinstance(row, dict):
            raise InvalidInput(
                f"{str(file)!r}, line {line}: {type(row).__name__} instead of an object with fields."
            )
        yield line, words, row


def layout_of(file: Path, line: int, row: dict[str, Any]) -> str:
    """The key of `LAYOUTS` that the first row shows.

    Raises:
        InvalidInput: none does.
    """
    for name, layout in LAYOUTS.items():
        if layout.field in row:
            return name
    known = ", ".join(f'"{layout.field}"' for layout in LAYOUTS.values())
    raise InvalidInput(f"{str(file)!r}, line {line}: none of the fields {known}; give one of them.")


def _text(row: dict[str, Any], field: str) -> str:
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        shown = json.dumps(value, ensure_ascii=False)[:40] if field in row else "missing"
        raise WrongField(f'"{field}" is {shown}; give text')
    if HALF.search(value):
        raise HalfCharacter(field)
    return value


def _problem(row: dict[str, Any]) -> Prompt:
    question = _text(row, "question")
    answer = last_number(_text(row, "answer")) if "answer" in row else None
    return Prompt(f"Question: {question}\nAnswer:", answer)


def _chat(row: dict[str, Any]) -> Prompt:
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns:
        shown = json.dumps(turns, ensure_ascii=False)[:40] if "turns" in row else "missing"
        raise WrongField(f'"turns" is {shown}; give a list of texts')
    named = {f"turns[{i}]": turn for i, turn in enumerate(turns)}
    first, *later = (f"User: {_text(named, name)}\nAssistant:" for name in named)
    return Prompt(first, _reference(row), tuple(f"\n{text}" for text in later), _question(row), user=turns[0])


def _question(row: dict[str, Any]) -> tuple[int | str, str] | None:
    number, category = row.get("question_id"), row.get("category")
    if isinstance(number, (int, str)) and isinstance(category, str):
        return number, category
    return None


def _reference(row: dict[str, Any]) -> str | None:
    """The number of Spec-Bench's problems, which are written as GSM8K's; other references score nothing."""
    reference = row.get("reference")
    texts = reference if isinstance(reference, list) else [reference]
    return next((last_number(text) for text in texts if isinstance(text, str) and "####" in text), None)


def _as_it_stands(row: dict[str, Any]) -> Prompt:
    return Prompt(_text(row, "prompt"))


LAYOUTS = {
    "problems": Layout("question", _problem, stops=("\nQuestion:",)),
    "chat": Layout("turns", _chat, stops=("\nUser:",)),
    "prompt": Layout("prompt", _as_it_stands),
}


def last_number(text: str) -> str | None:
    """The last number in `text` in a canonical form, or None: what GSM8K's exact match compares."""
    for number in reversed(_NUMBER.findall(text)):
        try:
            return str(Decimal(number.replace(",", "")).normalize() + 0)
        except InvalidOperation:
            continue
    return None


def right(text: str, answer: str, stops: tuple[str, ...] = ()) -> bool:
    """Whether the last number of `text`, cut before the first of `stops`, is `answer`.

    Source: GSM8K (Cobbe et al. 2021, arXiv 2110.14168): exact match of the final number.
    """
    for stop in stops:
        text = text.split(stop, 1)[0]
    return last_number(text) == answer
