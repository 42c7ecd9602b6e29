"""Block drafters: a head on the target's features guesses a block of tokens in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import IncompatibleModels, InvalidInput, Outcome, StateBackend
from draftwood.base.validators import probability
from draftwood.protocols.model_prompt import ModelPrompt, filled_words
from draftwood.strategies.blocks.context import Contexts
from draftwood.strategies.blocks.files import is_block, load_block
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.depth_marginals import AskedNodes
from draftwood.strategies.drafters.feature_marginals import FeatureMarginals, check_target
from draftwood.strategies.drafters.rotated_target import undo_rotation
from draftwood.strategies.heads.found import described_in, folder_of

_WHAT = "the block drafter"


@attrs.define(eq=False)
class BlockDrafter(FeatureMarginals):
    """Drafts with a DFlash, JetSpec, DSpark or Domino head: one pass gives the distributions of all depths.

    The head reads the target's features of the text, the root, and masks in place of what is to come. A
    node's distribution is that of its depth; a DSpark head corrects it by the node's own token. Before a
    text's second token there are no features, and nothing is proposed.

    It reads the features of `target`, and must be the only one who takes them; `target` must be the backend
    that the decoder drives.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        head: a folder or hub name in one of the formats of `blocks.files`, or the module, which goes to the
            target's device and dtype.
        block_size: slots of a block, where the folder does not say it.
        confidence: nothing is proposed below a node where the head's confidence that the path is accepted,
            with the next node, is less than this. It is known before that node's token is drawn, so no law
            is broken. 0: it is not asked; only DSpark heads say it.
        rotation: `"none"` for a head that was trained on this very target though that is rotated, or a file
            of safetensors with the rotation; None for what the files of the target say.

    Raises:
        UnsupportedModel: the target declares that it gives no features, or its rotation cannot be undone.
        IncompatibleModels: a head for another width, vocabulary or number of layers than the target's.
        InvalidInput: a head that cannot be read, or that does not say how confident it is.

    Source: DFlash (z-lab); JetSpec (arXiv 2606.18394); DSpark (arXiv 2607.05147).
    """

    head: Any = attrs.field(repr=False)
    block_size: int | None = attrs.field(default=None, kw_only=True)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    confidence: float = attrs.field(default=0.0, kw_only=True, validator=probability)
    _contexts: Contexts = attrs.field(init=False, repr=False)
    _slots: Tensor | None = attrs.field(default=None, init=False, repr=False)  # of this round's blocks
    # The state of a recurrent correction after every node, by request number.
    _states: Tensor | None = attrs.field(default=None, init=False, repr=False)
    # The confidence that the path to a node's next child is accepted, by request number.
    _sure: Tensor | None = attrs.field(default=None, init=False, repr=False)
    source = "DFlash (z-lab); DSpark (arXiv 2607.05147)"

    def __attrs_post_init__(self) -> None:
        if isinstance(self.head, str | PathLike):
            self.head = load_block(folder_of(self.head), block_size=self.block_size)
        config = self.head.config
        if self.block_size not in (None, config.block_size):
            raise InvalidInput(
                f"block_size={self.block_size!r:.20} is not that of the head, "
                f"{config.block_size}; leave it out."
            )
        if self.confidence and self.head.confidence_head is None:
            raise InvalidInput(
                f"confidence={self.confidence!r:.20} needs a head that says how confident it is, and this "
                "one does not; leave it out."
            )
        check_block_fits(self.head, self.target)
        self._begin(
            _WHAT,
            width=config.feature_width,
            vocabulary=config.vocab_size,
            taps=config.taps_in,
            through=self.head.project,
        )
        self.head.to(self.target.input_embeddings(torch.zeros(1, dtype=torch.int64)))
        self.head.requires_grad_(False)
        undo_rotation(self.head, self.target, self.rotation)
        self._contexts = Contexts(self.head)

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is one for it, readable or not: a module, a folder or a hub name."""
        return isinstance(head, BlockHead) or (
            isinstance(head, str | PathLike) and is_block(described_in(head))
        )

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.head.config.vocab_size)

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return sum(int(weight.numel() * weight.element_size()) for weight in self.head.parameters())

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._check_rows(rows, held=len(self._contexts))
        self._contexts.join(len(rows))
        super().prefill(rows)

    def prefill_prompt(self, prompt: ModelPrompt, rows: Sequence[int]) -> None:
        # The target has features of all columns, images and embeddings among them.
        lengths = self.target.lengths[len(self._contexts) :]
        self.prefill(filled_words(prompt, rows, lengths=lengths, vocab_size=self.vocab_size))

    def _forget(self, kept: Sequence[int]) -> None:
        self._contexts.keep(kept)
        self._slots = None if self._slots is None else self._slots[list(kept)]
        self._states = None if self._states is None else self._states[list(kept)]
        self._sure = None if self._sure is None else self._sure[list(kept)]

    @torch.no_grad()
    def _read(self, outcomes: Sequence[Outcome] | None) -> None:
        self._states = self._sure = None
        self._contexts.append(self._taken(self.head.config.hidden_size))

    def _guess(self, roots: Sequence[int | None]) -> Tensor:
        head, config, lengths = self.head, self.head.config, torch.from_numpy(self._contexts.lengths)
        tokens = torch.full((len(roots), config.block_size), config.mask_token_id)
        tokens[:, 0] = torch.tensor([root or 0 for root in roots])
        device = self.target.device
        slots = self._embedded(tokens.to(device, non_blocking=True), head)
        states = head(slots, self._contexts.known, lengths)
        self._slots = states
        states = states[:, config.block_size - config.depths :]
        logits = self.target.output_head(states) if head.lm_head is None else head.lm_head(states)
        if not lengths.all():
            nothing = (lengths == 0).to(device, non_blocking=True)
            logits = logits.masked_fill(nothing[:, None, None], -torch.inf)
        return logits

    def _at_nodes(self, logits: Tensor, asked: AskedNodes) -> Tensor:
        head: BlockHead = self.head
        slots = self._slots
        if slots is None:
            return head.over_target(logits)
        if not (head.corrects or self.confidence):
            return head.over_target(logits)
        first = head.config.block_size - head.config.depths  # the slot that guesses the root's children
        # The plain correction is by the token only, and looks up no slot.
        plain = head.markov_head is not None and head.config.markov_type == "vanilla"
        at = slots
        if self.confidence or not plain:
            at = slots[asked.rows, (asked.depths + first).clamp(max=slots.shape[1] - 1)]
        if head.config.recurrent:
            logits = logits + self._in_order(at, asked, slots[:, :first])
        elif head.corrects:
            change, _ = head.correction(asked.tokens, None, at, None, depth=0)
            logits = logits + change
        found = head.over_target(logits)
        if not self.confidence:
            return found
        unsure = self._confidence(at, asked) < self.confidence
        return found.masked_fill(unsure.unsqueeze(2), -torch.inf)

    def _confidence(self, at: Tensor, asked: AskedNodes) -> Tensor:
        """Returns the confidence `[rows, nodes]` that the paths to the nodes' next children are accepted.

        Args:
            at: states of the slots of these nodes.
            asked: the nodes.
        """
        own = self.head.confidence(asked.tokens, at)
        sure = self._sure = _with_room(self._sure, asked, own.new_ones(len(own), 0))
        for depth in asked.depths[asked.depths >= 0].unique().tolist():
            row, node = (asked.depths == depth).nonzero(as_tuple=True)
            above = sure[row, asked.parents[row, node]] if depth else 1.0
            sure[row, asked.numbers[row, node]] = own[row, node] * above
        return sure[asked.rows, asked.numbers]

    def _in_order(self, at: Tensor, asked: AskedNodes, before: Tensor) -> Tensor:
        """The correction by a recurrence along each node's path, level by level.

        Args:
            at: states of the slots of these nodes.
            asked: the nodes.
            before: the root's slot where that guesses nothing, `[rows, 1, hidden]`; else none.
        """
        head = self.head
        empty = at.new_zeros(len(at), 0, head.config.recurrent)
        states = self._states = _with_room(self._states, asked, empty)
        change = at.new_zeros(*at.shape[:2], head.config.proposed)
        for depth in asked.depths[asked.depths >= 0].unique().tolist():
            row, node = (asked.depths == depth).nonzero(as_tuple=True)
            tokens, known = asked.tokens[row, node], None
            words = self._embedded(tokens, head) if head.config.gru else None
            if depth:
                known = states[row, asked.parents[row, node]]
            elif before.shape[1] and not head.config.gru:
                _, known = head.correction(tokens, None, before[row, 0], None, depth=0)
            new, after = head.correction(tokens, words, at[row, node], known, depth=depth)
            assert after is not None
            change[row, node], states[row, asked.numbers[row, node]] = new, after
        return change


def _with_room(known: Tensor | None, asked: AskedNodes, empty: Tensor) -> Tensor:
    """Returns `known` `[rows, numbers, ...]`, or `empty` for None, with room for the nodes of a request."""
    known = empty if known is None else known
    # Rows that all ask for nothing have no node at all.
    needed = int(asked.numbers.max()) + 1 if asked.numbers.numel() else 1
    if known.shape[1] >= needed:
        return known
    wide = known.new_zeros(known.shape[0], 2 * needed, *known.shape[2:])
    wide[:, : known.shape[1]] = known
    return wide


def check_block_fits(head: BlockHead, target: StateBackend) -> None:
    """Raise unless `target` gives features, of the width, vocabulary and layers that `head` was made for.

    Raises:
        UnsupportedModel: it gives none.
        IncompatibleModels: another width, vocabulary or number of layers.
    """
    config, layers = head.config, target.feature_layers
    check_target(target, _WHAT, width=config.feature_width, vocabulary=config.vocab_size)
    if config.target_layers not in (None, layers):
        raise IncompatibleModels(
            f"The block drafter was made for a target of {config.target_layers} layers, and this one has "
            f"{layers}; choose one made for this target."
        )
