"""Files that were sound once: bytes or parts of them taken out, put in, swapped or replaced."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

ODD: Sequence[Any] = (
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**53,
    2**63,
    2**64 - 1,
    10**30,
    -0.0,
    0.5,
    1e-320,
    1e308,
    "",
    "x",
    "0",
    "9" * 400,
    "\0",
    "\ud800",
    "\u202e",
    "</script><script>",
    "a\nb\tc",
    "é" * 2000,
    "../../x",
    "mine:Evil",
    [],
    {},
    [[]],
    [None] * 50,
    {"a": {"b": 1}},
    [0.5] * 500,
    list(range(300)),
)
_WORDS: tuple[bytes, ...] = (
    b"NaN",
    b"Infinity",
    b"1e999",
    b"9" * 5000,
    b"[" * 3000,
    b"\xff\xfe",
    b"\x80",
    b'"',
    b"{",
    b"}",
    b",",
    b"",
)
_WORDS += (b"\\u0000", b"\\ud83d", b"\n\n", b"\r", b"//", b"null", b"-", b"0x10", b"\xef\xbb\xbf")


def _members(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every container with each of its keys."""
    if isinstance(document, dict | list):
        for key in document if isinstance(document, dict) else range(len(document)):
            yield document, key
            yield from _members(document[key])


def _deep(rng: random.Random) -> Any:
    levels = rng.randrange(2, 400)
    return json.loads("[" * levels + "]" * levels)


def spoilt(document: Any, rng: random.Random) -> Any:
    """`document` with one to three parts that are not what they were."""
    document = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        members = list(_members(document))
        if not members:
            return rng.choice(ODD)
        # Most places are members of long lists; their containers are to be hit as often.
        named = [(inside, key) for inside, key in members if isinstance(inside, dict)]
        inside, key = rng.choice(named if named and rng.random() < 0.5 else members)
        match rng.randrange(6):
            case 0:
                del inside[key]
            case 1:
                inside[key] = copy.deepcopy(rng.choice(ODD))
            case 2:
                inside[key] = [inside[key]] if rng.random() < 0.5 else {"x": inside[key]}
            case 3:
                other, there = rng.choice(members)
                if isinstance(other, dict) or there < len(other):
                    inside[key] = copy.deepcopy(other.get(there) if isinstance(other, dict) else other[there])
            case 4:
                inside[key] = _deep(rng)
            case 5 if isinstance(inside, list):
                inside[key:key] = [copy.deepcopy(rng.choice(ODD))] * rng.choice([1, 40])
            case 5 if isinstance(inside[key], int | float):
                inside[key] = rng.choice([-1, 2, 10**6, 0.001]) * inside[key] + rng.choice([0, 1, -1])
            case _:
                inside[str(rng.choice(["", "x", "\ud800", "format", "version"]))] = copy.deepcopy(
                    rng.choice(ODD)
                )
    return document


def torn(content: bytes, rng: random.Random) -> bytes:
    """`content` with bytes changed, cut off, doubled or put in."""
    at = rng.randrange(len(content) + 1)
    to = min(at + rng.choice([1, 2, 8, 64, 1000]), len(content))
    match rng.randrange(6):
        case 0:
            return content[:at]
        case 1:
            return content[at:]
        case 2:
            return content[:at] + content[to:]
        case 3:
            return content[:to] + content[at:]
        case 4:
            return content[:at] + rng.choice(_WORDS) + content[to if rng.random() < 0.5 else at :]
    return content[:at] + rng.randbytes(to - at) + content[to:]


def mutated(content: bytes, rng: random.Random, *, lines: bool = False) -> bytes:
    """The bytes of a file that is hostile or broken.

    Args:
        content: of the sound file.
        rng: chooses what is wrong.
        lines: each line is a separate JSON document; else the whole is, where it is JSON at all.
    """
    if rng.random() < 0.3:
        return torn(content, rng)
    parts = content.splitlines() if lines else [content]
    index = rng.randrange(len(parts))
    try:
        document = json.loads(parts[index])
    except ValueError:
        return torn(content, rng)
    parts[index] = json.dumps(spoilt(document, rng)).encode()
    if rng.random() < 0.2:
        parts[index] = torn(parts[index], rng)
    return b"\n".join([*parts, b""] if lines else parts)
