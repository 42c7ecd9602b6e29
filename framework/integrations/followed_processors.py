"""Logits processors that hold a grammar, followed as constraints.

These processors advance by one token per call, and cannot be asked about the nodes of a tree. Packages
register a function under `draftwood.processors`, by the full name of such a class, that returns its
constraints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.processing import acts_on_tokens_singly
from draftwood.protocols import registry


def follow(
    processors: Sequence[Any], *, rows: int, ends: frozenset[int]
) -> tuple[list[Any], list[Constraint] | None]:
    """Takes the processors that hold a grammar out of `processors`.

    Args:
        processors: of a call of `generate`, in their order.
        rows: of its batch.
        ends: the tokens at which it ends a text.

    Returns:
        The other processors, and one constraint per row, or None where no processor holds a grammar.

    Raises:
        InvalidInput: several grammars, or processors before one that may do something else without the
            tokens that it forbids: constraints come before all processors.
    """
    known = set(registry.names("processors"))
    places = [place for place, processor in enumerate(processors) if _name(processor) in known]
    if not places:
        return list(processors), None
    first = processors[places[0]]
    if len(places) > 1:
        raise InvalidInput(
            f"{len(places)} logits processors hold a grammar ({_name(first)} first); give one, or a "
            "draftwood.Constraint that does what all of them do."
        )
    for before in processors[: places[0]]:
        if not acts_on_tokens_singly(before):
            raise InvalidInput(
                f"{type(before).__name__} comes before the grammar of {_name(first)}, and draft trees apply "
                "a grammar before all processors; leave one of the two out."
            )
    constraints = registry.get("processors", _name(first))(first, rows=rows, ends=ends)
    return [processor for processor in processors if processor is not first], list(constraints)


def _name(processor: Any) -> str:
    kind = type(processor)
    return f"{kind.__module__}.{kind.__qualname__}"
