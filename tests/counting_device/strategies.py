"""Every registered policy and verifier, each with one that fits it, as small as shows what it does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from draftwood import TreePolicy, Verifier
from draftwood.protocols import registry
from draftwood.testing.models.small_strategies import fits

SIZES: dict[str, Any] = {
    "branching": 2,
    "budget": 10,
    "budgets": (0, 4, 10),
    "depth": 3,
    "length": 3,
    "max_depth": 4,
    "paths": 3,
    "steps": 3,
    "threshold": 0.01,
    "width": 3,
}
"""By option; a policy gets those that it has."""


@attrs.frozen
class Strategy:
    """A policy and a verifier that fit each other.

    Attributes:
        name: what it is tried for, `policy chain` or `verifier block`.
    """

    name: str
    policy: TreePolicy
    verifier: Verifier

    @property
    def temperatures(self) -> tuple[float, ...]:
        """Returns the temperatures that it supports, of 0.8 and 0."""
        return (0.0,) if self.verifier.greedy else (0.8, 0.0)


def every_strategy() -> list[Strategy]:
    """Every policy with recursive rejection, and every verifier with the first policy that it judges."""
    recursive: Verifier = registry.create("verifiers", "recursive-rejection")
    found = [Strategy(f"policy {name}", policy, recursive) for name, policy in _policies()]
    found.append(Strategy("several drafters", _fixed_tree("per-drafter"), recursive))
    judged = [_fixed_tree(law) for law in ("without-replacement", "with-replacement", "top-and-sample")]
    judged += [policy for _, policy in _policies()]
    for name in registry.names("verifiers"):
        verifier: Verifier = registry.create("verifiers", name)
        fitting = next((policy for policy in judged if fits(policy, verifier)), None)
        if fitting is None:
            raise LookupError(f"No policy here grows trees that {name} judges; add one to every_strategy().")
        found.append(Strategy(f"verifier {name}", fitting, verifier))
    return found


def _policies() -> Iterator[tuple[str, TreePolicy]]:
    for name in registry.names("policies"):
        known = registry.options("policies", name)
        yield name, registry.create("policies", name, {key: SIZES[key] for key in SIZES if key in known})


def _fixed_tree(law: str) -> TreePolicy:
    policy: TreePolicy = registry.create("policies", "fixed-tree", {"depth": 2, "branching": 2, "law": law})
    return policy
