"""Replay: the commit of an accepted path into the convolution's and the recurrent state of every layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from benchmarks.kernels.cases import Case, Contender
from benchmarks.kernels.unrolled import Unrolled, bytes_of, noise
from draftwood.kernels.gated_delta_tree import dispatch as gated_delta
from draftwood.kernels.gated_delta_tree import reference as plain_gated_delta
from draftwood.kernels.lru_tree import dispatch as lru
from draftwood.kernels.lru_tree import reference as plain_lru
from draftwood.kernels.mamba1_tree import dispatch as mamba1
from draftwood.kernels.mamba1_tree import reference as plain_mamba1
from draftwood.kernels.mamba2_tree import dispatch as mamba2
from draftwood.kernels.mamba2_tree import reference as plain_mamba2
from draftwood.kernels.testing import TOLERANCE
from draftwood.kernels.tree_conv import dispatch as conv
from draftwood.kernels.tree_conv import reference as plain_conv

Layer = dict[str, Tensor]


@attrs.frozen
class Model:
    """Layers of a kind, alike in shape.

    Attributes:
        operation: the folder in `kernels/`.
        dispatch: its dispatcher.
        reference: in plain torch.
        layers: how many.
        state: of a layer and row.
        columns: what a layer keeps for every node, by name: its shape, and its dtype.
        fixed: what it has besides, as columns.
        exact: whether numbers are only moved.
        work: operations for a number of the state and a node of the path.
        arithmetic: as in `Card.arithmetic`.
    """

    operation: str
    dispatch: Any
    reference: Any
    layers: int
    state: tuple[int, ...]
    columns: Mapping[str, tuple[tuple[int, ...], torch.dtype]]
    fixed: Mapping[str, tuple[int, ...]] = attrs.field(factory=dict)
    exact: bool = False
    work: int = 0
    arithmetic: str = "fp32"


HALF, SINGLE = torch.float16, torch.float32


def mamba_1(*, layers: int = 64, channels: int = 5120, size: int = 16) -> Model:
    """By default, Mamba 2.8B."""
    columns = {"keys": ((1, size), HALF), "values": ((channels,), HALF), "steps": ((channels,), SINGLE)}
    return Model(
        *("mamba1_tree", mamba1, plain_mamba1, layers, (channels, size), columns),
        fixed={"rates": (channels, size)},
        work=5,
    )


def mamba_2(*, layers: int = 64, heads: int = 80, groups: int = 1, dim: int = 64, size: int = 128) -> Model:
    """By default, Mamba-2 2.7B."""
    return _matrices("mamba2_tree", mamba2, plain_mamba2, layers, heads, groups, dim, size)


def deltas(*, layers: int = 36, heads: int = 32, groups: int = 16, dim: int = 128, size: int = 128) -> Model:
    """By default, Qwen3-Next 80B."""
    return _matrices("gated_delta_tree", gated_delta, plain_gated_delta, layers, heads, groups, dim, size)


def convolution(*, layers: int = 64, channels: int = 5376, width: int = 4) -> Model:
    """By default, that of Mamba-2 2.7B."""
    columns = {"inputs": ((channels,), HALF)}
    return Model("tree_conv", conv, plain_conv, layers, (width - 1, channels), columns, exact=True)


def units(*, layers: int = 18, channels: int = 2560) -> Model:
    """By default, RecurrentGemma 2B."""
    columns = {"outputs": ((channels,), SINGLE)}
    return Model("lru_tree", lru, plain_lru, layers, (channels,), columns, exact=True)


def _matrices(
    operation: str,
    dispatch: Any,
    reference: Any,
    layers: int,
    heads: int,
    groups: int,
    dim: int,
    size: int,
) -> Model:
    columns = {
        "keys": ((groups, size), HALF),
        "values": ((heads, dim), HALF),
        "decay": ((heads,), SINGLE),
    }
    return Model(
        *(operation, dispatch, reference, layers, (heads, dim, size), columns), work=2, arithmetic="tf32"
    )


MODELS: tuple[Callable[[], Model], ...] = (mamba_1, mamba_2, deltas, convolution, units)


def ragged(device: torch.device) -> list[Case]:
    """Three rows that keep much, nothing and something of the same columns; only ours."""
    kept = torch.zeros(3, 40, dtype=torch.bool, device=device)
    kept[0, ::3] = kept[2, 5:7] = True
    small = (
        mamba_1(layers=2, channels=24),
        mamba_2(layers=2, heads=4, groups=2, dim=32, size=48),
        deltas(layers=2, heads=2, groups=1, dim=48, size=32),
        convolution(layers=2, channels=40),
        units(layers=2, channels=40),
    )
    return [_case(model, kept, device=device, words="ragged rows", others=False) for model in small]


def replays(device: torch.device, *, models: Sequence[Model] | None = None, depth: int = 6) -> list[Case]:
    """A path to a leaf of a full binary tree, in one row and all layers."""
    kept = Unrolled.of(depth, device).path()
    words = f"{depth} of {2**depth - 1} nodes"
    made = [make() for make in MODELS] if models is None else models
    return [_case(model, kept, device=device, words=words, others=True) for model in made]


def _case(model: Model, kept: Tensor, *, device: torch.device, words: str, others: bool) -> Case:
    (rows, columns), lengths = kept.shape, int(kept.sum())
    layers = [_layer(model, rows, columns, seed=seed, device=device) for seed in range(model.layers)]
    lists = {name: [layer[name] for layer in layers] for name in layers[0]}
    committed = bytes_of(*lists["state"])
    beside = sum(bytes_of(*lists[name]) for name in model.columns) * lengths // (rows * columns)

    def expected() -> Tensor:
        keep = (lambda one: one) if model.exact else Tensor.float
        return torch.stack(
            [
                model.reference.replay(**{name: keep(tensor) for name, tensor in layer.items()}, kept=kept)
                for layer in layers
            ]
        )

    def alone(replay: Callable[..., Tensor]) -> list[Tensor]:
        return [replay(**layer, kept=kept) for layer in layers]

    contenders = [
        Contender("kernel", partial(model.dispatch.replay_all, **lists, kept=kept), torch.stack, kernel=True)
    ]
    if others:
        contenders += [
            Contender("reference", partial(alone, model.reference.replay), torch.stack),
            Contender(
                "kernel, a launch a layer", partial(alone, model.dispatch.replay), torch.stack, kernel=True
            ),
        ]
    state = " by ".join(map(str, model.state))
    return Case(
        operation=model.operation,
        size=f"replay of {words}, {model.layers} layers with a state of {state}",
        expected=expected,
        contenders=contenders,
        allowed=0.0 if model.exact else TOLERANCE[HALF],
        bytes=2 * committed + beside + bytes_of(kept, *(one for name in model.fixed for one in lists[name])),
        operations=model.work * sum(state.numel() for state in lists["state"]) // rows * (lengths + rows),
        arithmetic=model.arithmetic,
    )


def _layer(model: Model, rows: int, columns: int, *, seed: int, device: torch.device) -> Layer:
    made = {
        name: noise(seed, dtype, device)(rows, columns, *shape)
        for name, (shape, dtype) in model.columns.items()
    }
    # Steps are positive and decays negative; A is below 0.
    signs = {"steps": 0.1, "decay": -1.0}
    made |= {name: made[name].abs() * sign for name, sign in signs.items() if name in made}
    wide = noise(seed + model.layers, HALF if model.operation == "tree_conv" else SINGLE, device)
    made |= {name: -wide(*shape).exp() for name, shape in model.fixed.items()}
    return made | {"state": wide(rows, *model.state)}
