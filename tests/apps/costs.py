"""Costs of passes by a formula, for runs of `draftwood tune`."""

from typing import Any

from draftwood import PassCosts, PassTable
from draftwood.decoding.pass_time import PassTime


def costs_of(target: PassTime, draft: PassTime | None = None) -> PassCosts:
    """Costs that depend on the nodes of one row only."""
    sizes = range(1, 300)
    tables: list[Any] = [
        time and PassTable.of(lambda nodes, rows, _, time=time: time(nodes), nodes=sizes)  # type: ignore[misc]
        for time in (target, draft)
    ]
    target_costs, draft_costs = tables
    return PassCosts(target_costs, draft_costs)
