"""Validators and converters for `attrs` fields: a message names the field, its value and the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.base.errors import InvalidInput


def at_least(low: int) -> Callable[..., None]:
    """An integer >= `low`."""

    def check(_: object, field: attrs.Attribute[Any], value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or value < low:
            raise InvalidInput(f"{field.name} is {value!r:.80}; give an integer >= {low}.")

    return check


def probability(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    """A number in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
        raise InvalidInput(f"{field.name} is {value!r:.80}; give a number in [0, 1].")


if TYPE_CHECKING:

    def as_ints(values: Iterable[int]) -> tuple[int, ...]:
        """A tuple of integers."""
        return tuple(values)

else:  # mypy cannot tell what `tuple` makes of a field; another function would be one more call per outcome
    as_ints = tuple
