"""Mamba-1, the gated delta rule, convolution and gated linear recurrences along a tree."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.functional import conv1d, normalize

from benchmarks.kernels.cases import Case, Contender
from benchmarks.kernels.unrolled import Unrolled, bytes_of, noise
from draftwood.kernels.gated_delta_tree import dispatch as gated_delta
from draftwood.kernels.gated_delta_tree import reference as plain_gated_delta
from draftwood.kernels.lru_tree import dispatch as lru
from draftwood.kernels.lru_tree import reference as plain_lru
from draftwood.kernels.mamba1_tree import dispatch as mamba1
from draftwood.kernels.mamba1_tree import reference as plain_mamba1
from draftwood.kernels.mamba1_tree.reference import Paths
from draftwood.kernels.testing import TOLERANCE, TOPOLOGIES, visible
from draftwood.kernels.tree_conv import dispatch as conv
from draftwood.kernels.tree_conv import reference as plain_conv

SIZES: dict[str, dict[str, int]] = {
    # Mamba 2.8B, Qwen3-Next 80B, the convolution of Mamba-2 2.7B, and RecurrentGemma 2B.
    "mamba1_tree": {"channels": 5120, "size": 16, "groups": 1},
    "gated_delta_tree": {"heads": 32, "groups": 16, "dim": 128, "size": 128},
    "tree_conv": {"channels": 5376, "width": 4},
    "lru_tree": {"channels": 2560},
}
SMALL: dict[str, dict[str, int]] = {
    "mamba1_tree": {"channels": 24, "size": 16, "groups": 2},
    "gated_delta_tree": {"heads": 2, "groups": 1, "dim": 32, "size": 48},
    "tree_conv": {"channels": 40, "width": 4},
    "lru_tree": {"channels": 40},
}


@attrs.frozen(eq=False)
class Problem:
    """A scan to do.

    Attributes:
        operation: its folder in `kernels/`.
        attend: the dispatcher's.
        plainly: the reference.
        arguments: what both take.
        outputs: numbers that come out.
        operations: that the recurrence needs; an exponential counts as one.
        read: makes one tensor of what comes out.
        arithmetic: as in `Card.arithmetic`.
    """

    operation: str
    attend: Callable[..., Any]
    plainly: Callable[..., Any]
    arguments: dict[str, Any]
    outputs: int
    operations: int
    read: Callable[[Any], Tensor] = lambda outputs: outputs
    arithmetic: str = "fp32"


def ragged(
    device: torch.device, *, sizes: Sequence[tuple[int, int]] = ((5, 0), (40, 3), (70, 40))
) -> list[Case]:
    """Trees of every shape after older columns, in two dtypes; only ours."""
    chance, cases = random.Random(0), []
    for dtype in (torch.float32, torch.float16):
        for nodes, old in sizes:
            trees = [TOPOLOGIES[name](nodes + old, chance) for name in ("random", "chain", "star")]
            seen = visible(trees)[:, old:].contiguous().to(device)
            for operation, make in PROBLEMS.items():
                problem = make(seen, dtype=dtype, **SMALL[operation])
                cases.append(_case(problem, f"{nodes} nodes and {old} older, {dtype}", dtype, []))
    return cases


def scans(
    device: torch.device,
    *,
    depths: Sequence[int] = (4, 6),
    sizes: dict[str, dict[str, int]] = SIZES,
) -> list[Case]:
    """Full binary trees of 15 and 63 nodes, with the sizes of well-known models."""
    cases = []
    for operation, make in PROBLEMS.items():
        dtype = torch.float32 if operation == "lru_tree" else torch.float16
        for depth in depths:
            tree = Unrolled.of(depth, device)
            problem = make(tree.visible, dtype=dtype, **sizes[operation])
            words = ", ".join(f"{name} {size}" for name, size in sizes[operation].items())
            others = [
                Contender("reference", partial(problem.plainly, **problem.arguments), read=problem.read),
                *OTHERS[operation](problem, tree),
            ]
            cases.append(_case(problem, f"{tree.words}, {words}", dtype, others))
    return cases


def _case(problem: Problem, size: str, dtype: torch.dtype, others: list[Contender]) -> Case:
    arguments = problem.arguments
    tensors = [value for value in arguments.values() if isinstance(value, Tensor)]
    # Paths hold a number of 4 bytes for every column that a node sees.
    walked = sum(4 * int(value.visible.sum()) for value in arguments.values() if isinstance(value, Paths))
    precise = {
        name: value.float() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    ours = Contender("kernel", partial(problem.attend, **arguments), read=problem.read, kernel=True)
    return Case(
        operation=problem.operation,
        size=size,
        expected=lambda: problem.read(problem.plainly(**precise)),
        contenders=[ours, *others],
        allowed=TOLERANCE[dtype],
        bytes=bytes_of(*tensors) + walked + problem.outputs * dtype.itemsize,
        operations=problem.operations,
        arithmetic=problem.arithmetic,
    )


def _mamba1(seen: Tensor, *, channels: int, size: int, groups: int, dtype: torch.dtype) -> Problem:
    (rows, nodes, columns), wide = seen.shape, noise(0, torch.float32, seen.device)
    half, outputs = noise(1, dtype, seen.device), rows * nodes * channels
    # A step, the decay it makes, its product with the state, and what comes in and goes out.
    operations = 7 * outputs * size
    arguments = {
        "queries": half(rows, nodes, groups, size),
        "keys": half(rows, columns, groups, size),
        "values": half(rows, columns, channels),
        "steps": wide(rows, columns, channels).sigmoid() * 0.1,
        "rates": -wide(channels, size).exp(),
        "state": wide(rows, channels, size),
        "paths": Paths(seen),
    }
    return Problem("mamba1_tree", mamba1.attend, plain_mamba1.attend, arguments, outputs, operations)


def _gated_delta(
    seen: Tensor, *, heads: int, groups: int, dim: int, size: int, dtype: torch.dtype
) -> Problem:
    (rows, nodes, columns), wide = seen.shape, noise(0, torch.float32, seen.device)
    half, outputs = noise(1, dtype, seen.device), 2 * rows * nodes * heads * dim
    arguments = {
        "queries": normalize(half(rows, nodes, groups, size), dim=-1) / size**0.5,
        "keys": normalize(half(rows, columns, groups, size), dim=-1),
        "values": half(rows, nodes, heads, dim),
        "deltas": half(rows, columns - nodes, heads, dim),
        "rates": wide(rows, nodes, heads).sigmoid(),
        "decay": -wide(rows, columns, heads).abs(),
        "state": wide(rows, heads, dim, size),
        "visible": seen,
    }
    # Keys and queries meet keys, deltas come out and are read, and both read the state.
    operations = 4 * int(seen.sum()) * (groups * size + heads * dim) + 4 * rows * nodes * heads * dim * size
    return Problem(
        *("gated_delta_tree", gated_delta.attend, plain_gated_delta.attend, arguments, outputs, operations),
        read=torch.stack,
        arithmetic="tf32",
    )


def _conv(seen: Tensor, *, channels: int, width: int, dtype: torch.dtype) -> Problem:
    (rows, nodes, columns), half = seen.shape, noise(0, dtype, seen.device)
    arguments = {
        "inputs": half(rows, columns, channels),
        "state": half(rows, width - 1, channels),
        "weight": half(channels, width),
        "bias": half(channels),
        "window": conv.windows(visible=seen, width=width),
    }
    outputs = rows * nodes * channels
    return Problem("tree_conv", conv.attend, plain_conv.attend, arguments, outputs, 2 * width * outputs)


def _lru(seen: Tensor, *, channels: int, dtype: torch.dtype) -> Problem:
    (rows, nodes, columns), some = seen.shape, noise(0, dtype, seen.device)
    arguments = {
        "values": some(rows, nodes, channels),
        "outputs": some(rows, columns - nodes, channels),
        "decay": -some(rows, nodes, channels).abs(),
        "state": some(rows, channels),
        "paths": Paths(seen),
    }
    outputs = rows * nodes * channels
    return Problem("lru_tree", lru.attend, plain_lru.attend, arguments, outputs, 3 * outputs)


def _beside_mamba1(problem: Problem, tree: Unrolled) -> Iterator[Contender]:
    arguments = problem.arguments
    names = ("queries", "keys", "values", "steps")
    apart = dict(zip(names, tree.along(*(arguments[name] for name in names)), strict=True))
    rates, start = arguments["rates"], tree.everywhere(arguments["state"])
    chains = partial(mamba1.attend, **apart, rates=rates, state=start, paths=Paths(tree.chains))
    yield Contender("kernel, unrolled paths", chains, read=tree.packed, kernel=True)
    yield _making_paths(tree)
    if find_spec("mamba_ssm") is None:
        return
    from mamba_ssm.ops.triton.selective_state_update import selective_state_update

    state, dt = start.clone(), apart["steps"]
    # It multiplies inputs by their step itself.
    x = (apart["values"] / dt).to(apart["values"].dtype)
    keys, queries = (apart[name].squeeze(2) for name in ("keys", "queries"))

    def stepped() -> Tensor:
        state.copy_(start)
        return torch.stack(
            [
                selective_state_update(state, x[:, t], dt[:, t], rates, keys[:, t], queries[:, t])
                for t in range(x.shape[1])
            ],
            dim=1,
        )

    yield Contender("selective_state_update, stepped", stepped, read=tree.packed)


def _beside_gated_delta(problem: Problem, tree: Unrolled) -> Iterator[Contender]:
    arguments = problem.arguments
    names = ("queries", "keys", "values", "rates", "decay")
    apart = dict(zip(names, tree.along(*(arguments[name] for name in names)), strict=True))
    chains = partial(
        gated_delta.attend,
        **apart,
        deltas=apart["values"][:, :0],
        state=tree.everywhere(arguments["state"]),
        visible=tree.chains,
    )

    def read(outputs: Sequence[Tensor]) -> Tensor:
        return torch.stack([tree.packed(output) for output in outputs])

    yield Contender("kernel, unrolled paths", chains, read=read, kernel=True)


def _beside_conv(problem: Problem, tree: Unrolled) -> Iterator[Contender]:
    arguments = problem.arguments
    (inputs,), tail = tree.along(arguments["inputs"]), tree.everywhere(arguments["state"])
    channels, width = arguments["weight"].shape

    def sequences() -> Tensor:
        padded = torch.cat([tail, inputs], 1).transpose(1, 2)
        return conv1d(padded, arguments["weight"].unsqueeze(1), arguments["bias"], groups=channels)

    yield Contender(
        "conv1d, unrolled paths", sequences, read=lambda outputs: tree.packed(outputs.transpose(1, 2))
    )
    making = partial(conv.windows, visible=tree.visible, width=width)
    yield Contender("making its windows", making, judged=False, operations=0)


def _beside_lru(problem: Problem, tree: Unrolled) -> Iterator[Contender]:
    values, decay = tree.along(problem.arguments["values"], problem.arguments["decay"])
    start = tree.everywhere(problem.arguments["state"])

    def stepped() -> Tensor:
        state, states = start, []
        for t in range(values.shape[1]):
            state = torch.addcmul(values[:, t], decay[:, t].exp(), state)
            states.append(state)
        return torch.stack(states, 1)

    yield Contender("stepped, unrolled paths", stepped, read=tree.packed)
    yield _making_paths(tree)


def _making_paths(tree: Unrolled) -> Contender:
    def paths() -> tuple[Tensor, Tensor]:
        made = Paths(tree.visible)
        return made.order, made.lengths

    return Contender("making its paths", paths, judged=False, operations=0)


PROBLEMS: dict[str, Callable[..., Problem]] = {
    "mamba1_tree": _mamba1,
    "gated_delta_tree": _gated_delta,
    "tree_conv": _conv,
    "lru_tree": _lru,
}
OTHERS: dict[str, Callable[[Problem, Unrolled], Iterator[Contender]]] = {
    "mamba1_tree": _beside_mamba1,
    "gated_delta_tree": _beside_gated_delta,
    "tree_conv": _beside_conv,
    "lru_tree": _beside_lru,
}
