"""The machine that the programs run on, and the cost of a model's pass there."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood.base.devices import default_device
from draftwood.decoding.pass_time import pass_seconds
from draftwood.protocols import registry


def versions() -> dict[str, str]:
    """Python and the packages that decide a result."""
    packages = {name: version(name) for name in ("draftwood", "torch", "transformers")}
    return {"python": platform.python_version(), **packages}


def device_name(device: torch.device | None = None) -> str:
    """The accelerator, or the processor with the number of threads that torch uses; None: what there is."""
    device = device or default_device()
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return str(device)
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), name)
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' if threads > 1 else ''}"


@attrs.frozen
class PassCost:
    """Seconds of a pass over one token and of a pass over a tree of `nodes` nodes.

    Each is the fastest of several: other programs can only make a pass slower.
    """

    dtype: torch.dtype
    nodes: int
    step: float
    tree: float

    @property
    def ratio(self) -> float:
        """Returns the cost of a tree pass in plain steps: the tokens per round that speculation must gain."""
        return self.tree / self.step

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")


def pass_cost(model: Any, *, nodes: int) -> PassCost:
    """Time passes of `model` over one token and over `nodes`, after a context of 128 tokens."""
    times = pass_seconds(registry.load(model), sizes=(1, nodes))
    return PassCost(model.dtype, nodes, min(times[1]), min(times[nodes]))


@attrs.frozen(eq=False)
class Pair:
    """A target of a size where passes cost what they cost in practice, its draft, and those costs.

    Attributes:
        cost: of the target as it is.
        tried: of smaller ones in both precisions, the chosen one first.
    """

    target: Any
    draft: Any
    cost: PassCost
    tried: tuple[PassCost, ...]


def widened_pair(target: Any, draft: Any, *, parameters: float, nodes: int) -> Pair:
    """`target` widened to `parameters` and `draft`, both in the precision that is fastest here.

    Fastest is the precision whose pass over `nodes` nodes takes less time, measured on the target
    widened to at most 100 million parameters: larger than the caches of a CPU, and quickly made. Where
    matrix instructions for bfloat16 are missing, that is float32.
    """
    from draftwood.zoo.widen import widen_to

    tried = []
    for dtype in (torch.float32, torch.bfloat16):
        probe = widen_to(target, parameters=min(parameters, 100e6), dtype=dtype)
        tried.append(pass_cost(probe, nodes=nodes))
    tried.sort(key=lambda cost: cost.tree)
    fastest = tried[0].dtype
    wide = widen_to(target, parameters=parameters, dtype=fastest)
    return Pair(wide, draft.to(fastest), pass_cost(wide, nodes=nodes), tuple(tried))
