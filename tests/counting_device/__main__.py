"""Prints what a round asks of the device, by phase: `python -m tests.counting_device [part of a name]`."""

import os
import sys

# Before Triton is imported.
os.environ["TRITON_INTERPRET"] = "1"

import attrs
import transformers

from tests.counting_device.budgets import CALLS, ROUNDS, ROWS, Budget
from tests.counting_device.rounds import count_rounds

transformers.utils.logging.disable_progress_bar()
for name, call in CALLS.items():
    for rows in ROWS:
        if all(word in name for word in sys.argv[1:]):
            counted = count_rounds(attrs.evolve(call, rows=rows), rounds=ROUNDS)
            print(f"\n{name}, {rows} row(s), {counted.draft_calls:.1f} draft calls a round")
            print(counted.table())
            figures = ", ".join(map(str, attrs.astuple(Budget.of(counted))))
            print(f'    ("{name}", {rows}): Budget({figures}),')
