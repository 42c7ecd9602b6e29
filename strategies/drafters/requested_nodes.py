"""The nodes that a drafting model was asked for in a round of all rows, and those that an outcome keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood import Requests
from draftwood.strategies.padded import widened

Numbers = NDArray[np.int64]

CAPACITY = 64
"""Nodes of a row for which there is room at first."""


PLANNED = 2
"""Nodes of the first pass of planned levels: the root, and the one that is mostly lacking, a leaf."""


@attrs.frozen(eq=False)
class Fed:
    """The inputs of one pass, `[rows, nodes]`.

    Attributes:
        tokens: int64; of a row those whose state the model lacked, if any, then the nodes asked for.
        parents: int64, region indices.
        counts: int64 `[rows]`, how many of them are valid; 0 for a row that feeds nothing.
        leads: int64 `[rows]`, the number of tokens before the nodes asked for.
        width: nodes asked for, at most.
        lead: `leads` of every row, where all rows feed nodes and lacked as many tokens; else None.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    counts: Numbers
    leads: Numbers
    width: int
    lead: int | None

    def asked(self, logits: Tensor) -> Tensor:
        """Returns the logits `[rows, width, vocab]` of the nodes asked for; -inf where a node was not fed.

        Args:
            logits: of the pass, `[rows, nodes, vocab]`, which may be written to.
        """
        if self.lead is not None:
            return logits[:, self.lead :] if self.lead else logits
        device, out = logits.device, logits
        if self.tokens.shape[1] > self.width:
            columns = np.minimum(self.leads[:, None] + np.arange(self.width), self.tokens.shape[1] - 1)
            at = torch.from_numpy(columns).to(device, non_blocking=True).unsqueeze(2)
            out = logits.gather(1, at.expand(-1, -1, logits.shape[-1]))
        missing = np.flatnonzero(np.arange(self.width) >= (self.counts - self.leads)[:, None])
        nodes = out.reshape(-1, out.shape[-1])
        nodes.index_fill_(0, torch.from_numpy(missing).to(device, non_blocking=True), -torch.inf)
        return nodes.view(out.shape)


class RequestedNodes:
    """The nodes of a round by request number, for all rows, as arrays.

    A row has tokens *pending*: accepted, without state in the model. The first pass of a round feeds them
    before the nodes; they are a chain from the committed state, and the root hangs below it.
    """

    def __init__(self) -> None:
        self._pending: list[list[int]] = []
        # By request number; entries after a row's last one mean nothing.
        self._tokens, self._parents = np.zeros((2, 0, CAPACITY), dtype=np.int64)
        self._begin()

    def _begin(self) -> None:
        rows = len(self._pending)
        if len(self._tokens) != rows:
            self._tokens, self._parents = np.zeros((2, rows, CAPACITY), dtype=np.int64)
        self._requested = np.zeros(rows, dtype=np.int64)  # nodes asked for
        self._fed = np.zeros(rows, dtype=np.int64)  # the nodes among them that were fed
        # Tokens that the first pass feeds before the nodes.
        leads, self._none = list(map(len, self._pending)), np.zeros(rows, dtype=np.int64)
        self._leads, self._longest = np.array(leads, dtype=np.int64), max(leads, default=0)
        self._unfed = True  # whether some row may have its first pass still to come
        self._root: int | None = None  # region index of the root, where it does not follow the pending tokens
        self._exhausted = np.zeros(rows, dtype=bool)

    def __len__(self) -> int:
        """Rows."""
        return len(self._pending)

    def join(self, pending: Sequence[list[int]]) -> None:
        """Append rows with these tokens pending."""
        self._pending += pending
        self._begin()

    def release(self, rows: Sequence[int] | None) -> None:
        """Forget these rows, or all."""
        removed = set(range(len(self._pending)) if rows is None else rows)
        keep = [row for row in range(len(self._pending)) if row not in removed]
        self._pending = [self._pending[row] for row in keep]
        for name in ("tokens", "parents", "requested", "fed", "leads", "none", "exhausted"):
            setattr(self, f"_{name}", getattr(self, f"_{name}")[keep])

    def take(self, requests: Requests, *, lengths: Sequence[int], room: int | None) -> Fed:
        """Returns the inputs of a pass for `requests`.

        Args:
            requests: the nodes.
            lengths: committed tokens of every row.
            room: tokens that a text may have in the model, or None; a row that would have more feeds nothing
                from then on.
        """
        counts = np.array(requests.counts, dtype=np.int64)
        (rows, width), requested = requests.tokens.shape, self._requested.tolist()
        start = max(requested, default=0)
        if start + width > self._tokens.shape[1]:
            self._reserve(start + width)
        # Padding is written over by the next request, or never read.
        place: Any = np.s_[:, start : start + width]
        if min(requested, default=0) < start:
            place = np.arange(rows)[:, None], self._requested[:, None] + np.arange(width)
        on_host = requests.tokens if requests.tokens.is_cpu else requests.tokens.cpu()
        self._tokens[place] = asked = on_host.numpy()
        self._parents[place] = above = requests.parents.numpy()
        self._requested = self._requested + counts
        if room is not None and max(lengths, default=0) + self._longest + start + width >= room:
            # Some node may be beyond the context.
            self._exhausted |= (counts > 0) & (np.array(lengths) + self._leads + self._deepest() >= room)
            counts[self._exhausted] = 0
        every, ahead, longest = 0 not in counts.tolist(), self._none, 0
        lead = 0 if every else None
        if self._unfed and self._longest:
            ahead = self._leads * ((counts > 0) & (self._fed == 0))
            longest = int(ahead.max(initial=0))
            lead = longest if every and (ahead == longest).all() else None
        self._fed = self._requested if every else np.where(counts > 0, self._requested, self._fed)
        self._unfed = self._unfed and not every
        if not self._longest:  # request numbers are region indices
            return Fed(requests.tokens, requests.parents, counts, ahead, width, lead)
        parents = above + self._leads[:, None]
        if not longest:
            return Fed(requests.tokens, torch.from_numpy(parents), counts, ahead, width, lead)
        tokens, chain = np.zeros((2, rows, longest + width), np.int64)
        chain[:] = np.arange(-1, longest + width - 1)
        for row in np.flatnonzero(ahead):
            tokens[row, : ahead[row]] = self._pending[row]
        place = np.arange(rows)[:, None], ahead[:, None] + np.arange(width)
        tokens[place], chain[place] = asked, parents
        return Fed(torch.from_numpy(tokens), torch.from_numpy(chain), counts + ahead, ahead, width, lead)

    @property
    def lacks_several(self) -> bool:
        """Whether a row lacks more tokens than `root_pass` feeds, and nothing was asked for yet."""
        return self._longest >= PLANNED and not any(self._requested.tolist())

    def lacking(self) -> tuple[Tensor, Tensor, list[int]]:
        """Tokens and parents `[rows, nodes]`, and their counts, of a pass over all pending tokens."""
        tokens = np.zeros((len(self._pending), self._longest), dtype=np.int64)
        for row, lacking in enumerate(self._pending):
            tokens[row, : len(lacking)] = lacking
        parents = np.arange(-1, self._longest - 1)[None].repeat(len(tokens), 0)
        return torch.from_numpy(tokens), torch.from_numpy(parents), self._leads.tolist()

    def caught_up(self) -> None:
        """The tokens of `lacking` have joined the text in the model."""
        self._pending = [[] for _ in self._pending]
        self._begin()

    def root_pass(
        self, roots: Sequence[int], *, depth: int, lengths: Sequence[int], room: int | None
    ) -> tuple[Tensor, Tensor] | None:
        """Tokens and parents `[rows, PLANNED]` of a pass that ends with every row's root.

        The tokens whose state the model lacks precede it, and before them, where there is room, nodes
        that nothing comes of.

        Args:
            roots: of all rows.
            depth: levels that are to follow the root's.
            lengths: committed tokens of every row.
            room: tokens that a text may have in the model, or None.

        Returns:
            None where a row lacks too many tokens, or has no room; nothing has changed then.
        """
        pending = [len(tokens) for tokens in self._pending]
        if max(pending, default=0) >= PLANNED or any(self._requested.tolist()):
            return None
        if room is not None and max(map(sum, zip(lengths, pending, strict=True))) + depth >= room:
            return None
        tokens = np.zeros((len(roots), PLANNED), dtype=np.int64)
        parents = np.full((len(roots), PLANNED), -1, dtype=np.int64)
        tokens[:, -1] = roots
        for row, lacking in enumerate(self._pending):
            first = PLANNED - 1 - len(lacking)
            tokens[row, first:-1] = lacking
            parents[row, first + 1 :] = range(first, PLANNED - 1)
        return torch.from_numpy(tokens), torch.from_numpy(parents)

    def grown(self, roots: Sequence[int], tokens: Numbers, parents: Numbers) -> None:
        """Below the roots of `root_pass` nodes `[rows, nodes]` have joined, parents by region index."""
        self._root = PLANNED - 1
        nodes = 1 + tokens.shape[1]
        self._reserve(nodes)
        self._tokens[:, 0], self._parents[:, 0] = roots, -1
        self._tokens[:, 1:nodes], self._parents[:, 1:nodes] = tokens, parents - self._root
        self._requested[:] = self._fed[:] = nodes

    def commit(self, accepted: Sequence[Sequence[int]]) -> list[list[int]]:
        """Region indices to keep of every row for the accepted tokens, root first; begins a new round.

        Nodes that were not fed, such as leaves, are left out, and pending for the next round.
        """
        fed = self._fed.tolist()
        known = np.s_[:, : max(fed, default=0)]
        tokens, parents = self._tokens[known].tolist(), self._parents[known].tolist()
        paths = []
        for row, (of_row, lead) in enumerate(zip(accepted, self._leads.tolist(), strict=True)):
            kept = _followed(of_row, tokens[row][: fed[row]], parents[row])
            root = lead if self._root is None else self._root
            paths.append([*range(root - lead, root), *[root + number for number in kept]] if kept else [])
            self._pending[row] = [*self._pending[row], *of_row][len(paths[row]) :]
        self._begin()
        return paths

    def _deepest(self) -> Numbers:
        """Returns the depth of the deepest node of every row, `[rows]`; the root's is 0."""
        nodes = np.arange(self._parents.shape[1]) < self._requested[:, None]
        above = parents = np.where(nodes, self._parents, -1)
        deepest = np.zeros(len(parents), np.int64)
        while (below := above >= 0).any():
            deepest += below.any(1)
            above = np.where(below, np.take_along_axis(parents, np.maximum(above, 0), 1), -1)
        return deepest

    def _reserve(self, nodes: int) -> None:
        if nodes > (have := self._tokens.shape[1]):
            self._tokens, self._parents = (
                widened(numbers, max(nodes, 2 * have)) for numbers in (self._tokens, self._parents)
            )


def _followed(accepted: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The nodes, by request number, of the longest beginning of `accepted` that was fed, root first."""
    path, above, node = list[int](), -1, 0
    for token in accepted:
        # A child was asked for after its parent, and after it in the same request.
        while node < len(tokens) and not (tokens[node] == token and parents[node] == above):
            node += 1
        if node == len(tokens):
            break
        path.append(node)
        above = node
    return path
