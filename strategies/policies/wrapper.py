"""Policies that wrap another policy."""

from __future__ import annotations

from draftwood import InvalidInput, Proposal, TreePolicy
from draftwood.protocols import registry


def as_policy(policy: TreePolicy | str) -> TreePolicy:
    """Returns `policy`, or the registered one of that name.

    Raises:
        InvalidInput: its trees depend on other rows, or on what it reads of its row, which a policy around
            it does not see.
    """
    policy = registry.create("policies", policy) if isinstance(policy, str) else policy
    if policy.scope == "batch":
        raise InvalidInput(
            f"{type(policy).__name__} grows the trees of all rows together, and no policy can wrap it; give "
            "one whose scope is 'row', such as layered-dyspec."
        )
    if policy.reads_row:
        raise InvalidInput(
            f"{type(policy).__name__} reads the row that it grows a tree for, and no policy can wrap it; "
            "give one whose reads_row is False, such as layered-dyspec."
        )
    return policy


class PolicyWrapper(TreePolicy):
    """A policy that declares of its trees what its field `policy` declares."""

    policy: TreePolicy

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.policy.laws

    @property
    def asks(self) -> frozenset[str]:  # type: ignore[override]
        return self.policy.asks

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.policy.adaptive

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.policy.branches
