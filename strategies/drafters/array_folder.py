"""A folder of arrays with a header that says what they are: written whole, and checked when it is read."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs
import numpy as np

from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json

HEADER = "index.json"


@attrs.frozen
class ArrayFolder:
    """A kind of folder with arrays, which it writes and reads.

    The header is `index.json`. It holds the fields that it is given, with format, version and a checksum of
    every array; an array `a` is the file `a.npy`.

    Attributes:
        format: what the header calls it.
        version: of what is read and written.
        what: the word for it in errors, such as "index".
        remedy: what to do about one that cannot be read, such as "build it again".
        none: what to do where there is none.
    """

    format: str
    version: int
    what: str
    remedy: str
    none: str

    def write(
        self, folder: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], header: Mapping[str, Any]
    ) -> int:
        """Write `arrays` and `header` to `folder`, made if need be; returns the bytes written.

        A process that has older files of this folder open keeps those.

        Raises:
            InvalidInput: `folder` cannot be written, or holds something else.
        """
        path = Path(folder)
        self.check_free(path)
        files = [path / f"{name}.npy" for name in arrays]
        try:
            path.mkdir(parents=True, exist_ok=True)
            for file, values in zip(files, arrays.values(), strict=True):
                with _new(_temporary(file)) as content:
                    np.save(content, values, allow_pickle=False)
            described = {
                "format": self.format,
                "version": self.version,
                **header,
                "checksums": {file.name: _checksum(_temporary(file)) for file in files},
            }
            with _new(_temporary(path / HEADER)) as content:
                content.write(json.dumps(described, indent=1).encode())
            files.append(path / HEADER)
            for file in files:
                _temporary(file).replace(file)
            return sum(file.stat().st_size for file in files)
        except OSError as error:
            raise InvalidInput(
                f"The {self.what} cannot be written to {str(path)!r}: {error.strerror}; name another folder."
            ) from error

    def check_free(self, folder: str | os.PathLike[str]) -> None:
        """Raise `InvalidInput` unless `folder` can be written to without harm to anything else."""
        path = Path(folder)
        if path.is_dir() and any(path.iterdir()) and self._other(path):
            problem = "holds other files"
        elif path.exists() and not path.is_dir():
            problem = "is a file"
        else:
            return
        raise InvalidInput(f"{str(path)!r} {problem}; name a new folder for the {self.what}.")

    def read(
        self, folder: str | os.PathLike[str], arrays: Sequence[str], sizes: Sequence[str]
    ) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """The arrays of these names, mapped into memory, and the header; the files are read once, as a check.

        Args:
            sizes: fields of the header that are integers above 0. Its `vocabulary` is a text or None.

        Raises:
            InvalidInput: there is none, it is of another version, or its files are not what was written.
        """
        path = Path(folder)
        names = [f"{name}.npy" for name in arrays]
        header = self._header(path, names, sizes)
        for name, checksum in header["checksums"].items():
            try:
                found = _checksum(path / name)
            except FileNotFoundError:
                raise self.corrupt(path, f"{name} is missing") from None
            if found != checksum:
                raise self.corrupt(path, f"{name} is not what was written")
        try:
            # A plain view of the map: numpy's own class for maps is slow to index.
            loaded = [np.asarray(np.load(path / name, mmap_mode="r")) for name in names]
        except (OSError, ValueError, EOFError) as error:
            raise self.corrupt(path, str(error).splitlines()[0]) from error
        return dict(zip(arrays, loaded, strict=True)), header

    def corrupt(self, folder: str | os.PathLike[str], problem: str) -> InvalidInput:
        """The error that says so."""
        return InvalidInput(f"The {self.what} in {str(folder)!r} is corrupt ({problem}); {self.remedy}.")

    def _other(self, path: Path) -> bool:
        """Whether the files in `path` are of no folder of this kind."""
        try:
            header = json.loads((path / HEADER).read_bytes())
        except (OSError, ValueError, RecursionError):
            return not (path / HEADER).exists()
        return isinstance(header, dict) and header.get("format", self.format) != self.format

    def _header(self, folder: Path, names: Sequence[str], sizes: Sequence[str]) -> dict[str, Any]:
        """Returns the content of `index.json`, every field of the right type."""
        try:
            header = parse_json((folder / HEADER).read_bytes())
        except OSError as error:
            raise InvalidInput(f"There is no {self.what} in {str(folder)!r}; {self.none}.") from error
        except ValueError as error:
            raise self.corrupt(folder, f"{HEADER}: {error}") from error
        if not isinstance(header, dict) or header.get("format") != self.format:
            raise self.corrupt(folder, f"{HEADER} does not describe one")
        if header.get("version") != self.version:
            raise InvalidInput(
                f"The {self.what} in {str(folder)!r} is of version {header.get('version')!r:.40}, and this "
                f"draftwood reads version {self.version}; {self.remedy}."
            )
        sums, numbers = header.get("checksums"), [header.get(size) for size in sizes]
        if (
            not all(type(number) is int and number > 0 for number in numbers)
            or not isinstance(header.get("vocabulary", 0), str | None)
            or not isinstance(sums, dict)
            or set(sums) != set(names)
        ):
            raise self.corrupt(folder, f"{HEADER} lacks a field or holds a wrong one")
        return header


def _checksum(file: Path) -> int:
    total = 0
    with file.open("rb") as content:
        while part := content.read(2**20):
            total = zlib.crc32(part, total)
    return total


def _new(file: Path) -> BinaryIO:
    """A file to write to in place of one that a broken run left, or of a link."""
    file.unlink(missing_ok=True)
    return file.open("xb")


def _temporary(file: Path) -> Path:
    """Where a file is written before it replaces the old one."""
    return file.with_name(f"{file.name}.new")
