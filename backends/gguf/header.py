"""The header of a GGUF file, read without llama.cpp.

The layout is that of the format's description (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md),
versions 2 and 3: names and values, then names and shapes of tensors.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_NUMBERS = "BbHhIif?xxQqd"
"""Formats of numbers by the type's number; 8 is text and 9 an array."""
_TEXT, _ARRAY = 8, 9
_DAMAGE = (struct.error, UnicodeDecodeError, IndexError, OverflowError, RecursionError, MemoryError)
"""Errors to which a damaged header leads."""


@attrs.frozen
class GgufHeader:
    """The header of a GGUF file.

    Attributes:
        values: single values by name; arrays are left out.
        tensors: names of the tensors.
    """

    values: Mapping[str, Any]
    tensors: frozenset[str]

    @classmethod
    def of_file(cls, file: Path) -> GgufHeader:
        """Read the header of `file`.

        Raises:
            InvalidInput: there is no such file, it is no GGUF file, or its header is damaged.
        """
        try:
            with file.open("rb") as content:
                if (start := content.read(len(MAGIC))) != MAGIC:
                    raise InvalidInput(
                        f"{str(file)!r} is no GGUF file: it begins with {start!r}; name another."
                    )
                with mmap(content.fileno(), 0, access=ACCESS_READ) as data:
                    return _Reader(data, str(file)).header()
        except OSError as error:
            raise InvalidInput(
                f"{str(file)!r} cannot be read: {error.strerror or error}; name a GGUF file on this machine."
            ) from error
        except _DAMAGE as error:
            raise InvalidInput(
                f"The header of {str(file)!r} is damaged or ends early; download the file again."
            ) from error

    @property
    def architecture(self) -> str:
        """The family of the model, such as `llama`."""
        return str(self.values.get("general.architecture", "unknown"))

    @property
    def context(self) -> int | None:
        """Tokens for which the model was made; None where the header does not say."""
        length = self.values.get(f"{self.architecture}.context_length")
        return int(length) if length else None

    @property
    def original_context(self) -> int | None:
        """Tokens beyond which the model's rotations are others; None where they are always the same."""
        if "rope_factors_long.weight" not in self.tensors:
            return None
        length = self.values.get(f"{self.architecture}.rope.scaling.original_context_length")
        return int(length) if length else self.context


class _Reader:
    """A place in the bytes of a header."""

    def __init__(self, data: mmap, name: str) -> None:
        self._data, self._name, self._place = data, name, len(MAGIC)

    def header(self) -> GgufHeader:
        version = self._number("I")
        if version not in VERSIONS:
            raise InvalidInput(
                f"{self._name!r} is a GGUF file of version {version}, or of another byte order; llama.cpp "
                f"reads versions {VERSIONS[0]} and {VERSIONS[1]}, so convert the model again."
            )
        tensors, pairs = self._number("Q"), self._number("Q")
        values = dict[str, Any]()
        for _ in range(pairs):
            name, kind = self._text(), self._number("I")
            if kind == _ARRAY:
                self._skip_array()
            else:
                values[name] = self._value(kind)
        names = set[str]()
        for _ in range(tensors):
            names.add(self._text())
            # Its shape, type and place.
            self._skip(8 * self._number("I") + 12)
        if self._place > len(self._data):
            raise IndexError(self._place)
        return GgufHeader(values, frozenset(names))

    def _number(self, kind: str) -> Any:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._place)
        self._place += struct.calcsize(f"<{kind}")
        return value

    def _text(self) -> str:
        length = self._number("Q")
        start, self._place = self._place, self._place + length
        if self._place > len(self._data):
            raise IndexError(self._place)
        return self._data[start : self._place].decode()

    def _value(self, kind: int) -> Any:
        return self._text() if kind == _TEXT else self._number(_NUMBERS[kind])

    def _skip_array(self) -> None:
        kind, count = self._number("I"), self._number("Q")
        if kind not in (_TEXT, _ARRAY):
            self._skip(count * struct.calcsize(f"<{_NUMBERS[kind]}"))
            return
        for _ in range(count):
            if kind == _ARRAY:
                self._skip_array()
            else:
                self._skip(self._number("Q"))

    def _skip(self, count: int) -> None:
        self._place += count
