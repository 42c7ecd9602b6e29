"""The real text that prompts are cut from, as token streams."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.apps.files.corpus import documents, is_text
from draftwood.apps.models import identity
from draftwood.base.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

_LEARNT = 98  # per cent of every stream; the rest, at its end, is held out


def files_of(texts: Sequence[Path]) -> dict[str, list[Path]]:
    """The files of every argument, a folder's by name.

    Raises:
        InvalidInput: an argument that is no text, is not there or is given twice, or a folder without text.
    """
    found: dict[str, list[Path]] = {}
    for text in texts:
        if text.is_dir():
            files = sorted(file for file in text.iterdir() if is_text(file))
            if not files:
                raise InvalidInput(
                    f"The folder {str(text)!r} holds no .txt, .txt.gz or .jsonl file; put one there."
                )
        elif not text.exists():
            raise InvalidInput(f"The text {str(text)!r} does not exist; name a file or folder.")
        elif not is_text(text):
            raise InvalidInput(f"{str(text)!r} is none of .txt, .txt.gz and .jsonl; convert it first.")
        else:
            files = [text]
        if str(text) in found:
            raise InvalidInput(f"The text {str(text)!r} is given twice; give it once.")
        found[str(text)] = files
    return found


def known_by(files: dict[str, list[Path]]) -> dict[str, dict[str, str]]:
    """Names and digests of all files, by which a later run knows them again."""
    return {name: {file.name: identity.of_file(file) for file in some} for name, some in files.items()}


def streams(files: dict[str, list[Path]], encoder: Any, *, longest: int) -> dict[str, tuple[Tensor, Tensor]]:
    """The tokens of every argument, each document after an end of text; the last 2 % apart, held out.

    Raises:
        InvalidInput: a file that cannot be read, or an argument too short for a prompt of `longest` tokens.
    """
    import torch

    end = [] if encoder.eos_token_id is None else [encoder.eos_token_id]
    result = {}
    for name, some in files.items():
        texts = [text for file in some for text in documents(file)]
        rows = encoder(texts, add_special_tokens=False, verbose=False)["input_ids"] if texts else []
        stream = torch.tensor([token for row in rows for token in (*end, *row)], dtype=torch.int32)
        if not len(stream):
            raise InvalidInput(f"{name!r} holds no text; give a file with some.")
        cut = len(stream) * _LEARNT // 100
        if len(stream) - cut < longest:
            raise InvalidInput(
                f"{name!r} has {len(stream)} tokens, and the {len(stream) - cut} that are held out must make "
                f"a prompt of {longest}; give more text, or shorter rows with --longest."
            )
        result[name] = stream[:cut], stream[cut:]
    return result
