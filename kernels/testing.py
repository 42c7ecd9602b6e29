"""Tools that judge kernels in tests and benchmarks: trees of every shape, and the distance of two results."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3}
"""The relative error, by norm, that a kernel may have against its fp32 reference."""

TOPOLOGIES: dict[str, Callable[[int, random.Random], list[int]]] = {
    "chain": lambda n, chance: list(range(-1, n - 1)),
    "star": lambda n, chance: [-1, *[0] * (n - 1)][:n],
    "forest": lambda n, chance: [-1] * n,
    "binary": lambda n, chance: [(node + 1) // 2 - 1 for node in range(n)],
    "random": lambda n, chance: [chance.randint(-1, node - 1) for node in range(n)],
}
"""Parents of `n` nodes, -1 for the committed state, each before its children."""


def visible(rows: Sequence[Sequence[int]]) -> Tensor:
    """bool `[rows, nodes, nodes]`: each node sees itself and its ancestors; `rows` are parents.

    Shorter rows are padded with nodes that only see themselves.
    """
    n = max((len(parents) for parents in rows), default=0)
    seen = torch.eye(n, dtype=torch.bool).repeat(len(rows), 1, 1)
    for row, parents in zip(seen, rows, strict=True):
        for node, parent in enumerate(parents):
            if parent >= 0:
                row[node] |= row[parent]
    return seen


def relative_error(result: Tensor, expected: Tensor) -> float:
    """The norm of the difference over the norm of `expected`; infinite where `result` holds NaN."""
    result, expected = result.detach().double(), expected.detach().double()
    if result.shape != expected.shape or not bool(result.isfinite().all()):
        return float("inf")
    norm = float(expected.norm())
    return float((result - expected).norm()) / (norm if norm > 0 else 1.0)
