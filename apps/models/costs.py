"""Costs of passes for policies that weigh them, from a tuned file or measured."""

from __future__ import annotations

from collections.abc import Sequence

from draftwood import Drafter, PassCosts, StateBackend, TreePolicy, measure_costs
from draftwood.apps.files.machine import device_name
from draftwood.apps.terminal.shown import to_stderr


def costs_for(
    policy: TreePolicy,
    target: StateBackend,
    drafter: Drafter,
    *,
    temperature: float,
    known: PassCosts | None = None,
    rows: Sequence[int] = (1,),
    text: Sequence[int] = (),
) -> PassCosts | None:
    """Returns the costs that `policy` may read: `known` ones, or those that are measured now; else None.

    Args:
        policy: grows the trees.
        target: whose passes are measured, where the policy reads costs and none are known.
        drafter: the same for draft calls.
        temperature: of the target, in these rounds.
        known: of a file of `draftwood tune`.
        rows: of the passes that are measured.
        text: tokens such as those that will be read; see `measure_costs`.
    """
    if known is not None or not policy.reads_row:
        return known
    to_stderr(f"Timing passes for {type(policy).__name__}; draftwood tune keeps such times in its file.")
    context = max(min((target.max_length or 512) // 4, 128), 1)
    machine = device_name(target.device)
    return measure_costs(
        target,
        drafter,
        rows=rows,
        contexts=(context,),
        tokens=text,
        temperature=temperature,
        machine=machine,
    )
