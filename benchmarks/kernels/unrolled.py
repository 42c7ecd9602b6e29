"""A full binary tree as a row for every path, for contenders that know only sequences."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec

import attrs
import torch
from torch import Tensor

from draftwood.kernels.testing import TOPOLOGIES, visible


@attrs.frozen(eq=False)
class Unrolled:
    """A full binary tree, packed and as paths.

    Attributes:
        visible: bool `[1, nodes, nodes]`.
        paths: nodes from the root to every leaf, `[leaves, depth]`.
        chains: what every node of the paths sees, bool `[leaves, depth, depth]`.
    """

    visible: Tensor
    paths: Tensor
    chains: Tensor

    @classmethod
    def of(cls, depth: int, device: torch.device) -> Unrolled:
        """With `2**depth - 1` nodes."""
        parents = TOPOLOGIES["binary"](2**depth - 1, random.Random(0))
        paths = [_above(parents, leaf) for leaf in range(len(parents) // 2, len(parents))]
        chains = torch.ones(len(paths), depth, depth, dtype=torch.bool, device=device).tril()
        return cls(visible([parents]).to(device), torch.tensor(paths, device=device), chains)

    @property
    def words(self) -> str:
        """For a case's size."""
        return f"{self.visible.shape[1]} nodes of a binary tree"

    def path(self) -> Tensor:
        """The nodes of one path to a leaf, as bool `[1, nodes]`."""
        kept = torch.zeros_like(self.visible[:, 0])
        kept[:, self.paths[len(self.paths) // 3]] = True
        return kept

    def along(self, *tensors: Tensor) -> list[Tensor]:
        """`[1, nodes, ...]` as `[leaves, depth, ...]`."""
        return [tensor[0, self.paths] for tensor in tensors]

    def everywhere(self, state: Tensor) -> Tensor:
        """A committed state `[1, ...]` for every path."""
        return state.expand(len(self.paths), *state.shape[1:]).contiguous()

    def packed(self, outputs: Tensor) -> Tensor:
        """`[leaves, depth, ...]` as `[1, nodes, ...]`."""
        nodes = outputs.new_empty(1, self.visible.shape[1], *outputs.shape[2:])
        nodes[0, self.paths.flatten()] = outputs.flatten(0, 1)
        return nodes


def noise(seed: int, dtype: torch.dtype, device: torch.device) -> partial[Tensor]:
    """Gives normal numbers of a shape, the same on every device."""
    return partial(_noise, torch.Generator().manual_seed(seed), dtype, device)


def bytes_of(*tensors: Tensor) -> int:
    """That they take in memory."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def left_out() -> list[str]:
    """Contenders that cannot run here, and why."""
    if find_spec("mamba_ssm") is None:
        return ["selective_state_update and the chunk scan: mamba_ssm is not installed"]
    return []


def _above(parents: Sequence[int], node: int) -> list[int]:
    path = [node]
    while parents[path[-1]] >= 0:
        path.append(parents[path[-1]])
    return path[::-1]


def _noise(generator: torch.Generator, dtype: torch.dtype, device: torch.device, *shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).to(device, dtype)
