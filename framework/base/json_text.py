"""JSON from a file that anyone may have written: forms that our programs never write are refused."""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

_DEEPEST = 40  # ours have less than ten levels
_LARGEST = 2**64
_DIGITS = len(str(_LARGEST))


def parse_json(content: bytes) -> Any:
    """The value that UTF-8 `content` holds: finite numbers of 64 bits, few levels, no key twice.

    Raises:
        ValueError: anything else; the message is the reason, in a few words.
    """
    try:
        parsed = json.loads(
            content.decode("utf-8-sig"),
            parse_constant=_refuse_constant,
            parse_int=_integer,
            parse_float=_number,
            object_pairs_hook=_object,
        )
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON: {error.msg}") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level, depth = [parsed], 0
    while level:
        if (depth := depth + 1) > _DEEPEST:
            raise ValueError("nested too deeply")
        inner = [item for item in level if isinstance(item, (dict, list))]
        level = [value for item in inner for value in (item.values() if isinstance(item, dict) else item)]
    return parsed


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} occurs twice")
    return values


def _integer(word: str) -> int:
    if len(word) > _DIGITS + 1 or abs(int(word)) >= _LARGEST:
        raise ValueError(f"the number {word[:_DIGITS]} is too large")
    return int(word)


def _number(word: str) -> float:
    if not math.isfinite(number := float(word)):
        raise ValueError(f"the number {word[:_DIGITS]} is too large")
    return number


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
