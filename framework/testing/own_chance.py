"""Whether code draws from a generator of the process instead of the stream it is given."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from draftwood.testing.broken import LawBroken


@contextmanager
def no_chance_but_the_streams(who: object) -> Iterator[None]:
    """Raise `LawBroken` after the block if it drew from torch's, numpy's or Python's own generator."""
    before = _states()
    yield
    for name, state in _states().items():
        if state != before[name]:
            raise LawBroken(
                f"{who} draws from {name}.",
                likely="chance of its own: take all of it from rng, so that a row's seed decides and the law "
                "can be proved.",
            )


def _states() -> dict[str, bytes | str]:
    return {
        "torch's own generator": torch.get_rng_state().numpy().tobytes(),
        "numpy's own generator": str(np.random.get_state(legacy=False)["state"]),
        "Python's own generator": str(hash(random.getstate())),
    }
