"""From requests that arrived to figures: waiting, gaps, and the goodput at a promised speed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from draftwood.apps.bench.intervals import Figure, interval
from draftwood.decoding.metrics import METRICS, Metric

PERCENTILES = (50, 95, 99)

GOODPUT = Metric("goodput", "tokens/s", lambda s: s["kept_tokens"] / s["seconds"])
"""Tokens a second of the texts that kept the promise."""

UNITS = {
    GOODPUT.name: GOODPUT.unit,
    "request_rate": "requests/s",
    **{f"{of}_p{share}": "s" for of in ("first_token", "gap") for share in PERCENTILES},
}
"""The figures that only requests with arrivals have, with their units."""


def arrival_figures(cells: Sequence[Mapping[str, Any]], promise: float) -> dict[str, Figure]:
    """Returns the figures of a contender's runs under one pattern and load, by name.

    Args:
        cells: the runs, one for each repetition; intervals are bootstrapped over them.
        promise: tokens a second, waiting included, at which a text counts for the goodput; 0: no goodput.
    """
    quantities = {name: np.array([of(cell, promise) for cell in cells], float) for name, of in _SUMS.items()}
    metrics = (*METRICS, GOODPUT) if promise else METRICS
    found = {metric.name: figure for metric in metrics if (figure := interval(quantities, metric.of))}
    waits = np.concatenate([_since_arrival(cell, "first") for cell in cells])
    gaps = np.concatenate([cell["gaps"] for cell in cells])
    for name, times in (("first_token", waits), ("gap", gaps)):
        for share in PERCENTILES if len(times) else ():
            found[f"{name}_p{share}"] = Figure(float(np.percentile(times, share)))
    return found | {"request_rate": Figure(float(np.mean([cell["rate"] for cell in cells])))}


def _since_arrival(cell: Mapping[str, Any], name: str) -> Float[np.ndarray, " requests"]:
    times: Float[np.ndarray, " requests"] = np.array(cell[name], float) - np.array(cell["arrived"], float)
    return times


def _kept_tokens(cell: Mapping[str, Any], promise: float) -> float:
    of_text = len(cell["tokens"]) / len(cell["arrived"])
    return of_text * float((of_text >= promise * _since_arrival(cell, "ended")).sum())


_SUMS: Mapping[str, Callable[[Mapping[str, Any], float], float]] = {
    "texts": lambda cell, _: len(cell["arrived"]),
    "tokens": lambda cell, _: len(cell["tokens"]),
    "seconds": lambda cell, _: max(cell["ended"]),
    "text_seconds": lambda cell, _: _since_arrival(cell, "ended").sum(),
    "first_token_seconds": lambda cell, _: _since_arrival(cell, "first").sum(),
    "rounds": lambda cell, _: cell["rounds"],
    "drafted": lambda cell, _: cell["drafted"],
    "accepted": lambda cell, _: cell["accepted"],
    "prefill_tokens": lambda cell, _: cell["prefill_tokens"],
    "kept_tokens": _kept_tokens,
}
