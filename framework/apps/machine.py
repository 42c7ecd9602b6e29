"""What the programs run on, and what a pass of a model costs there."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import attrs
import torch

from draftwood import StateBackend, registry

_CONTEXT = 128  # committed tokens before the passes that are timed


def versions() -> dict[str, str]:
    """Python and the packages that decide a result."""
    packages = {name: version(name) for name in ("draftwood", "torch", "transformers")}
    return {"python": platform.python_version(), **packages}


def device_name() -> str:
    """The accelerator, or the processor with the number of threads that torch uses."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), name)
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


def best_device() -> torch.device:
    """The accelerator where there is one, else the CPU."""
    return torch.accelerator.current_accelerator() or torch.device("cpu")


@attrs.frozen
class PassCost:
    """Median seconds of a pass over one token and of a pass over a tree of `nodes` nodes."""

    dtype: torch.dtype
    nodes: int
    step: float
    tree: float

    @property
    def ratio(self) -> float:
        """How many plain steps a tree pass costs: what speculation must earn in tokens per round."""
        return self.tree / self.step

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def pass_cost(model: Any, *, nodes: int, repetitions: int = 7) -> PassCost:
    """Time passes of `model` behind a context of 128 tokens, both sizes taking turns."""
    backend = registry.load(model)
    backend.prefill([torch.arange(_CONTEXT) % backend.vocab_size])
    times: dict[int, list[float]] = {1: [], nodes: []}
    try:
        for repetition in range(repetitions + 1):
            for size, found in times.items():
                seconds = _timed_pass(backend, size)
                if repetition:  # the first pass of a size only warms up
                    found.append(seconds)
    finally:
        backend.release()
    return PassCost(model.dtype, nodes, median(times[1]), median(times[nodes]))


def _timed_pass(backend: StateBackend, nodes: int) -> float:
    tokens = torch.zeros(1, nodes, dtype=torch.int64)
    started = perf_counter()
    # Reading one number waits for the whole pass, on an accelerator too.
    float(backend.extend(tokens, torch.full_like(tokens, -1))[0, 0, 0])
    seconds = perf_counter() - started
    backend.commit([[]])
    return seconds


def fastest_precision(model: Any, *, parameters: float, nodes: int) -> list[PassCost]:
    """Pass costs in float32 and bfloat16, the one with the cheaper tree pass first.

    Measured on `model` widened to at most 100 million parameters: beyond the caches of a CPU, and
    quickly made. Where matrix instructions for bfloat16 are missing, float32 is the faster one.
    """
    from draftwood.zoo.widen import widen_to

    costs = [
        pass_cost(widen_to(model, parameters=min(parameters, 100e6), dtype=dtype), nodes=nodes)
        for dtype in (torch.float32, torch.bfloat16)
    ]
    return sorted(costs, key=lambda cost: cost.tree)
