"""The packed mask of a pass's nodes: one bit per pair of nodes, and nothing as long as the context."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

WORD = 32
"""Columns in a word, which are one block of the tree part."""


@dataclass(eq=False)
class TreeMask:
    """A mask of new nodes over the committed slots and the uncommitted columns that follow them.

    Attributes:
        bits: int32 `[rows, nodes, words]`, column j in bit j % 32 of word j // 32.
        lengths: int32 `[rows]`, committed slots of every row; slots between them and `start` are a gap.
        start: the slot of column 0, or an upper bound of it where only `at` has it; no length exceeds it.
        columns: uncommitted nodes of every row, the new ones last.
        first: int32 `[rows, nodes]`, the first committed slot that a node sees: above 0 with a window.
        counts: int32 `[rows]`, new nodes that are real; outputs of the others are not written.
        at: int32 `[1]`, the slot of column 0; by default `start`. A pass that was captured finds it there.
    """

    bits: Tensor
    lengths: Tensor
    start: int
    columns: int
    first: Tensor
    counts: Tensor
    at: Tensor | None = None
    _blocks: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    _elsewhere: dict[torch.device, TreeMask] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        visible: Tensor,
        *,
        lengths: Tensor,
        start: int,
        first: Tensor | None = None,
        within: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> TreeMask:
        """The mask of `visible`, bool `[rows, nodes, columns]`: a node sees itself and its ancestors.

        With `within`, of the same shape, it only sees those in its window.

        Raises:
            ValueError: no tree has this mask (see `check`); only checked on the CPU, as it would stall a GPU.
        """
        rows, nodes, columns = visible.shape
        if visible.device.type == "cpu":
            check(visible)
        if first is None:
            first = lengths.new_zeros(rows, nodes)
        if counts is None:
            counts = lengths.new_full((rows,), nodes)
        first, counts, lengths = (tensor.to(torch.int32) for tensor in (first, counts, lengths))
        seen = visible if within is None else visible & within
        return cls(pack(seen), lengths, start, columns, first.contiguous(), counts)

    def __post_init__(self) -> None:
        rows, nodes, words = self.bits.shape
        if self.columns > words * WORD:
            raise ValueError(
                f"{self.columns} columns need {-(-self.columns // WORD)} words of {WORD} bits a node, and "
                f"the mask has {words}."
            )
        if self.columns < nodes:
            raise ValueError(f"The last {nodes} of {self.columns} columns cannot be the {nodes} new nodes.")
        shapes = {
            "lengths": (self.lengths, (rows,)),
            "first": (self.first, (rows, nodes)),
            "counts": (self.counts, (rows,)),
        }
        for name, (tensor, shape) in shapes.items():
            if tensor.shape != shape or tensor.dtype != torch.int32:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not int32 {shape}.")

    @property
    def slot(self) -> Tensor:
        """int32 `[1]`, the slot of column 0."""
        if self.at is None:
            self.at = self.lengths.new_full((1,), self.start)
        return self.at

    def visible(self) -> Tensor:
        """Returns the dense mask for references, bool `[rows, nodes, start + columns]`."""
        slots = torch.arange(self.start + self.columns, device=self.bits.device)
        committed = (slots < self.lengths[:, None, None]) & (slots >= self.first[:, :, None])
        column = slots - self.slot
        bit = column.clamp(0, self.columns - 1)
        held = self.bits[:, :, bit // WORD] >> (bit % WORD)
        return committed | ((held & 1).bool() & (column >= 0) & (column < self.columns))

    def blocks(self, *, group: int, lines: int) -> tuple[Tensor, Tensor]:
        """Blocks that hold anything, for tiles of `lines` queries, `group` of them a node.

        Made once a pass and used by all its layers.

        Returns:
            Their numbers, int32 `[rows, tiles, words]`, in ascending order and before those that are empty;
            and how many they are, int32 `[rows, tiles]`.
        """
        if (group, lines) not in self._blocks:
            nodes = self.bits.shape[1]
            tiles = -(-nodes * group // lines)
            tile = torch.arange(tiles, device=self.bits.device) * lines
            filled_before = torch.nn.functional.pad(
                (self.bits != 0).cumsum(1, dtype=torch.int32), (0, 0, 1, 0)
            )
            last = ((tile + lines - 1) // group + 1).clamp(max=nodes)
            filled = filled_before[:, last] > filled_before[:, tile // group]
            order = filled.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
            self._blocks[group, lines] = order.to(torch.int32), filled.sum(-1, dtype=torch.int32)
        return self._blocks[group, lines]

    def know_blocks(self, blocks: Tensor, counts: Tensor, *, group: int, lines: int) -> None:
        """Let `blocks` give these, which it gave before."""
        self._blocks[group, lines] = blocks, counts

    def to(self, device: torch.device) -> TreeMask:
        """Returns the mask on `device`, made once for all layers that a model has there."""
        if device == self.bits.device:
            return self
        if device not in self._elsewhere:
            names = ("bits", "lengths", "first", "counts", "slot")
            tensors = {name: getattr(self, name).to(device) for name in names}
            tensors["at"] = tensors.pop("slot")
            self._elsewhere[device] = TreeMask(start=self.start, columns=self.columns, **tensors)
        return self._elsewhere[device]


def pack(visible: Tensor) -> Tensor:
    """bool `[..., columns]` as int32 `[..., words]`."""
    words = -(-visible.shape[-1] // WORD)
    padded = torch.nn.functional.pad(visible, (0, words * WORD - visible.shape[-1]))
    bits = torch.ones(WORD, dtype=torch.int64, device=visible.device) << torch.arange(
        WORD, device=visible.device
    )
    # Distinct bits, so the sum is their union; the highest becomes the sign.
    return (padded.view(*visible.shape[:-1], words, WORD) * bits).sum(-1).to(torch.int32)


def unpack(bits: Tensor, columns: int) -> Tensor:
    """int32 `[..., words]` as bool `[..., columns]`."""
    seen = (bits.unsqueeze(-1) >> torch.arange(WORD, device=bits.device)) & 1
    return seen.flatten(-2)[..., :columns].bool()


def check(visible: Tensor) -> None:
    """Raise `ValueError` unless bool `visible` `[rows, nodes, columns]` can be a tree's.

    A node sees itself and the columns that its parent sees. The parent is the last other column that it sees.
    """
    _, nodes, columns = visible.shape
    old = columns - nodes
    numbers = torch.arange(columns, device=visible.device)
    itself = numbers == numbers[old:, None]
    others = visible & ~itself
    parent = torch.where(others, numbers, -1).amax(2) if nodes else numbers.new_empty(len(visible), 0)
    above = visible.gather(1, (parent - old).clamp(min=0).unsqueeze(2).expand(-1, -1, columns))
    wrong = {
        "does not see itself": ~visible[:, :, old:].diagonal(dim1=1, dim2=2),
        "sees a node after itself": parent > numbers[old:],
        "does not see just what its parent sees": (parent >= old) & (others != above).any(2),
    }
    for what, nodes_at_fault in wrong.items():
        if bool(nodes_at_fault.any()):
            row, node = nodes_at_fault.nonzero()[0].tolist()
            raise ValueError(f"Node {node} of row {row} {what}; the mask is no tree's.")
