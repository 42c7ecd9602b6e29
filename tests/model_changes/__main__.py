"""Search many sequences: `python -m tests.model_changes --sequences 2000`."""

from __future__ import annotations

import argparse
from time import perf_counter

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from transformers.utils import logging

from tests.model_changes.machine import SEEN, Changing, ChangingCaptured

AT_ONCE = 20
"""Sequences between two reports, so that a search that is stopped has said how far it came."""


def search(machine: type[Changing], sequences: int, *, steps: int = 6, seeded: bool = False) -> None:
    """Run the machine over so many sequences of changes."""
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=sequences,
            stateful_step_count=steps,
            deadline=None,
            derandomize=seeded,
            database=None,
            phases=[Phase.generate],  # to shrink takes minutes, and six changes are short
            suppress_health_check=list(HealthCheck),
        ),
    )


def search_in_parts(machine: type[Changing], sequences: int, *, first_seed: int) -> None:
    """Run the machine over so many sequences, each twenty from another seed, and report after each."""
    for done in range(0, sequences, AT_ONCE):
        count = min(AT_ONCE, sequences - done)
        started = perf_counter()
        search(seed(first_seed + done)(machine), count)
        seconds = perf_counter() - started
        print(
            f"{machine.__name__}: {done + count} of {sequences} without a difference ({seconds:.0f} s)",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=2000, help="of six changes; 1 of 20 is captured")
    parser.add_argument("--only", choices=["captured", "plain"], help="to run the two kinds side by side")
    parser.add_argument("--seed", type=int, default=0, help="of the first twenty; the others follow")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    captured = given.sequences // 20
    try:
        if given.only != "plain":
            search_in_parts(ChangingCaptured, captured, first_seed=given.seed)
        if given.only != "captured":
            search_in_parts(Changing, given.sequences - captured, first_seed=given.seed)
    finally:  # of a search that found something, or that was stopped, too
        for said, count in SEEN.most_common():
            print(f"{count:8} {said}")


if __name__ == "__main__":
    main()
