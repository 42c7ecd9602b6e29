"""Training text: gzipped files of documents, separated by a line `<|endoftext|>`."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftwood.base.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Generator, Tensor

SEPARATOR = "<|endoftext|>"


def documents(file: Path) -> list[str]:
    """The non-empty documents of one `.txt` or `.txt.gz` file, without their separators."""
    return split(content(file).decode("utf-8-sig"))


def content(file: Path) -> bytes:
    """The bytes of a file, unpacked where it ends in `.gz`."""
    data = file.read_bytes()
    return gzip.decompress(data) if file.suffix == ".gz" else data


def split(text: str) -> list[str]:
    """The non-empty documents of a text, without their separators."""
    return [document for document in text.split(f"\n{SEPARATOR}\n") if document.strip()]


def text_files(folder: Path) -> list[Path]:
    """Every `.txt` and `.txt.gz` file of `folder`, by name; raises when there is none."""
    files = sorted(file for file in folder.iterdir() if file.name.endswith((".txt", ".txt.gz")))
    if not files:
        raise FileNotFoundError(
            f"no .txt or .txt.gz file is in {str(folder)!r}; name the folder of training text"
        )
    return files


def token_stream(tokenizer: Any, file: Path) -> Tensor:
    """One file as one int32 vector: every document begins with the end-of-text token."""
    import torch

    texts = documents(file)
    rows = tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    end = tokenizer.eos_token_id
    return torch.tensor([token for row in rows for token in (end, *row)], dtype=torch.int32)


def windows(stream: Tensor, *, rows: int, length: int, generator: Generator) -> Tensor:
    """`rows` random windows of `stream`: int64 `[rows, length]`, drawn from `generator`."""
    import torch

    if len(stream) < length:
        raise InvalidInput(
            f"the text has {len(stream)} tokens but windows of {length} were asked for; "
            "give more text or a smaller length"
        )
    starts = torch.randint(len(stream) - length + 1, (rows, 1), generator=generator)
    return stream[starts + torch.arange(length)].long()
