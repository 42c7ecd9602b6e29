"""Time of a target pass by its number of tokens, which shows whether a larger tree pays off."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import attrs
import numpy as np
import torch

from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend
from draftwood.protocols.model_prompt import ModelPrompt


def _not_negative(_: object, field: attrs.Attribute[Any], value: float) -> None:
    if not 0 <= value < float("inf"):
        raise InvalidInput(f"{field.name} is {value}; give a number >= 0.")


@attrs.frozen
class PassTime:
    """A pass over n tokens takes `constant + linear * n + quadratic * n²`, in any one unit.

    Source: STree, section 4.3, equations 7 (without the quadratic part: state-space models) and 8 (with
    it: attention).
    """

    constant: float = attrs.field(default=1.0, validator=_not_negative)
    linear: float = attrs.field(default=0.0, validator=_not_negative)
    quadratic: float = attrs.field(default=0.0, validator=_not_negative)

    def __call__(self, tokens: int) -> float:
        return self.constant + self.linear * tokens + self.quadratic * tokens**2

    @classmethod
    def fit(cls, tokens: Sequence[int], seconds: Sequence[float]) -> PassTime:
        """Least squares under coefficients >= 0, each pass weighted by its time.

        Args:
            tokens: sizes of passes, at least three different ones.
            seconds: times of these passes, above 0.
        """
        if len(set(tokens)) < 3 or len(tokens) != len(seconds) or min(seconds, default=0) <= 0:
            raise InvalidInput(
                f"{len(set(tokens))} sizes and {len(seconds)} times were given; give a time above 0 for each "
                "of at least 3 sizes."
            )
        sizes, times = np.asarray(tokens, dtype=float), np.asarray(seconds, dtype=float)
        powers = np.stack([sizes**power for power in range(3)], 1) / times[:, None]
        best, least = np.zeros(3), np.inf
        # Three coefficients: trying every set of those that may differ from 0 is the whole search.
        for used in ([0], [1], [2], [0, 1], [0, 2], [1, 2], [0, 1, 2]):
            coefficients, *_ = np.linalg.lstsq(powers[:, used], np.ones(len(sizes)), rcond=None)
            error = float(((powers[:, used] @ coefficients - 1) ** 2).sum())
            if (coefficients >= 0).all() and error < least:
                best, least = np.zeros(3), error
                best[used] = coefficients
        return cls(*best.tolist())


def pass_seconds(
    backend: StateBackend,
    *,
    sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    context: int | ModelPrompt = 128,
    repetitions: int = 7,
) -> dict[int, list[float]]:
    """Measures passes over chains after `context` tokens or a prompt of one row: seconds by size.

    The sizes take turns, so that a slow moment of the machine affects all of them.
    """
    if backend.lengths:
        raise InvalidInput("The backend is decoding; measure its passes before or after.")
    times: dict[int, list[float]] = {size: [] for size in sizes}
    if isinstance(context, ModelPrompt):
        backend.read_prompt(context)
    else:
        backend.prefill([torch.arange(context) % backend.vocab_size])
    try:
        for repetition in range(repetitions + 1):
            for size, durations in times.items():
                tokens = torch.arange(size).unsqueeze(0) % backend.vocab_size
                started = perf_counter()
                # Reading a logit waits for the end of a pass that runs asynchronously.
                float(backend.extend(tokens, torch.arange(-1, size - 1).unsqueeze(0))[0, -1, 0])
                if repetition:  # the first turn warms up
                    durations.append(perf_counter() - started)
                backend.commit([[]])
    finally:
        backend.release()
    return times
