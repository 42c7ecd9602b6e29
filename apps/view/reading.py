"""A trace from a file, checked field by field, and arranged as the page needs it: by row, then by round."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import attrs

from draftwood.apps.files.trace import FORMAT, READ
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json

_AGAIN = "make the trace again with `draftwood generate --trace`"
_KINDS = {str: "text", int: "an integer", float: "a number", bool: "true or false", list: "a list"}
_NUMBERS = ("tokens_per_round", "acceptance_rate", "new_tokens", "seconds", "prefill_seconds")


def read(file: Path) -> dict[str, Any]:
    """Returns the parts of the trace in `file` that the page shows.

    Raises:
        InvalidInput: no JSON, not a trace, a trace of another version, or a field that is missing or
            cannot be; the message names the line or the field.
    """
    trace = _Entry(str(file), "", _load(file))
    if not isinstance(trace.value, dict) or trace.value.get("format") != FORMAT:
        raise InvalidInput(
            f"{trace.file!r} is no trace; give a file that `draftwood generate --trace` wrote."
        )
    if (version := trace.value.get("version")) not in READ:
        raise InvalidInput(
            f"{trace.file!r} is a trace of version {version!r:.40}, and this draftwood reads "
            f"versions {' and '.join(map(str, READ))}; {_AGAIN}."
        )
    outputs, statistics = trace.each("outputs"), trace.field("statistics", dict)
    rows: list[dict[str, Any]] = [
        {"prompt": prompt.get("text", str), "finished": output.get("finish_reason", str), "rounds": []}
        for prompt, output in zip(trace.each("prompts", len(outputs)), outputs, strict=True)
    ]
    for one in trace.each("rounds"):
        times = {
            name: one.seconds(name)
            for name in ("seconds", "draft_seconds", "target_seconds", "verify_seconds")
        }
        times["draft_calls"] = one.get("draft_calls", int)
        for row in one.each("rows"):
            entry = row.field("row", int)
            if not 0 <= entry.value < len(rows):
                entry.refuse(f"is {entry.value}, and there are {len(rows)} rows")
            rows[entry.value]["rounds"].append(times | _record(row))
    return {
        "created": trace.get("created", str),
        "settings": {k: v for k, v in trace.get("settings", dict).items() if v is not None},
        "statistics": {name: statistics.get(name, float) for name in _NUMBERS},
        "rows": rows,
    }


def _load(file: Path) -> Any:
    where = repr(str(file))
    try:
        return parse_json(file.read_bytes())
    except OSError as error:
        raise InvalidInput(f"{where} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise InvalidInput(f"{where} is no JSON that a trace could be ({error}); {_AGAIN}.") from error


@attrs.frozen
class _Entry:
    """A value in a trace, and its place there."""

    file: str
    name: str
    value: Any

    def refuse(self, why: str) -> NoReturn:
        raise InvalidInput(f"{self.name or 'The whole'} of {self.file!r} {why}; {_AGAIN}.")

    def field(self, name: str, kind: type) -> _Entry:
        """The field `name` of an object; it must be there and of this kind."""
        inner = f"{self.name}.{name}" if self.name else name
        if not isinstance(self.value, dict):
            self.refuse("is not an object")
        if name not in self.value:
            _Entry(self.file, inner, None).refuse("is missing")
        entry = _Entry(self.file, inner, self.value[name])
        entry.check(kind)
        return entry

    def check(self, kind: type) -> None:
        fits = type(self.value) in ((int, float) if kind is float else (kind,))
        if not fits or (kind is float and not math.isfinite(self.value)):
            self.refuse(f"is not {_KINDS.get(kind, 'an object')}")

    def get(self, name: str, kind: type) -> Any:
        return self.field(name, kind).value

    def items(self) -> Iterator[_Entry]:
        for i, value in enumerate(self.value):
            yield _Entry(self.file, f"{self.name}[{i}]", value)

    def each(self, name: str, count: int | None = None) -> list[_Entry]:
        """The items of the list `name`."""
        entry = self.field(name, list)
        if count is not None and len(entry.value) != count:
            entry.refuse(f"has {len(entry.value)} entries and should have {count}")
        return list(entry.items())

    def values(self, name: str, kind: type, count: int | None = None) -> list[Any]:
        """The values of the list `name`, all of one kind."""
        items = self.each(name, count)
        for item in items:
            item.check(kind)
        return [item.value for item in items]

    def seconds(self, name: str) -> float:
        entry = self.field(name, float)
        if entry.value < 0:
            entry.refuse(f"is {entry.value}, and no time is negative")
        return _short(entry.value)

    def probability(self) -> float:
        self.check(float)
        # float32 sums may exceed 1 by their rounding.
        if not 0 <= self.value <= 1.001:
            self.refuse(f"is {self.value}, and no probability is")
        return _short(self.value)


def _record(row: _Entry) -> dict[str, Any]:
    """One row in one round."""
    tree, outcome = row.field("tree", dict), row.field("outcome", dict)
    tokens = tree.values("tokens", int)
    if not tokens:
        tree.refuse("has no node")
    parents = tree.each("parents", len(tokens))
    for node, parent in enumerate(parents):
        parent.check(int)
        if (parent.value != -1) if node == 0 else not 0 <= parent.value < node:
            parent.refuse(f"is {parent.value}, and the parent of node {node} comes before it")
    path = outcome.each("path")
    above = -1
    for entry in path:
        entry.check(int)
        if not 0 <= entry.value < len(tokens) or parents[entry.value].value != above:
            entry.refuse(f"is {entry.value}, and the path goes from the root down the tree")
        above = entry.value
    if not path:
        outcome.refuse("has an empty path")
    emitted = row.values("tokens", int)
    if len(emitted) > len(path):
        row.refuse(f"has {len(emitted)} tokens, and its path gives {len(path)}")
    return {
        "texts": row.values("texts", str, len(emitted)),
        "tree": {
            "tokens": tokens,
            "texts": tree.values("texts", str, len(tokens)),
            "parents": [parent.value for parent in parents],
            "draft": [entry.probability() for entry in tree.each("draft_probs", len(tokens))],
            "target": [entry.probability() for entry in tree.each("target_probs", len(tokens))],
        },
        "path": [entry.value for entry in path],
        "extra": {
            "token": outcome.get("extra", int),
            "text": outcome.get("extra_text", str),
            "target": outcome.field("extra_target_prob", float).probability(),
            "bonus": outcome.get("bonus", bool),
        },
    }


def _short(value: float) -> float:
    """Six digits, which is more than is shown and half as long in the page."""
    return float(f"{value:.6g}")
