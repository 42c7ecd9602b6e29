"""Times of calls on a GPU by CUDA events, with a cold and a warm L2 cache, and the limits of the card."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch

MILLISECONDS = 150.0
"""That the repetitions of a call take together, about."""

REPETITIONS = (15, 100)
"""The fewest and the most of a call."""

ASLEEP = (1.0, 20.0)
"""Milliseconds that the GPU sleeps before a call, at least and at most, while the host launches all of it."""

CYCLES = 10_000_000
"""Of a sleep that is timed, to learn how many make a millisecond."""


def synchronize(device: torch.device) -> None:
    """Wait for what `device` is still doing."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


@attrs.frozen
class Times:
    """The time of a call, in milliseconds.

    Attributes:
        gpu: of every repetition, from the first instruction to the last.
        host: until the call returns; longer than `gpu` where launching takes longer than what is launched.
    """

    gpu: list[float]
    host: float


Timer = Callable[[Callable[[], Any], bool], Times]
"""Times a call; with True, the L2 cache holds nothing of it."""


@attrs.frozen
class Card:
    """The most that a GPU can do, by its data sheet, without sparsity.

    Attributes:
        bandwidth: of its memory, in GB/s.
        arithmetic: in TFLOP/s, of matrix instructions by the type that they multiply, and of others as fp32;
            empty where unknown.
        measured: whether the bandwidth is that of a copy, since no data sheet is at hand.
    """

    bandwidth: float
    arithmetic: dict[str, float] = attrs.field(factory=dict)
    measured: bool = False


_A100 = {"fp16": 312.0, "tf32": 156.0, "fp32": 19.5}
_H100 = {"fp16": 989.4, "tf32": 494.7, "fp32": 66.9}
CARDS = {
    "NVIDIA A100-SXM4-40GB": Card(1555, _A100),
    "NVIDIA A100-PCIE-40GB": Card(1555, _A100),
    "NVIDIA A100-SXM4-80GB": Card(2039, _A100),
    "NVIDIA A100 80GB PCIe": Card(1935, _A100),
    "NVIDIA H100 80GB HBM3": Card(3350, _H100),
    "NVIDIA H100 PCIe": Card(2000, {"fp16": 756.5, "tf32": 378.2, "fp32": 51.2}),
    "NVIDIA H200": Card(4800, _H100),
    "NVIDIA GeForce RTX 4090": Card(1008, {"fp16": 165.2, "tf32": 82.6, "fp32": 82.6}),
}
"""By the name that torch gives; a part of a card (MIG) has another name."""


def card(device: torch.device, timer: Timer) -> Card:
    """Returns the limits of `device`: from its data sheet, else the bandwidth of a copy of 1 GiB."""
    if (known := CARDS.get(torch.cuda.get_device_name(device))) is not None:
        return known
    source, target = (torch.zeros(2**30, dtype=torch.uint8, device=device) for _ in range(2))
    times = timer(lambda: target.copy_(source), True).gpu
    return Card(2 * source.numel() / median(times) / 1e6, measured=True)


def event_timer(device: torch.device) -> Timer:
    """Times calls on `device` from their first instruction to their last, as CUDA events see it.

    What the host takes to launch counts where a call waits for the GPU, as verification does, or where it
    takes longer than the GPU sleeps at most.
    """
    size = 2 * torch.cuda.get_device_properties(device).L2_cache_size
    other = torch.zeros(max(size, 2**28) // 4, dtype=torch.int32, device=device)

    def elapsed(call: Callable[[], Any], *, cycles: int = 0) -> float:
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        if cycles:
            torch.cuda._sleep(cycles)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))

    def launching(call: Callable[[], Any]) -> float:
        torch.cuda.synchronize()
        begin = perf_counter()
        call()
        return (perf_counter() - begin) * 1e3

    def times(call: Callable[[], Any], cold: bool) -> Times:
        def once() -> float:
            if cold:
                # Read, not written: what is written would have to leave the cache in the call's time.
                other.amax()
            return elapsed(call, cycles=round(asleep * in_a_millisecond))

        with torch.cuda.device(device):
            host = median(launching(call) for _ in range(3))
            shortest, longest = ASLEEP
            asleep = min(max(1.5 * host, shortest), longest)
            usual = median(once() for _ in range(3))
            fewest, most = REPETITIONS
            repetitions = round(MILLISECONDS / max(usual, 1e-3))
            return Times([once() for _ in range(min(most, max(fewest, repetitions)))], host)

    with torch.cuda.device(device):
        # The first sleep wakes the clock.
        in_a_millisecond = CYCLES / [elapsed(lambda: torch.cuda._sleep(CYCLES)) for _ in range(2)][-1]
    return times
