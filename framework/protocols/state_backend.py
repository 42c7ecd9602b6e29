"""`StateBackend`: the state of a model during decoding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.base.errors import UnsupportedModel
from draftwood.protocols.capabilities import (
    ExtendsByLevels,
    GivesFeatures,
    ReadsPrompts,
    ReadsWindows,
    RunsTogether,
)
from draftwood.trees.reading import read_chains


class LeavesOutLayers(Protocol):
    """Makes smaller models of some of its layers, for drafts by layer skipping.

    Attributes:
        skippable_layers: layers that `without_layers` may leave out, counted from 0; 0: it cannot.
    """

    skippable_layers: int = 0

    def without_layers(self, layers: Sequence[int]) -> StateBackend:
        """Returns a second backend over the same weights without these layers, with its own rows.

        It keeps law S for the smaller model; neither backend notices the other. Its `weight_bytes` are
        those that its own pass reads.

        Raises:
            InvalidInput: a layer that is not there, one named twice, or all of them.
            UnsupportedModel: the backend cannot do it.
        """
        raise UnsupportedModel(
            f"{type(self).__name__} cannot leave out layers: its skippable_layers is "
            f"{self.skippable_layers}; use a draft model."
        )


class StateBackend(
    ReadsPrompts, GivesFeatures, LeavesOutLayers, ExtendsByLevels, ReadsWindows, RunsTogether, Protocol
):
    """The state of a model during decoding: `prefill`, `extend`, `commit`, `release` and `lengths`.

    All else has a default. What a backend may offer besides is grouped: `LeavesOutLayers`, and the classes of
    `draftwood.protocols.capabilities`.

    Law S: for every tree and every sequence of calls, `extend` returns what sequential decoding of each
    node's path would return, and after `commit(paths)` the state is what sequential decoding of the
    paths leaves. Accepted paths are not contiguous in the tree. A call that raises leaves the
    committed state as it was.

    Attributes:
        vocab_size: width of the logits.
        max_length: tokens of the longest text that the model can go on from, or None where there is no end.
        weight_bytes: bytes of the weights that a pass reads.
        eos_token_ids: tokens that end a text unless the caller says otherwise.
        pad_token_id: the token that pads finished rows, or None.
        device: where token ids go, and logits are unless a model is spread over several.
        model: the model that it runs, with which checks compare it: a torch module, of which they call the
            plain forward, or an object whose `logits(tokens)` gives `[vocab]` after a list of tokens; or
            None.
    """

    vocab_size: int
    max_length: int | None
    weight_bytes: int
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    device: torch.device = torch.device("cpu")
    model: Any = None

    @property
    def lengths(self) -> list[int]:
        """Committed tokens of every row."""
        ...

    def prefill(self, rows: Sequence[Int[Tensor, " length"]]) -> None:
        """Append rows with `rows[i]` `[length]` int64 as committed tokens (possibly none)."""
        ...

    def release(self, rows: Sequence[int] | None = None) -> None:
        """Forget these rows, or all of them; never raises for a row that it does not have."""
        ...

    def extend(
        self,
        tokens: Int[Tensor, "rows nodes"],
        parents: Int[Tensor, "rows nodes"],
        counts: Sequence[int] | None = None,
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Append nodes to the uncommitted region of every row and return their logits.

        Args:
            tokens: `[rows, nodes]` int64.
            parents: `[rows, nodes]` int64, region indices: the index of the parent among all nodes that the
                row's calls appended since the last commit; -1 is the committed state. A parent comes before
                its child.
            counts: valid nodes of every row, the rest being padding; None means all.

        Returns:
            Logits `[rows, nodes, vocab]`, which no later call changes; rows beyond `counts` are undefined.
        """
        ...

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep these uncommitted nodes of every row, by region index and in order, and drop the others.

        Every path starts at a node with parent -1 and follows parent to child; it may be empty.
        """
        ...

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Append `rows[i]` to row i and commit it, as the next turn of a chat.

        Override it where a model reads a prompt otherwise than it decodes.

        Args:
            rows: tokens of every row; none for rows that stay as they are, which not all do. No row has
                uncommitted nodes.

        Returns:
            Logits `[rows, vocab]` after the last token of every row; 0 for rows that stay as they are.
        """
        return read_chains(rows, extend=self.extend, commit=self.commit)

    def renew(self) -> None:
        """Take up changes of the model since the last call, or refuse them in one sentence.

        Called while there are no rows, before the first ones join (law R).
        """
        return
