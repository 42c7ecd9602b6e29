"""The Mamba-2 scan along a tree, compared with its reference and with scans over unrolled paths."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.cases import Case, Contender
from benchmarks.kernels.unrolled import Unrolled, bytes_of
from draftwood.kernels.mamba2_tree import dispatch, reference
from draftwood.kernels.testing import TOLERANCE, TOPOLOGIES, visible


def ragged(
    device: torch.device, *, sizes: Sequence[tuple[int, int]] = ((5, 0), (40, 3), (70, 40))
) -> list[Case]:
    """Trees of every shape after older columns, in two dtypes; only ours."""
    chance, cases = random.Random(0), []
    for dtype in (torch.float32, torch.float16):
        for nodes, old in sizes:
            shapes = [TOPOLOGIES[name](nodes + old, chance) for name in ("random", "chain", "star")]
            made = _made(shapes, heads=4, groups=2, dim=32, size=48, dtype=dtype, device=device)
            arguments = made | {
                "queries": made["queries"][:, old:].contiguous(),
                "visible": made["visible"][:, old:].contiguous(),
            }
            del arguments["inputs"], arguments["steps"], arguments["rates"]
            cases.append(_case(f"{nodes} nodes and {old} older, {dtype}", arguments, []))
    return cases


def scans(
    device: torch.device,
    *,
    depths: Sequence[int] = (4, 6),
    heads: int = 80,
    groups: int = 1,
    dim: int = 64,
    size: int = 128,
) -> list[Case]:
    """Full binary trees of 15 and 63 nodes, with the heads of Mamba-2 2.7B."""
    cases: list[Case] = []
    for depth in depths:
        tree = Unrolled.of(depth, device)
        parents = TOPOLOGIES["binary"](2**depth - 1, random.Random(0))
        arguments = _made(
            [parents], heads=heads, groups=groups, dim=dim, size=size, dtype=torch.float16, device=device
        )
        inputs, steps, rates = (arguments.pop(name) for name in ("inputs", "steps", "rates"))
        others = [
            Contender("reference", partial(reference.attend, **arguments)),
            Contender("kernel, unrolled paths", _unrolled(arguments, tree), read=tree.packed, kernel=True),
            *_foreign(arguments, tree, inputs=inputs, steps=steps, rates=rates),
        ]
        if cases:
            # Nodes share the state, which is most of what is read.
            fewer = f"kernel, {2 ** depths[0] - 1} nodes"
            others.append(
                Contender(fewer, cases[0].contenders[0].call, judged=False, operations=0, at_most=1.3)
            )
        cases.append(_case(f"{tree.words}, {heads} heads of {dim} by {size}", arguments, others))
    return cases


def _case(size: str, arguments: dict[str, Any], others: list[Contender]) -> Case:
    values, state, queries = arguments["values"], arguments["state"], arguments["queries"]
    (rows, _, heads, dim), (nodes, groups, width) = values.shape, queries.shape[1:]
    inside = int(arguments["visible"].sum())
    return Case(
        operation="mamba2_tree",
        size=size,
        expected=partial(_precise, **arguments),
        contenders=[Contender("kernel", partial(dispatch.attend, **arguments), kernel=True), *others],
        allowed=TOLERANCE[values.dtype],
        bytes=bytes_of(*arguments.values()) + rows * nodes * heads * dim * values.element_size(),
        operations=2 * (inside * (groups * width + heads * dim) + rows * nodes * state[0].numel()),
        arithmetic="tf32",
    )


def _made(
    trees: Sequence[list[int]],
    *,
    heads: int,
    groups: int,
    dim: int,
    size: int,
    dtype: torch.dtype,
    device: torch.device,
) -> dict[str, Tensor]:
    """Arguments of the scan, and what others make `values` and `decay` of: inputs, steps and rates."""
    generator = torch.Generator().manual_seed(0)
    seen = visible(trees)
    rows, columns = seen.shape[:2]

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    steps = torch.rand(rows, columns, heads, generator=generator) * 0.1
    rates = -torch.linspace(1, 16, heads)
    inputs = noise(rows, columns, heads, dim).to(dtype)
    tensors = {
        "queries": noise(rows, columns, groups, size).to(dtype),
        "keys": noise(rows, columns, groups, size).to(dtype),
        "values": (inputs * steps.unsqueeze(-1)).to(dtype),
        "decay": steps * rates,
        "state": noise(rows, heads, dim, size),
        "visible": seen,
        "inputs": inputs,
        "steps": steps,
        "rates": rates,
    }
    return {name: tensor.to(device) for name, tensor in tensors.items()}


def _unrolled(arguments: dict[str, Any], tree: Unrolled) -> Callable[[], Tensor]:
    """The kernel over a chain for every path, which reads the state once for each."""
    names = ("queries", "keys", "values", "decay")
    apart = dict(zip(names, tree.along(*(arguments[name] for name in names)), strict=True))
    return partial(dispatch.attend, **apart, state=tree.everywhere(arguments["state"]), visible=tree.chains)


def _foreign(
    arguments: dict[str, Any], tree: Unrolled, *, inputs: Tensor, steps: Tensor, rates: Tensor
) -> list[Contender]:
    """Returns mamba_ssm's contender, over one row per path; nothing if it is not installed."""
    if find_spec("mamba_ssm") is None:
        return []
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update
    from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined

    dim, size = arguments["state"].shape[2:]
    x, dt, keys, queries = tree.along(inputs, steps, arguments["keys"], arguments["queries"])
    start = tree.everywhere(arguments["state"])
    state = start.clone()
    # Steps and rates of a head are one number, which its strides of 0 tell the kernel.
    step, rate = dt.unsqueeze(-1).expand(-1, -1, -1, dim), rates[:, None, None].expand(-1, dim, size)

    def stepped() -> Tensor:
        state.copy_(start)
        return torch.stack(
            [
                selective_state_update(state, x[:, t], step[:, t], rate, keys[:, t], queries[:, t])
                for t in range(x.shape[1])
            ],
            dim=1,
        )

    def chunked() -> Any:
        return mamba_chunk_scan_combined(x, dt, rates, keys, queries, chunk_size=64, initial_states=start)

    return [
        Contender("selective_state_update, stepped", stepped, read=tree.packed),
        Contender("chunk scan, unrolled paths", chunked, read=tree.packed),
    ]


def _precise(**arguments: Tensor) -> Tensor:
    """The reference in fp32 to the end."""
    return reference.attend(**{**arguments, "values": arguments["values"].float()})
