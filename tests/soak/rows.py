"""Random calls on the rows of sessions, on every kind of backend."""

from __future__ import annotations

from tests.framework.row_subjects import KINDS
from tests.framework.rows_machine import run_machine
from tests.soak.result import SoakResult

STEPS = 50


def rows(count: int, *, seed: int = 0) -> SoakResult:
    """At least `count` calls, shared by all kinds of backends; after each, all rows are compared.

    A kind that was found wrong is not tried further.
    """
    result = SoakResult("rows of a session")
    for kind in KINDS:
        steps, run, error = 0, 0, None
        while steps < count / len(KINDS) and error is None:
            counts, error = run_machine(kind, examples=10, steps=STEPS, seed=seed + run, raises=False)
            steps, run = steps + counts["steps"], run + 1
            for rule, calls in counts.items():
                if rule != "steps":
                    result.attempts[rule] += calls
        result.done += steps
        result.figures[kind] = f"{steps} steps"
        if error is not None:
            told = "\n".join([str(error), *getattr(error, "__notes__", [])])
            result.failures.append(f"{kind}, seed {seed + run - 1}: {type(error).__name__}: {told}")
        result.tell_time()
    return result
