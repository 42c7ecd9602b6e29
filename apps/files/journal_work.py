"""`Work`: the work that a journal belongs to, by the first line of its file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json


@attrs.frozen(kw_only=True)
class Work:
    """The work that a journal belongs to: everything that determines its lines.

    Attributes:
        format: the name of the journal's format.
        version: of that format; journals of another are refused.
        program: what writes such journals, for messages.
        description: the other fields of the first line; JSON.
        same: the ones that the work of a journal must have in common with this one; each is a mapping.
        free: keys in them that may differ: the journal's own value counts.
        remedy: what to do about a journal of other work, as the end of a sentence.
        before: why a journal of an older version cannot go on, as the end of a sentence.
        gives_way: whether one of other work without a record is replaced.
    """

    format: str
    version: int
    program: str
    description: Mapping[str, Any]
    same: tuple[str, ...] = ("configuration",)
    free: frozenset[str] = frozenset()
    remedy: str
    before: str = "which this version of draftwood does not continue"
    gives_way: bool = True

    @property
    def first_line(self) -> dict[str, Any]:
        """The first line of a new journal, as it will be read again."""
        described: dict[str, Any] = json.loads(json.dumps(dict(self.description), allow_nan=False))
        return {"format": self.format, "version": self.version, **described}

    def read(self, line: bytes, path: Path) -> dict[str, Any]:
        """The content of the first line of `path`.

        Raises:
            InvalidInput: it is none of this format and version.
        """
        try:
            found = parse_json(line) if line.endswith(b"\n") else None
        except ValueError:
            found = None
        if not isinstance(found, dict) or found.get("format") != self.format:
            raise InvalidInput(
                f"{str(path)!r} is no file of {self.program} and is left as it is; move it away, or "
                f"{self.remedy}."
            )
        if (version := found.get("version")) != self.version:
            raise InvalidInput(
                f"{str(path)!r} is of version {version!r:.40}, {self.before}; move it away, or {self.remedy}."
            )
        if odd := next((part for part in self.same if not isinstance(found.get(part), dict)), None):
            raise InvalidInput(f"{str(path)!r} is damaged: its first line has no {odd}; {self.remedy}.")
        return found

    def check(self, first: Mapping[str, Any], path: Path) -> None:
        """Raise `InvalidInput` with what differs unless the first line of `path` is of this work."""
        own, odd = self.first_line, list[str]()
        for part in self.same:
            free = {key: first[part][key] for key in self.free & first[part].keys()}
            odd += differences(first[part], own[part] | free)
        if odd:
            raise InvalidInput(f"{str(path)!r} is of another run: {listed(odd)}; {self.remedy}.")


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, within: str = "") -> list[str]:
    """Returns the differences between two descriptions of a run, each as a piece of a sentence.

    Args:
        old: one that was read.
        new: the other.
        within: the prefix of their keys.
    """
    found = list[str]()
    for name in dict.fromkeys((*old, *new)):
        was, now = old.get(name), new.get(name)
        if isinstance(was, dict) and isinstance(now, dict):
            found += differences(was, now, within=f"{within}{name}.")
        elif was != now:  # numbers that went through JSON, where 0 and 0.0 are two things, are equal
            found.append(f"{within}{name} was {_short(was)} and is {_short(now)}")
    return found


def listed(odd: list[str]) -> str:
    """The first few of many differences."""
    return "; ".join(odd[:3]) + (f", and {len(odd) - 3} more" if len(odd) > 3 else "")


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
