"""Checks whether code draws from a generator of the process instead of its stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from draftwood.testing.diagnosis.law_broken import LawBroken


@contextmanager
def forbid_hidden_randomness(who: object) -> Iterator[None]:
    """Raise `LawBroken` after the block if it drew from a generator of the process, or seeded one.

    Those are torch's, numpy's and Python's; in the end they are as they were.
    """
    with kept_states():
        # To states that no seed gives.
        torch.rand(7)
        np.random.random(7)
        random.random()
        before = process_states()
        yield
        changed = drawn_from(before)
    if changed:
        raise LawBroken(
            f"{who} draws from {changed[0]}, or seeds it.",
            likely="it has another source of randomness: draw only from rng, so that a row's seed decides "
            "and the law can be proved.",
        )


@contextmanager
def kept_states() -> Iterator[None]:
    """After the block the generators of the process are as they were before it."""
    kept = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(kept[0])
        np.random.set_state(kept[1])
        random.setstate(kept[2])


def drawn_from(before: dict[str, object]) -> list[str]:
    """The generators of the process whose state is not that of `before`."""
    return [name for name, state in process_states().items() if state != before[name]]


def process_states() -> dict[str, object]:
    """The states of the generators that all code of the process shares, by name."""
    of_numpy = np.random.get_state(legacy=False)["state"]
    return {
        "torch's own generator": torch.get_rng_state().numpy().tobytes(),
        "numpy's own generator": (of_numpy["key"].tobytes(), of_numpy["pos"]),
        "Python's own generator": random.getstate(),
    }
