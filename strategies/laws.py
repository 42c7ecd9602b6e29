"""The proposal laws by the names that options and the command line use."""

from __future__ import annotations

from draftwood import Proposal, TreePolicy
from draftwood.protocols import registry


def as_law(law: str | type[Proposal]) -> type[Proposal]:
    """The law registered as `law`, or named `package.module:Class`, or `law` itself."""
    proposal: type[Proposal] = law if isinstance(law, type) else registry.get("laws", law)
    return proposal


class SingleLawPolicy(TreePolicy):
    """A policy whose children are all drawn by its field `law`."""

    law: type[Proposal]

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})
