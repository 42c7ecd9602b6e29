"""Constraints from the command line: JSON of a schema, or a regular expression."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from draftwood import Constraint
from draftwood.apps.files.text_input import read_text
from draftwood.base.errors import InvalidInput
from draftwood.protocols import registry

_ENGINES = ("llguidance", "xgrammar")  # the first refuses every keyword that it does not read


def check(schema: Path | None, regex: str | None) -> None:
    """Raise `InvalidInput` where the options cannot be served, before any model is loaded."""
    if schema is not None and regex is not None:
        raise InvalidInput("Both --json-schema and --regex were given; give one of them.")
    if (schema is not None or regex is not None) and _engine() is None:
        raise InvalidInput(
            f"{'--regex' if schema is None else '--json-schema'} needs llguidance or xgrammar; install them "
            "with pip install 'draftwood[grammar]'."
        )


def constraint(
    schema: Path | None, regex: str | None, tokenizer: Any, ends: Sequence[int]
) -> Constraint | None:
    """The constraint that the options ask for, or None.

    Args:
        schema: file of a JSON schema.
        regex: a regular expression for the whole text.
        tokenizer: the target's.
        ends: tokens that end the target's text; empty: the tokenizer's own.

    Raises:
        InvalidInput: a file that cannot be read, or a schema or expression that cannot be served.
    """
    if schema is None and regex is None:
        return None
    make = registry.get("constraints", _engine() or _ENGINES[0])
    constraint: Constraint
    if schema is None:
        constraint = make.regex(regex, tokenizer, eos_token_id=tuple(ends) or None)
        return constraint
    constraint = make.json_schema(read_text(schema), tokenizer, eos_token_id=tuple(ends) or None)
    return constraint


def _engine() -> str | None:
    return next((name for name in _ENGINES if find_spec(name) is not None), None)
