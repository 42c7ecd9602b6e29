"""Prompts from files: JSON lines and plain text, with the layouts of the common data sets recognised."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.files.conversations import (
    HalfCharacter,
    Turn,
    WrongField,
    message_conversation,
    shared_conversation,
    text_of,
    turns_in,
)
from draftwood.apps.files.media_files import files_in, refuse_files
from draftwood.apps.files.text_input import read_text
from draftwood.apps.terminal.cli_errors import first_line
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
        later: the texts after `text` in a conversation, one for each later turn; each follows the model's
            answer, or begins with the answer that the file gives.
        question: number and category of a question of Spec-Bench.
        turns: of a conversation, for a chat template; empty where `text` is a user's only message.
        system: the system message of a conversation.
        files: that belong to the text, by kind: `image`, `audio` and `video`.
    """

    text: str
    answer: str | None = None
    later: tuple[str, ...] = ()
    question: tuple[int | str, str] | None = None
    turns: tuple[Turn, ...] = ()
    system: str | None = None
    files: Mapping[str, tuple[Path, ...]] = attrs.field(factory=dict)

    @property
    def chat(self) -> tuple[Turn, ...]:
        """The turns that a chat template takes."""
        return self.turns or (Turn(self.text),)

    def is_answered(self, turn: int) -> bool:
        """Returns whether the file gives the answer to a turn, so that the model's own is not needed."""
        return self.chat[turn].answer is not None


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
        return [
            attrs.evolve(prompt, later=prompt.later[later], turns=prompt.turns[: turns or None])
            for prompt in chosen
        ]


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


def read(file: Path, *, media: bool = False) -> DataSet:
    """The data set in `file`: JSON lines (`.jsonl`), one JSON array (`.json`), or else plain text.

    Rows: `question` (GSM8K, whose `answer` is scored), `turns` (MT-Bench and Spec-Bench, what a user
    says in a conversation), `conversations` (ShareGPT) or `messages` (with the answers of assistants), or
    `prompt` (HumanEval and anyone's own; continued unchanged). Plain text: the long paragraphs of WikiText,
    or else every paragraph.

    Args:
        file: the file.
        media: whether the fields `image`, `audio` and `video` next to a `prompt` may name files.

    Raises:
        InvalidInput: it cannot be read, or is malformed; the message names file, line and field.
    """
    text = read_text(file)
    if file.suffix == ".json":
        text = _as_lines(file, text)
    data_set = _json_lines(file, text, media) if file.suffix in (".json", ".jsonl") else _plain(file, text)
    if not data_set.prompts:
        raise InvalidInput(f"{str(file)!r} holds no prompt; give a file with at least one.")
    return data_set


def _plain(file: Path, text: str) -> DataSet:
    if _HEADING.search(text):
        lines = (line.strip() for line in text.splitlines() if len(line) > _PARAGRAPH)
        return DataSet(file.stem, "wikitext", tuple(map(Prompt, lines)))
    paragraphs = (part.strip() for part in re.split(r"\n\s*\n", text))
    return DataSet(file.stem, "text", tuple(Prompt(part) for part in paragraphs if part))


def _as_lines(file: Path, text: str) -> str:
    """Returns the rows of a JSON array as lines."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{str(file)!r} is not JSON ({first_line(error)}); give an array of objects."
        ) from error
    if not isinstance(found, list):
        raise InvalidInput(
            f"{str(file)!r} holds no array; give one, or a .jsonl file with one object per line."
        )
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in found)


def _json_lines(file: Path, text: str, media: bool) -> DataSet:
    layout: str | None = None
    prompts = []
    for line, words, row in rows(file, text):
        layout = layout or layout_of(file, line, row)
        try:
            files = {}
            if media and layout == "prompt":
                files = files_in(row, folder=file.parent)
            else:
                refuse_files(row)
            wordless = bool(files) and row.get("prompt") == ""  # what hears or sees needs no words
            prompt = Prompt("") if wordless else LAYOUTS[layout].prompt(row)
            prompts.append(attrs.evolve(prompt, files=files))
        except HalfCharacter as wrong:
            column = f", column {wrong.column(words)}" if file.suffix == ".jsonl" else ""
            raise InvalidInput(f"{_place(file, line)}{column}: {wrong}.") from None
        except WrongField as wrong:
            raise InvalidInput(f"{_place(file, line)}: {wrong}.") from None
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
                f"{_place(file, line)}: not JSON ({error.msg} at column {error.colno})."
            ) from error
        except (ValueError, RecursionError) as error:  # a number of thousands of digits, or levels
            raise InvalidInput(
                f"{_place(file, line)}: a number or the nesting is too long; correct it."
            ) from error
        if not isinstance(row, dict):
            raise InvalidInput(
                f"{_place(file, line)}: {type(row).__name__} instead of an object with fields."
            )
        yield line, words, row


def _place(file: Path, line: int) -> str:
    """Returns where a row is: its line, or its number in an array."""
    return f"{str(file)!r}, {'row' if file.suffix == '.json' else 'line'} {line}"


def layout_of(file: Path, line: int, row: dict[str, Any]) -> str:
    """The key of `LAYOUTS` that the first row shows.

    Raises:
        InvalidInput: none does.
    """
    for name, layout in LAYOUTS.items():
        if layout.field in row:
            return name
    known = ", ".join(f'"{layout.field}"' for layout in LAYOUTS.values())
    raise InvalidInput(f"{_place(file, line)}: none of the fields {known}; give one of them.")


def _problem(row: dict[str, Any]) -> Prompt:
    question = text_of(row, "question")
    answer = last_number(text_of(row, "answer")) if "answer" in row else None
    return Prompt(f"Question: {question}\nAnswer:", answer)


def _chat(row: dict[str, Any]) -> Prompt:
    return attrs.evolve(_conversation(None, turns_in(row)), answer=_reference(row), question=_question(row))


def _conversation(system: str | None, turns: tuple[Turn, ...]) -> Prompt:
    """Returns a conversation, with texts for models that know no chat."""
    first, *rest = (f"User: {turn.user}\nAssistant:" for turn in turns)
    answered = ("" if turn.answer is None else f" {turn.answer}" for turn in turns)
    later = tuple(f"{answer}\n{text}" for answer, text in zip(answered, rest, strict=False))
    return Prompt(f"{system}\n{first}" if system else first, later=later, turns=turns, system=system)


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
    return Prompt(text_of(row, "prompt"))


_USER = ("\nUser:",)
LAYOUTS = {
    "problems": Layout("question", _problem, stops=("\nQuestion:",)),
    "chat": Layout("turns", _chat, stops=_USER),
    "sharegpt": Layout("conversations", lambda row: _conversation(*shared_conversation(row)), stops=_USER),
    "messages": Layout("messages", lambda row: _conversation(*message_conversation(row)), stops=_USER),
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
