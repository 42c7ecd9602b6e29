"""Helpers of tests of scans along trees: ragged trees over two passes, and layouts that are refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from draftwood.kernels.testing import TOPOLOGIES, relative_error
from tests.kernels.frames import guarded, reference_serves

KINDS = [torch.float32, pytest.param(torch.float16, marks=pytest.mark.thorough)]

EVERY = ["chain", "star", "binary", "random", "forest"]

LONG = [40, pytest.param(130, marks=pytest.mark.thorough)]
"""Nodes of a long chain, every one of which a kernel runs up to the root; the interpreter is slow."""


@attrs.frozen
class Ragged:
    """Trees over two passes, one row a name of `TOPOLOGIES`.

    Rows differ in how many of their `old` columns and `new` nodes are real, but for the first, in which all
    are; the rest only see themselves.
    """

    names: Sequence[str]
    old: int
    new: int
    seed: int = 0

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self.names), self.old + self.new

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Returns the new nodes' mask, bool `[rows, new, columns]`, and a path, `[rows, columns]`."""
        chance, rows, paths = random.Random(self.seed), [], []
        for place, name in enumerate(self.names):
            counts = self.old, self.new
            if place:
                counts = chance.randint(0, self.old), chance.randint(0, self.new)
            columns = [*range(counts[0]), *range(self.old, self.old + counts[1])]
            seen = torch.eye(self.old + self.new, dtype=torch.bool)
            for column, parent in zip(columns, TOPOLOGIES[name](len(columns), chance), strict=True):
                if parent >= 0:
                    seen[column] |= seen[columns[parent]]
            rows.append(seen[self.old :])
            last = chance.choice(columns) if columns and chance.random() < 0.8 else None
            paths.append(torch.zeros_like(seen[0]) if last is None else seen[last])
        return torch.stack(rows).to(device), torch.stack(paths).to(device)


def ragged(*, old: int, new: int, rows: int = 2) -> st.SearchStrategy[Ragged]:
    """Trees of at most so many rows, older columns and new nodes."""
    return st.builds(
        Ragged,
        names=st.lists(st.sampled_from(EVERY), min_size=1, max_size=rows),
        old=st.integers(0, old),
        new=st.integers(1, new),
        seed=st.integers(0, 10**6),
    )


def noise(seed: int) -> Callable[..., Tensor]:
    """Gives normal numbers of a shape."""
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(shape, generator=generator)


def steps(normal: Tensor) -> Tensor:
    """At least 0; some forget everything, some nothing."""
    return torch.where(normal > 2, 400.0, torch.where(normal < -1, 0.0, normal.abs()))


def laid(device: torch.device, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns equal numbers, each tensor surrounded by NaN, with different strides in multiples of 16."""
    return {
        name: embedded(tensor.to(device), behind=place + 1)
        for place, (name, tensor) in enumerate(held.items())
    }


def embedded(tensor: Tensor, *, behind: int) -> Tensor:
    """Returns equal numbers surrounded by NaN: 16 before a line, and 16 times the argument after it."""
    *outer, last = tensor.shape
    shape = [*(size + 2 for size in outer), (-(-last // 16) + 1 + behind) * 16]
    around = tensor.new_full(shape, torch.nan)
    inside = around[(*(slice(1, size + 1) for size in outer), slice(16, 16 + last))]
    inside.copy_(tensor)
    return inside


def replays(
    operation: Any, reference: Any, layers: Sequence[Mapping[str, Tensor]], kept: Tensor, *, launches: int
) -> None:
    """Commits of `layers` together agree with the reference one by one, in so many launches.

    What comes out can be committed to in as many.
    """
    before = [layer["state"].clone() for layer in layers]
    lists = {name: [layer[name] for layer in layers] for name in layers[0]}
    with guarded() as launched:
        found = operation.replay_all(**lists, kept=kept)
    assert len(launched) == launches
    with guarded() as launched:
        operation.replay_all(**lists | {"state": found}, kept=kept)
    assert len(launched) == launches
    for state, layer, old in zip(found, layers, before, strict=True):
        assert relative_error(state, reference.replay(**layer, kept=kept)) < 1e-5
        assert torch.equal(layer["state"], old)


def strided(tensor: Tensor) -> Tensor:
    """Returns equal numbers that are not contiguous."""
    return tensor.repeat_interleave(2, -1)[..., ::2]


def repeated(tensor: Tensor) -> Tensor:
    """One number along the last axis, which lies in memory once."""
    return tensor[..., :1].expand_as(tensor)


def misaligned(tensor: Tensor) -> Tensor:
    """Returns equal numbers at an address that is not a multiple of 16 bytes."""
    around = tensor.new_zeros(tensor.numel() + 1)
    return around[1:].view(tensor.shape).copy_(tensor)


LAYOUTS = [
    (strided, "is not contiguous along its last axis"),
    (repeated, "is not contiguous along its last axis"),
    (misaligned, "starts at an address that is not a multiple of 16 bytes"),
]
"""What no kernel reads, with the reason."""


def left_to_the_reference(
    call: Callable[..., Any],
    reference: Callable[..., Any],
    held: Mapping[str, Any],
    *,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Check that no kernel takes `held`, and that the log says why."""
    with reference_serves(reason, caplog), guarded() as launched:
        found = call(**held)
    assert not launched
    wanted = reference(**held)
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    assert all(torch.equal(one, other) for one, other in pairs)


def layouts_left_to_the_reference(
    call: Callable[..., Any],
    reference: Callable[..., Any],
    held: Mapping[str, Any],
    *,
    caplog: pytest.LogCaptureFixture,
    **known_as: str,
) -> None:
    """Checks every tensor in `held`, by its name in the log, in every layout that no kernel reads."""
    for name, tensor in held.items():
        for lay, reason in LAYOUTS if isinstance(tensor, Tensor) else []:
            changed = {**held, name: lay(tensor)}
            reason = f"{known_as.get(name, name)} {reason}"
            left_to_the_reference(call, reference, changed, reason=reason, caplog=caplog)
