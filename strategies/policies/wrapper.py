"""Policies that wrap another policy."""

from __future__ import annotations

from draftwood import Proposal, TreePolicy
from draftwood.protocols import registry


def as_policy(policy: TreePolicy | str) -> TreePolicy:
    """`policy`, or the registered one of that name."""
    return registry.create("policies", policy) if isinstance(policy, str) else policy


class PolicyWrapper(TreePolicy):
    """A policy that declares of its trees what its field `policy` declares."""

    policy: TreePolicy

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.policy.laws

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.policy.adaptive

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.policy.branches
