"""Options that keep a proof small, by name; a policy gets the options that it has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.protocols.compatibility import registered_laws

# Static shapes; both skip a rank.
_TWO = ((0,), (2,))
_THREE = ((0,), (2,), (0, 0))

COMBINED: Mapping[str, Sequence[Any]] = {
    "length": (1, 2),
    "depth": (1, 2),
    "branching": (2,),
    "budget": (3,),
    "budgets": ((3,),),
    "paths": (2,),
    "shape": (_THREE,),
    "width": (2,),
    "law": registered_laws(),
}
"""Values to try in every combination."""

_OPTIONS = ("length", "depth", "branching", "budget", "paths", "width", "shape")

TREES: tuple[Mapping[str, Any], ...] = tuple(
    {**dict(zip(_OPTIONS, sizes, strict=True)), "budgets": (sizes[_OPTIONS.index("budget")],)}
    for sizes in (
        (1, 1, 2, 2, 2, 2, _TWO),
        (2, 2, 2, 3, 1, 1, _TWO),
        (1, 1, 3, 3, 3, 3, _THREE),
        (2, 3, 2, 4, 2, 1, _THREE),
        (3, 2, 2, 4, 1, 2, _THREE),
        (3, 2, 2, 6, 2, 3, _THREE),
    )
)
"""Trees small enough to enumerate, the cheapest first."""

LEARNING: Mapping[str, Any] = {
    "length": 1,
    "depth": 1,
    "branching": 1,
    "budget": 1,
    "paths": 1,
    "width": 1,
    "warmup": 1,
    "window": 2,
    "budgets": (0, 1, 2),
}
"""Over several rounds a policy that learns is visited with every past it may have had, so its tree is the
smallest one, and its memory is short enough to act within them."""
