"""Prompts that a small draft follows badly, as files for `draftwood bench`: translation and retrieval."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import typer

from benchmarks.research import held_out
from draftwood import zoo
from draftwood.apps.files.datasets import read


def hard_prompts(
    data: Annotated[Path, typer.Argument(help="Folder with the prompts of the five data sets.")],
    to: Annotated[Path, typer.Argument(help="A folder for the two files; made where it is missing.")],
    prompts: Annotated[int, typer.Option(help="Prompts a file.", min=1)] = 20,
    length: Annotated[int, typer.Option(help="Tokens of a prompt of retrieval, about.", min=32)] = 1000,
) -> None:
    """Write `translation.jsonl`, of Spec-Bench's, and `retrieval.jsonl`, passages before a question.

    \b
    Examples:
      python -m benchmarks hard-prompts data/ hard/
    """
    tokenizer = zoo.tokenizer()
    chats = read(data / held_out.FILES["spec-bench"])
    asked = [chat for chat in chats.prompts if chat.question and chat.question[1] == "translation"]
    spread = attrs.evolve(chats, prompts=tuple(asked)).spread(prompts)
    behind = held_out.long_prompts(data, tokenizer, count=prompts, length=length, tasks=["retrieval"])
    files = {
        "translation": [chat.text for chat in spread],
        "retrieval": [str(tokenizer.decode(row)) for row in behind["retrieval"]],
    }
    to.mkdir(parents=True, exist_ok=True)
    for name, texts in files.items():
        lines = (json.dumps({"prompt": text}, ensure_ascii=False) + "\n" for text in texts)
        (to / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
    typer.echo(f"{to} holds {' and '.join(f'{name}.jsonl' for name in files)}, {prompts} prompts each.")
