"""Memory and time of the methods for recurrent states, and the choice among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch
from torch.profiler import ProfilerActivity, profile

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.kinds.recompute import RecomputingBackend
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.structure.masks import reaches
from draftwood.base.errors import InvalidInput, OutOfMemory
from draftwood.protocols import StateBackend

METHODS = ("replay", "snapshots", "recompute")
"""Replay of what the accepted nodes keep, a state for every node, or a second pass over the path."""


@attrs.frozen
class StateCost:
    """Memory and time of a round on one backend.

    Attributes:
        method: one of `METHODS`.
        memory: the most bytes that a round allocates in addition to the committed state, with logits.
        seconds: of a round, the median.
    """

    method: str
    memory: int
    seconds: float


def backend_for(model: Any, method: str) -> PackedBackend | RecomputingBackend:
    """A backend that commits recurrent states by this method.

    Args:
        model: a transformers model with recurrent layers.
        method: one of `METHODS`.

    Raises:
        InvalidInput: another method.
        UnsupportedModel: a model that neither `SSMBackend` nor `HybridBackend` supports.
    """
    if method not in METHODS:
        raise InvalidInput(
            f"There is no method {method!r} for recurrent states; give one of {', '.join(METHODS)}."
        )
    kind = HybridBackend if reaches(model.config, recurrent=True) else SSMBackend
    backend = kind(model, snapshots=method == "snapshots")
    return RecomputingBackend(backend) if method == "recompute" else backend


def measured(
    model: Any, *, nodes: int = 32, depth: int = 4, context: int = 128, repetitions: int = 7
) -> list[StateCost]:
    """The cost of every method for rounds of a target: one tree a pass, and a path of `depth` accepted.

    The methods take turns, so that a slow moment of the machine falls on all of them.

    Args:
        model: a transformers model with recurrent layers.
        nodes: in the tree: a chain, and the others below it in turns.
        depth: length of the chain, which is accepted.
        context: tokens before the tree.
        repetitions: timed rounds of every method.
    """
    if not 1 <= depth <= nodes:
        raise InvalidInput(f"A path of {depth} nodes is not in a tree of {nodes}; give 1 to {nodes}.")
    vocab, backends = 0, {method: backend_for(model, method) for method in METHODS}
    for backend in backends.values():
        vocab = backend.vocab_size
        backend.prefill([torch.arange(context) % vocab])
    tokens = torch.arange(nodes).unsqueeze(0) % vocab
    parents = torch.tensor([[node - 1 if node < depth else node % depth for node in range(nodes)]])

    def one_round(backend: StateBackend) -> None:
        backend.extend(tokens, parents)
        backend.commit([range(depth)])

    peaks = {method: allocations(lambda b=backend: one_round(b))[1] for method, backend in backends.items()}  # type: ignore[misc]
    times: dict[str, list[float]] = {method: [] for method in METHODS}
    for _ in range(repetitions):
        for method, backend in backends.items():
            started = perf_counter()
            one_round(backend)
            if backend.device.type == "cuda":
                torch.cuda.synchronize()
            times[method].append(perf_counter() - started)
    return [StateCost(method, peaks[method], median(times[method])) for method in METHODS]


def cheapest(costs: Sequence[StateCost], *, memory: int | None = None) -> StateCost:
    """The fastest method whose round fits into `memory` bytes (None: any), for `backend_for`.

    Raises:
        OutOfMemory: none does.
    """
    fitting = [cost for cost in costs if memory is None or cost.memory <= memory]
    if not fitting:
        least = min(costs, key=lambda cost: cost.memory)
        raise OutOfMemory(
            f"No method for recurrent states takes {memory} bytes or less; {least.method} takes "
            f"{least.memory}: give that much, or grow a smaller tree."
        )
    return min(fitting, key=lambda cost: cost.seconds)


def allocations(call: Callable[[], Any]) -> tuple[int, int]:
    """Returns the bytes that `call` leaves allocated, and its peak, on the CPU or an accelerator."""
    accelerator = torch.cuda.is_available() and torch.cuda.is_initialized()
    if accelerator:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        call()
    bytes_now = most = 0
    results: Any = profiled.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            bytes_now += event.nbytes()
            most = max(most, bytes_now)
    return bytes_now, most
