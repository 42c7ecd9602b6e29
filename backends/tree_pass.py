"""What goes into a pass over uncommitted nodes, as it stands on the host."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.region import Ints, Staged
from draftwood.backends.visibility import Visibility


@attrs.frozen(eq=False)
class TreePass:
    """The nodes of one `extend`.

    Attributes:
        tokens: `[rows, nodes]` int64 in the order of the call, on the host or on a device.
        staged: the nodes in the region.
        positions: `[rows, nodes]` in column order.
        visibility: what they see.
        start: the slot of the first of them.
        prompts: bool `[rows, nodes]` in column order, the nodes that are tokens of a prompt; None where no
            layer is recurrent.
    """

    tokens: Tensor
    staged: Staged
    positions: Ints
    visibility: Visibility
    start: int
    prompts: NDArray[np.bool_] | None = None

    @property
    def on_host(self) -> bool:
        """Whether the tokens are."""
        return self.tokens.device.type == "cpu"

    def host_tokens(self) -> Ints:
        """Tokens on the host, in column order."""
        tokens: Ints = self.tokens.numpy()
        orders = self.staged.orders()
        return tokens.reshape(-1)[orders["from call"]].reshape(tokens.shape) if orders else tokens

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What the methods below need on the device; mostly nothing where a drafter's tokens are there."""
        held: dict[str, NDArray[Any]] = dict(self.staged.orders())
        nodes = self.tokens.shape[1]
        if self.on_host:
            held.pop("from call", None)
            held["tokens"] = self.host_tokens()
        elif any(count < nodes for count in self.staged.counts):
            held["real"] = np.arange(nodes) < np.array(self.staged.counts)[:, None]
        return held

    def device_tokens(self, tensors: dict[str, Tensor], device: torch.device) -> Tensor:
        """Tokens on `device` in column order, where `tensors` are `arrays`; padding is 0."""
        if self.on_host:
            return tensors["tokens"]
        tokens = self.tokens.to(device, non_blocking=True)
        if "real" in tensors:
            tokens = torch.where(tensors["real"], tokens, 0)
        if "from call" in tensors:
            tokens = tokens.flatten().index_select(0, tensors["from call"]).view(tokens.shape)
        return tokens

    def in_call(self, logits: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """`logits` `[rows, nodes, vocab]` of the nodes in column order, in the order of the call."""
        if "to call" not in tensors:
            return logits
        order = tensors["to call"].to(logits.device)
        return logits.flatten(0, 1).index_select(0, order).view(logits.shape)
