"""Search many sequences: `python -m tests.model_changes --sequences 2000`."""

from __future__ import annotations

import argparse
from time import perf_counter

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from transformers.utils import logging

from tests.model_changes.machine import SEEN, Changing, ChangingCaptured


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sequences", type=int, default=2000, help="of six changes; a tenth is captured")
    given = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    started = perf_counter()
    try:
        search(Changing, given.sequences - given.sequences // 10)
        search(ChangingCaptured, given.sequences // 10)
        print(f"{given.sequences} sequences in {perf_counter() - started:.0f} s, no difference")
    finally:  # of a search that found something, or that was stopped, too
        for said, count in SEEN.most_common():
            print(f"{count:8} {said}")


if __name__ == "__main__":
    main()
