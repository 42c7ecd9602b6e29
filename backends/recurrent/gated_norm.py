"""The gate of Mamba-2 layers' outputs, as in the `mamba_ssm` package, in any number of groups."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from draftwood.backends.recurrent.mixer import precise


class Gate(torch.nn.Module):
    """Returns only the gate, for layers without a norm."""

    def forward(self, out: Tensor, gate: Tensor) -> Tensor:
        """`[..., channels]` in the dtype of `out`."""
        return (precise(out) * silu(precise(gate))).to(out.dtype)


class GatedNorm(torch.nn.Module):
    """The gate and a root-mean-square norm of every group of channels by itself.

    transformers 5.17 norms all channels together, whatever the groups of its Mamba-2.
    """

    def __init__(self, channels: int, *, groups: int, before_gate: bool = False, epsilon: float = 1e-5):
        """With weights of one.

        Args:
            channels: how many there are.
            groups: how many parts of equal size they have.
            before_gate: whether the norm comes first, and the gate after it.
            epsilon: what is added to the mean square.
        """
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(channels))
        self._groups, self._before_gate, self._epsilon = groups, before_gate, epsilon

    def forward(self, out: Tensor, gate: Tensor) -> Tensor:
        """`[..., channels]` in the dtype of `out`."""
        values, gates = precise(out), silu(precise(gate))
        if not self._before_gate:
            values = values * gates
        grouped = values.unflatten(-1, (self._groups, -1))
        size = grouped.square().mean(-1, keepdim=True) + self._epsilon
        normed: Tensor = (grouped * size.rsqrt()).flatten(-2) * self.weight
        if self._before_gate:
            normed = normed * gates
        return normed.to(out.dtype)
