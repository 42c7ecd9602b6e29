"""A run of distil in its folder: what it is, and what it has come to."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps import trace
from draftwood.errors import InvalidInput
from draftwood.json_text import parse_json

FORMAT, VERSION = "draftwood-distil", 1
RUN, ROWS, TRAIN, HELD_OUT = "run.json", "rows", "train", "held-out"
CHECKPOINT, REPORT = "checkpoint.pt", "training.json"


@attrs.frozen
class Work:
    """Something that is made in a folder, in one go or several.

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
            InvalidInput: something else was (the message names the first difference), or other files stand
                there.
        """
        file = self.folder / RUN
        if not file.exists():
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise InvalidInput(
                    f"{str(self.folder)!r} holds other files than {self.what}; choose another folder."
                )
            return
        stored, known = _read(file), json.loads(json.dumps(self._content))
        for key in (*known, *stored):
            if stored.get(key) != known.get(key):
                raise InvalidInput(
                    f"The folder {str(self.folder)!r} holds {self.what} of another kind: its {key} is "
                    f"{_short(stored.get(key))}, not {_short(known.get(key))}; choose another folder."
                )

    def begin(self) -> None:
        """Make the folder and say in it what it is, unless that was done before.

        Raises:
            InvalidInput: it cannot be written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"The folder {str(self.folder)!r} cannot be made: {error.strerror}."
            ) from error
        if not (self.folder / RUN).exists():
            trace.check_writable(self.folder / RUN)
            trace.write_json(self.folder / RUN, self._content)

    @property
    def _content(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, "what": self.what, **self.description}


def finished(folder: Path) -> dict[str, Any] | None:
    """The report of a run that is over, or None."""
    return _read(folder / REPORT) if (folder / REPORT).exists() else None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes out of `folder`, where the system can do so.

    Raises:
        InvalidInput: one is there already.
    """
    with (folder / ".lock").open("wb") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows
            pass
        except BlockingIOError:
            raise InvalidInput(f"Another process writes to {str(folder)!r}; wait for it.") from None
        yield


def save_draft(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model and its tokenizer to `folder` by way of a folder beside them."""

    def save(part: Path) -> None:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)

    save_beside(save, folder)


def save_beside(save: Callable[[Path], None], folder: Path) -> None:
    """Let `save` write to a folder in `folder`, and then move its files up, each whole."""
    part = folder / "model.part"
    shutil.rmtree(part, ignore_errors=True)
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


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
