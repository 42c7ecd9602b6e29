"""The schema of a results folder: every field that is read must be there, and of its kind."""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from typing import Any, Union, get_args, get_origin, get_type_hints

from draftwood.apps.bench.arrivals import Served
from draftwood.apps.bench.plan import BINS, Contest
from draftwood.apps.bench.specs import ORDINARY
from draftwood.apps.bench.writers import Text
from draftwood.decoding.pass_time import PassTime

_LARGEST = 2**53
_HALVES = re.compile("[\ud800-\udfff]")
# Of runs with several rows only.
_COMPANY = {"rows": int, "arrivals": str, "load": float}
_ASKED = {name: kind for name, kind in get_type_hints(Contest).items() if name not in _COMPANY}
_ASKED |= {"prompt": int, "turn": int}
_FIT = get_type_hints(PassTime)
_WRITTEN = _ASKED | {"contender": str, "repetition": int, "prompt_tokens": int}
# Not in the first runs' cells.
_LATER = {
    "accept_lengths": list[int] | None,
    "depth": int | None,
    "lossless": bool,
    "prefill_tokens": int,
    "round_seconds": float | None,
    "text_seconds": float | None,
}
_TEXT = {name: kind for name, kind in get_type_hints(Text).items() if name not in _LATER}
_TEXT = _WRITTEN | _TEXT | {"right": bool | None}
_FIELDS: Mapping[str, Mapping[str, Any]] = {
    "text": _TEXT,
    "check": _TEXT,
    "answer": _ASKED | {"tokens": list[int]},
    "pair": _ASKED | {"drawn": list[float], "accepted": list[float], "target": list[list[float]]},
    "passes": {"target": dict, "draft": dict | None},
    "capacity": _ASKED | _COMPANY | {"requests": int, "seconds": float},
    "arrivals": _WRITTEN | _COMPANY | {"rate": float} | get_type_hints(Served),
}


def check_run(run: Any) -> None:
    """Raise `ValueError` where `run.json` lacks what is shown of a run; the plan judges its configuration."""
    _check(run, {"versions": dict[str, str], "hardware": dict[str, str], "configuration": dict})
    for part, names in (("versions", ("draftwood", "torch", "transformers")), ("hardware", ("device",))):
        _check(run[part], dict.fromkeys(names, str))
    _check(run["configuration"], {"data": dict[str, str]})


def check_cell(cell: Any) -> None:
    """Raise `ValueError` where a line of `cells.jsonl` is none that a run writes."""
    _check(cell, {"key": str, "kind": str})
    if cell["kind"] not in _FIELDS:
        raise ValueError(f"kind is {cell['kind']!r:.40}")
    if "refused" in cell and cell.get("contender") != ORDINARY:
        _check(cell, _WRITTEN | {"refused": str})
        return
    _check(cell, _FIELDS[cell["kind"]])
    _check(cell, {name: kind for name, kind in _COMPANY.items() if name in cell})
    if cell["kind"] in ("text", "check"):
        _check_text(cell)
    elif cell["kind"] == "arrivals":
        _check_requests(cell)
    elif cell["kind"] == "pair":
        sizes = {len(row) for row in (cell["drawn"], cell["accepted"], cell["target"], *cell["target"])}
        if sizes != {BINS}:
            raise ValueError(f"the agreement is not in {BINS} bins")
    elif cell["kind"] == "passes":
        if cell["key"].count(" | ") != 1:
            raise ValueError("the key names no pair")
        if cell.get("shared_tokens") is not None:
            _check(cell["shared_tokens"], {"shared": int, "target": int, "coverage": float})
        for name in ("target", "draft") if cell["draft"] is not None else ("target",):
            _check(cell[name], {"seconds": dict[str, list[float]], "fit": dict})
            _check(cell[name]["fit"], _FIT)
            if unknown := cell[name]["fit"].keys() - _FIT:
                raise ValueError(f"the fit holds {min(unknown)!r:.40}")
            times = cell[name]["seconds"]
            if not times or not all(size.isdecimal() and taken for size, taken in times.items()):
                raise ValueError("seconds of passes are missing")


def _check_text(cell: Mapping[str, Any]) -> None:
    if not cell["tokens"] or max(cell["tokens"]) >= 2**31:
        raise ValueError("tokens are missing or too large")
    if (cell["draft_calls"] is None) != (cell["draft_cost"] is None):
        raise ValueError("only one of draft_calls and draft_cost is given")
    _check(cell, {name: kind for name, kind in _LATER.items() if name in cell})


def _check_requests(cell: Mapping[str, Any]) -> None:
    requests = len(cell["arrived"])
    if not requests or {len(cell["first"]), len(cell["ended"])} != {requests}:
        raise ValueError("there are not as many times as requests")
    if not cell["tokens"] or len(cell["tokens"]) % requests:
        raise ValueError("the texts are not of one length")


def _check(content: Any, fields: Mapping[str, Any]) -> None:
    if not isinstance(content, dict):
        raise ValueError("an object is missing")
    for name, kind in fields.items():
        if name not in content:
            raise ValueError(f"{name} is missing")
        if not _fits(content[name], kind):
            raise ValueError(f"{name} is {content[name]!r:.40}")


def _fits(value: Any, kind: Any) -> bool:
    """Whether `value` is of an annotation; every number that we write is at least 0."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is list:
        return type(value) is list and all(_fits(one, inner[0]) for one in value)
    if origin is dict:
        return type(value) is dict and all(_fits(n, str) and _fits(v, inner[1]) for n, v in value.items())
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if kind in (int, float):
        return type(value) in {int, kind} and 0 <= value < _LARGEST
    # JSON may hold half a character, a file of text may not.
    return type(value) is kind and (kind is not str or not _HALVES.search(value))
