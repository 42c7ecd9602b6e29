"""A pass as recurrent layers see it: which nodes see which in a tree, or which tokens are text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from draftwood.kernels.mamba1_tree import dispatch as mamba1_tree
from draftwood.kernels.tree_conv import dispatch as tree_conv

PIECE = 64
"""Tokens of a prompt that a layer takes at once, as a tree that is one chain."""


class Pass:
    """Who sees whom in a pass, worked out once for all layers of a device.

    Attributes:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
        prompts: bool `[rows, nodes]`, the nodes that are tokens of a prompt; None where all are.
        paths: of the nodes; see `mamba1_tree`.
    """

    def __init__(self, visible: Tensor, prompts: Tensor | None = None) -> None:
        self.visible, self.prompts = visible, prompts
        self.paths = mamba1_tree.Paths(visible)
        self._windows: dict[int, Tensor] = {}
        self._elsewhere: dict[torch.device, Pass] = {}

    def on(self, device: torch.device) -> Pass:
        """Returns it for layers on `device`, sent there once."""
        if device == self.visible.device:
            return self
        if device not in self._elsewhere:
            later = device.type != "cpu"  # which would read what has not arrived
            prompts = None if self.prompts is None else self.prompts.to(device, non_blocking=later)
            self._elsewhere[device] = Pass(self.visible.to(device, non_blocking=later), prompts)
        return self._elsewhere[device]

    @property
    def levels(self) -> list[tuple[Tensor, Tensor]]:
        """The new nodes, those below older columns or none first, then their children; see `mamba1_tree`."""
        return self._new_paths.levels

    @cached_property
    def above(self) -> Tensor:
        """1 + the nearest older column that a new node sees, int64 `[rows, nodes]`; 0 where it sees none."""
        old = self.visible[..., : -self.visible.shape[1]]
        columns = torch.arange(old.shape[-1] + 1, device=old.device)
        return torch.where(torch.nn.functional.pad(old, (1, 0)), columns, 0).amax(-1)

    @cached_property
    def _new_paths(self) -> mamba1_tree.Paths:
        return mamba1_tree.Paths(self.visible[..., -self.visible.shape[1] :])

    def window(self, width: int) -> Tensor:
        """Indices `[rows, nodes, width]` of a convolution's inputs; see `tree_conv`."""
        if width not in self._windows:
            self._windows[width] = tree_conv.windows(visible=self.visible, width=width)
        return self._windows[width]


class Text:
    """Tokens of rows that are about to join, worked out once for all layers of a device.

    Attributes:
        counts: how many of the pass are text, int64 `[rows]`; the others are padding after it.
        whole: whether all are.
        mask: bool `[rows, tokens]`, False for tokens of which layers read zeros; None: there are none.
    """

    def __init__(
        self, counts: Sequence[int], tokens: int, device: torch.device, *, mask: Tensor | None = None
    ) -> None:
        self.counts = torch.tensor(counts, device=device)
        self.whole = min(counts) == tokens
        self.mask = None if mask is None else mask.to(device)
        self._given, self._tokens = counts, tokens
        self._elsewhere: dict[torch.device, Text] = {}

    def on(self, device: torch.device) -> Text:
        """Returns it for layers on `device`, sent there once."""
        if device == self.counts.device:
            return self
        if device not in self._elsewhere:
            self._elsewhere[device] = Text(self._given, self._tokens, device, mask=self.mask)
        return self._elsewhere[device]

    @cached_property
    def kept(self) -> Tensor:
        """Returns which tokens are text, bool `[rows, tokens]`."""
        return torch.arange(self._tokens, device=self.counts.device) < self.counts.unsqueeze(1)

    @cached_property
    def pieces(self) -> list[tuple[Pass, Tensor]]:
        """The tokens in trees that are chains, each with those that are text."""
        rows, pieces = len(self.counts), list[tuple[Pass, Tensor]]()
        chain: Pass | None = None
        for kept in self.kept.split(PIECE, 1):
            n = kept.shape[1]
            if chain is None or chain.visible.shape[1] != n:
                visible = torch.ones(n, n, dtype=torch.bool, device=kept.device).tril()
                chain = Pass(visible.expand(rows, n, n))
            pieces.append((chain, kept))
        return pieces
