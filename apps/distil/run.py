"""A run of distil in its folder: what it is, and what it has come to."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.files import journal
from draftwood.apps.files.journal_work import Work
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json
from draftwood.base.whole_files import check_writable, temporary_names

FORMAT, VERSION = "draftwood-distil", 2
RUN, ROWS, TRAIN, HELD_OUT = "run.json", "rows", "train", "held-out"
CHECKPOINT, REPORT = "checkpoint.pt", "training.json"


@attrs.frozen
class RunFolder:
    """A folder in which something is made, in one go or several; its `run.json` is a journal without records.

    Attributes:
        folder: where.
        what: it is, for messages.
        description: all that decides what comes out; JSON.
    """

    folder: Path
    what: str
    description: Mapping[str, Any]

    def check(self) -> None:
        """See that the folder is empty or missing, or that just this was begun there.

        Raises:
            InvalidInput: something else was (the message names the first difference), or it holds other
                files.
        """
        if journal.check(self._file, self._work):
            return
        if self.folder.exists() and (
            not self.folder.is_dir() or not all(map(_is_left_behind, self.folder.iterdir()))
        ):
            raise InvalidInput(
                f"{str(self.folder)!r} holds other files than {self.what}; choose another folder."
            )

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Make the folder and say in it what it is, unless that was done before; keep other processes out.

        Raises:
            InvalidInput: it cannot be written, or another process writes to it.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"The folder {str(self.folder)!r} cannot be made: {error.strerror}."
            ) from error
        check_writable(self._file)
        with journal.opened(self._file, self._work):
            yield

    @property
    def _file(self) -> Path:
        return self.folder / RUN

    @property
    def _work(self) -> Work:
        return Work(
            format=FORMAT,
            version=VERSION,
            program="draftwood distil or train",
            description={"configuration": {"what": self.what, **self.description}},
            remedy="choose another folder",
            before="which does not say what weights it is made of",
            gives_way=False,
        )


def _is_left_behind(file: Path) -> bool:
    return file.name.startswith(temporary_names(Path(RUN)))


def finished(folder: Path) -> dict[str, Any] | None:
    """The report of a run that is over, or None."""
    return _read(folder / REPORT) if (folder / REPORT).exists() else None


def save_draft(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model and its tokenizer to `folder` by way of a second folder."""

    def save(part: Path) -> None:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)

    save_beside(save, folder)


def save_beside(save: Callable[[Path], None], folder: Path) -> None:
    """Let `save` write to a new folder in `folder`, and then move its files up, each whole."""
    part = folder / "model.part"
    if part.is_symlink():
        part.unlink()
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    save(part)
    for file in part.iterdir():
        file.replace(folder / file.name)
    part.rmdir()


def _read(file: Path) -> dict[str, Any]:
    try:
        content = parse_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidInput(f"{str(file)!r} is no file of distil: {error}.") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or content.get("version") != VERSION:
        raise InvalidInput(
            f"{str(file)!r} is no file of this draftwood's distil; choose another folder with --out."
        )
    return content
