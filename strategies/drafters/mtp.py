"""MTP: the layer that a model was trained with to guess a token further drafts for it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import InvalidInput, Request, Requests, StateBackend
from draftwood.strategies.drafters.pair_drafter import PairDrafter, check_sizes
from draftwood.strategies.drafters.rotated_target import check_not_rotated
from draftwood.strategies.drafters.target import as_target, checkpoint_of
from draftwood.strategies.heads.found import described_in
from draftwood.strategies.mtp.checkpoint import is_layer, load_layer
from draftwood.strategies.mtp.head import MtpHead

log = logging.getLogger(__name__)


def _own_checkpoint(target: StateBackend) -> Path:
    if not target.feature_layers:
        check_sizes(target, width=0, vocabulary=0, kind="mtp")
    folder = checkpoint_of(target)
    if folder is None:
        raise InvalidInput(
            "The target was not loaded from a folder or hub name whose files are here, so its MTP layer "
            "cannot be found; name a folder with -o head=FOLDER."
        )
    return folder


@attrs.define(eq=False)
class Mtp(PairDrafter):
    """Drafts with a target's MTP layer, in trees of any shape.

    The layer reads a token together with the state that the target's output head read at the token before it.
    A layer that was trained to guess one token drafts further ones from its own state; it says once, in the
    log, that this costs one of its passes per level and is accepted less often. Before a text's second token
    there are no features, and nothing is proposed.

    It reads the features of `target`, and must be the only one who takes them; `target` must be the backend
    that the decoder drives. If its file holds copies of the target's words and output head, the target's are
    used.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        head: a folder or hub name, of a checkpoint that holds an MTP layer or of only a layer, or the
            module, which goes to the target's device and dtype; None for the layer in the target's own
            checkpoint.
        rotation: `"none"` for a layer that was trained on this very target though that is rotated.

    Raises:
        UnsupportedModel: the target declares that it gives no features, or a layer that is not served.
        IncompatibleModels: a layer for another width or vocabulary than the target's.
        InvalidInput: a layer that cannot be read, or a checkpoint without one.

    Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    head: Any = attrs.field(default=None, repr=False)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    _said: bool = attrs.field(default=False, init=False, repr=False)
    source = "DeepSeek-V3 (2024), section 2.2"

    def __attrs_post_init__(self) -> None:
        if self.head is None:
            self.head = _own_checkpoint(self.target)
        if isinstance(self.head, str | PathLike):
            folder = described_in(self.head)
            # The layer of the target's own checkpoint was rotated with it, if at all.
            own = checkpoint_of(self.target)
            if own is None or folder.resolve() != own.resolve():
                check_not_rotated(self.target, self.rotation, kind="MTP layers")
            self.head = load_layer(folder)
        head = self.head
        check_sizes(self.target, width=head.width, vocabulary=head.vocab_size, kind="mtp")
        words = self.target.input_embeddings(torch.zeros(1, dtype=torch.int64))
        head.to(words).requires_grad_(False)
        head.borrow(self.target.output_head)
        self._drop_copies()
        self._begin(head.taps_in(self.target.feature_layers))

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is an MTP layer without its model, readable or not."""
        return isinstance(head, MtpHead) or (
            isinstance(head, str | PathLike) and is_layer(described_in(head))
        )

    @torch.no_grad()
    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        logits = self._rows.ask(Requests.of(requests))
        if not self._said and self._rows.levels > self.head.layout.trained_depths:
            self._said = True
            log.warning(
                "An MTP layer that was trained to draft %d token(s) continues from its own state on every "
                "further level: each costs a pass of the layer and is accepted less often, so a shallow "
                "tree may be faster.",
                self.head.layout.trained_depths,
            )
        return logits

    @torch.no_grad()
    def _drop_copies(self) -> None:
        """Use the target's words and output head where the layer's own are copies of them."""
        head = self.head
        if head.embed_tokens is not None:
            own = head.embed_tokens.weight
            every = torch.arange(len(own), device=own.device).split(8192)
            if all(torch.equal(self.target.input_embeddings(some).to(own), own[some]) for some in every):
                head.embed_tokens = None
        if head.lm_head is not None:
            probe = torch.linspace(-1, 1, head.width, device=head.like.device, dtype=head.like.dtype)
            states = torch.stack([probe, probe.roll(1).square(), probe.sign()])
            theirs = self.target.output_head(states).to(head.like)
            if torch.allclose(theirs, head.lm_head(states), rtol=1e-3, atol=1e-3):
                head.lm_head = None
