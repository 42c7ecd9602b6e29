"""The proposal laws by the names that options and the command line use."""

from __future__ import annotations

from draftwood import (
    Deterministic,
    InvalidInput,
    PerChild,
    Proposal,
    TopThenSample,
    TreePolicy,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.errors import nearest

LAWS: dict[str, type[Proposal]] = {
    "top-k": Deterministic,
    "with-replacement": WithReplacement,
    "without-replacement": WithoutReplacement,
    "top-and-sample": TopThenSample,
    "per-drafter": PerChild,
}


def as_law(law: str | type[Proposal]) -> type[Proposal]:
    """The law named `law`, or `law` itself."""
    if isinstance(law, type):
        return law
    if law not in LAWS:
        raise InvalidInput(f"There is no proposal law {law!r}{nearest(law, LAWS)}")
    return LAWS[law]


class OneLaw(TreePolicy):
    """A policy whose children are all drawn by its field `law`."""

    law: type[Proposal]

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})
