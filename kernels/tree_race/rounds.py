"""A round's trees on the device: the data of their nodes, and the launches that judge them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.kernels.configuration import Configuration
from draftwood.kernels.race_flows.offered import (
    beside_likeliest,
    clock,
    columns_for,
    is_whole,
    offered,
)
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_plan.arrays import Floats, Ints, TreeArrays

SETS, COLUMNS, LINES, NUMBERS = 32, 4, 13, 8
"""Constants of the kernels: numbers about sets, columns of a token, lines without tables, numbers of a
node."""

SPAN = 4096
"""Tokens that a program reads, or more where the programs would be too many."""


@dataclass(frozen=True, eq=False)
class InnerNodes:
    """The nodes that have children, of all rows, level by level.

    Attributes:
        table: int64 `[inner, 4]`: row, node, index among nodes with several children (-1 for none), children.
        levels: nodes of each depth.
        children: tokens of the children of nodes with several, then the first one again, `[several, most +
            1]`.
    """

    table: Ints
    levels: list[int]
    children: Ints

    @classmethod
    def of(cls, trees: TreeArrays, most: int) -> InnerNodes:
        """At most `most` children a node."""
        parents, rows = trees.parents, np.arange(len(trees.counts))[:, None]
        counts, depths, above = np.zeros_like(parents), np.zeros_like(parents), parents
        row, child = np.nonzero(parents >= 0)
        np.add.at(counts, (row, parents[row, child]), 1)
        while (below := above >= 0).any():
            depths += below
            above = np.where(below, parents[rows, above.clip(min=0)], -1)
        row, node = np.nonzero(counts)
        order = np.argsort(depths[row, node], kind="stable")
        row, node = row[order], node[order]
        several = counts[row, node] > 1
        numbers = np.where(several, several.cumsum() - 1, -1)
        slot_of = np.full_like(parents, -1)
        slot_of[row, node] = numbers
        children = np.full((int(several.sum()), most + 1), -1, dtype=np.int64)
        of_row, child = np.nonzero(parents >= 0)
        slot = slot_of[of_row, parents[of_row, child]]
        of_row, child, slot = (one[slot >= 0] for one in (of_row, child, slot))
        together = np.argsort(slot, kind="stable")
        of_row, child, slot = of_row[together], child[together], slot[together]
        place = np.arange(len(slot)) - np.searchsorted(slot, slot)
        children[slot, place] = trees.tokens[of_row, child]
        children = np.where(children < 0, children[:, :1], children)
        table = np.stack([row, node, numbers, counts[row, node]], axis=1)
        return cls(table, np.bincount(depths[row, node]).tolist(), children)

    @property
    def several(self) -> Ints:
        """Row, node and number of children of those with several, `[several, 3]`."""
        columns: Ints = self.table[self.table[:, 2] >= 0][:, [0, 1, 3]]
        return columns


@dataclass(eq=False)
class DeviceTrees:
    """The tensors on the device for the trees of a round.

    Attributes:
        trees: of all rows.
        nodes: those with children.
        kernels: by name.
        span: tokens that a program reads.
        held: tensors by the names that the kernels give them.
    """

    trees: TreeArrays
    nodes: InnerNodes
    kernels: Mapping[str, Configuration]
    span: int
    held: dict[str, Tensor]

    @classmethod
    def of(cls, trees: TreeArrays, waits: Floats, *, kernels: Mapping[str, Configuration]) -> DeviceTrees:
        """`trees` and `waits` (see `dispatch.walk`) on the device, by one copy."""
        most = waits.shape[2] - 1
        nodes = InnerNodes.of(trees, most)
        row, node, count = nodes.several.T
        there = np.arange(most + 1) < count[:, None]
        waited = (count[:, None] > 2) & (np.arange(most + 1) <= count[:, None])
        # Kernels read the first ones, which begin at multiples of 16 bytes.
        parts = {
            "plan": trees.plan(),
            "inner": torch.from_numpy(nodes.table),
            "counts": torch.from_numpy(np.pad(count, (0, len(count) % 2))),
            "children": torch.from_numpy(nodes.children),
            "there": torch.from_numpy(there.astype(np.float64)).view(torch.int64),
            "waits": torch.from_numpy(np.where(waited, waits[row, node], 0.0)).view(torch.int64),
        }
        flat = sent(torch.cat([part.flatten() for part in parts.values()]), trees.device)
        pieces = flat.split([part.numel() for part in parts.values()])
        held = {
            name: piece.view(part.shape) for piece, (name, part) in zip(pieces, parts.items(), strict=True)
        }
        for name in ("there", "waits"):
            held[name] = held[name].view(torch.float64)
        programs = kernels["look"].constants["PROGRAMS"]
        span = SPAN * -(-trees.vocab // (SPAN * programs))
        made = cls(trees, nodes, kernels, span, held)
        made._allocate(most, programs)
        return made

    @property
    def programs(self) -> int:
        """Programs that read a vocabulary together."""
        return -(-self.trees.vocab // self.span)

    @property
    def size(self) -> int:
        """Tokens that are offered at a node, with what fills them up."""
        return columns_for(self.trees.vocab, self.kernels["weigh"].constants["BLOCK"])

    def _allocate(self, most: int, programs: int) -> None:
        rows, lines, inner = len(self.trees.counts), self.trees.lines, max(len(self.nodes.table), 1)
        several, size, vocab = max(len(self.nodes.children), 1), self.size, self.trees.vocab
        sets = int(self.nodes.table[:, 3].max(initial=1))

        def empty(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.empty(shape, dtype=dtype, device=self.trees.device)

        self.held |= {
            "laws": empty(inner, programs, 2),
            "drafts": empty(several, vocab, dtype=torch.float32),
            "targets": empty(several, vocab, dtype=torch.float32),
            "sums": empty(several, programs, 2, SETS),
            "set_sums": empty(several, 2, SETS),
            "columns": empty(several, COLUMNS, size),
            "keys": empty(several, size),
            "norms": empty(several),
            "again": empty(several, size, dtype=torch.int64),
            "scratch": empty(several, LINES + 2 * sets, size),
            "flows": empty(several, 3, size),
            "places": empty(several, size, dtype=torch.int32),
            "numbers": empty(rows, lines, NUMBERS),
            "spares": empty(inner, programs),
            "left": empty(rows, vocab),
            "heights": empty(rows, programs),
            "out": empty(rows, 5 + lines, dtype=torch.int32),
        }
        # Of nodes with one child there is none of these.
        self.held |= {"rests": self.held["norms"], "tokens": self.held["again"], "orders": self.held["again"]}

    def run(self, kernel: str, grid: tuple[int, ...], **numbers: int) -> None:
        """Launch `kernel` with the tensors and sizes that it takes, and `numbers`."""
        sizes: dict[str, Any] = {
            "lines": self.trees.lines,
            "vocab": self.trees.vocab,
            "span": self.span,
            "size": self.size,
            "programs": self.programs,
            "light_programs": self.light_programs,
            "height": self.held["scratch"].shape[1],
        }
        known = {**self.held, **sizes, **numbers}
        configuration = self.kernels[kernel]
        configuration.launch(grid, **{name: known[name] for name in configuration.types})

    @property
    def light_programs(self) -> int:
        """Programs that sum up the tokens which are not offered: none where all are."""
        return 0 if is_whole(self.trees.vocab) else self.programs

    def offer(self) -> None:
        """Look at the draft's laws, draw the times, and rank the tokens that are offered."""
        if len(self.nodes.table):
            self.run("look", (len(self.nodes.table), self.programs))
        if not (several := len(self.nodes.children)):
            return
        held = self.held
        held["rests"], held["factors"] = clock(held["drafts"], held["children"], held["there"], held["waits"])
        held["beside_top"] = beside_likeliest(held["drafts"])
        held["tokens"], others = offered(held["drafts"], held["targets"], held["factors"], self.size)
        if others is not None:
            self.held["others"] = others
            self.run("light", (several, self.programs))
        self.run("weigh", (several,), programs=self.light_programs)
        held["orders"] = held["keys"].sort(stable=True, dim=1, descending=True).indices

    def allow(self) -> None:
        """Compute all allowances, one launch per level, and the rests after only children."""
        first = 0
        for level in self.nodes.levels:
            self.run("allow", (level,), first=first)
            first += level
        if (self.nodes.table[:, 3] == 1).any():
            self.run("spare", (len(self.nodes.table), self.programs))

    def judge(self) -> Tensor:
        """Toss the coins and draw the extra tokens: int32 `[rows, 5 + lines]`, as `walks_of` reads them."""
        rows = len(self.trees.counts)
        self.run("walk", (rows,))
        self.run("leave", (rows, self.programs))
        self.run("choose", (rows,))
        return self.held["out"]
