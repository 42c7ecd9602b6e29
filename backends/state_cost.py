"""What the ways with recurrent states take, in memory and time, and which one to use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch
from torch.profiler import ProfilerActivity, profile

from draftwood.backends.masks import reaches
from draftwood.backends.packed import PackedBackend
from draftwood.backends.recompute import RecomputingBackend
from draftwood.backends.ssm import HybridBackend, SSMBackend
from draftwood.errors import InvalidInput, OutOfMemory
from draftwood.protocols import StateBackend

WAYS = ("replay", "snapshots", "recompute")
"""Replay of what the accepted nodes hold, a state for every node, or a second pass over the path."""


@attrs.frozen
class StateCost:
    """What a round takes on one backend.

    Attributes:
        way: one of `WAYS`.
        memory: the most bytes that a round holds beside the committed state, logits and all.
        seconds: of a round, the median.
    """

    way: str
    memory: int
    seconds: float


def serving(model: Any, way: str) -> PackedBackend | RecomputingBackend:
    """A backend that commits recurrent states in this way.

    Args:
        model: a transformers model with recurrent layers.
        way: one of `WAYS`.

    Raises:
        InvalidInput: another way.
        UnsupportedModel: a model that neither `SSMBackend` nor `HybridBackend` serves.
    """
    if way not in WAYS:
        raise InvalidInput(f"There is no way {way!r} with recurrent states; give one of {', '.join(WAYS)}.")
    kind = HybridBackend if reaches(model.config, recurrent=True) else SSMBackend
    backend = kind(model, snapshots=way == "snapshots")
    return RecomputingBackend(backend) if way == "recompute" else backend


def measured(
    model: Any, *, nodes: int = 32, depth: int = 4, context: int = 128, repetitions: int = 7
) -> list[StateCost]:
    """The cost of every way for rounds of a target: one tree a pass, and a path of `depth` accepted.

    The ways take turns, so that a slow moment of the machine falls on all of them.

    Args:
        model: a transformers model with recurrent layers.
        nodes: in the tree: a chain, and the others below it in turns.
        depth: length of the chain, which is accepted.
        context: tokens before the tree.
        repetitions: timed rounds of every way.
    """
    if not 1 <= depth <= nodes:
        raise InvalidInput(f"A path of {depth} nodes is not in a tree of {nodes}; give 1 to {nodes}.")
    vocab, backends = 0, {way: serving(model, way) for way in WAYS}
    for backend in backends.values():
        vocab = backend.vocab_size
        backend.prefill([torch.arange(context) % vocab])
    tokens = torch.arange(nodes).unsqueeze(0) % vocab
    parents = torch.tensor([[place - 1 if place < depth else place % depth for place in range(nodes)]])

    def one_round(backend: StateBackend) -> None:
        backend.extend(tokens, parents)
        backend.commit([range(depth)])

    peaks = {way: allocations(lambda b=backend: one_round(b))[1] for way, backend in backends.items()}  # type: ignore[misc]
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(repetitions):
        for way, backend in backends.items():
            started = perf_counter()
            one_round(backend)
            if backend.device.type == "cuda":
                torch.cuda.synchronize()
            times[way].append(perf_counter() - started)
    return [StateCost(way, peaks[way], median(times[way])) for way in WAYS]


def cheapest(costs: Sequence[StateCost], *, memory: int | None = None) -> StateCost:
    """The fastest way whose round fits into `memory` bytes (None: any); `serving` makes a backend of it.

    Raises:
        OutOfMemory: none does.
    """
    fitting = [cost for cost in costs if memory is None or cost.memory <= memory]
    if not fitting:
        least = min(costs, key=lambda cost: cost.memory)
        raise OutOfMemory(
            f"No way with recurrent states takes {memory} bytes or less; {least.way} takes {least.memory}: "
            "give that much, or grow a smaller tree."
        )
    return min(fitting, key=lambda cost: cost.seconds)


def allocations(call: Callable[[], Any]) -> tuple[int, int]:
    """Bytes that `call` leaves behind, and the most that it held at a time, on the CPU or an accelerator."""
    accelerator = torch.cuda.is_available() and torch.cuda.is_initialized()
    if accelerator:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    held = most = 0
    results: Any = seen.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            most = max(most, held)
    return held, most
