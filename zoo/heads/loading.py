"""A head for a target that is at hand."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch

from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend
from draftwood.strategies.blocks.files import is_block, load_block
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.drafters.block_drafter import check_block_fits
from draftwood.strategies.drafters.eagle3 import check_fits
from draftwood.strategies.drafters.hydra import Hydra
from draftwood.strategies.drafters.medusa import DESCRIPTION, Heads, MedusaHeads
from draftwood.strategies.drafters.mtp import Mtp
from draftwood.strategies.drafters.rotated_target import undo_rotation
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.files import read_description
from draftwood.strategies.heads.formats import is_head, load_head
from draftwood.strategies.heads.found import described_in, folder_of
from draftwood.strategies.heads.hydra import HydraHead
from draftwood.strategies.heads.peagle import PEagleHead, is_peagle, load_peagle
from draftwood.strategies.mtp.checkpoint import is_layer
from draftwood.strategies.mtp.families import family_of
from draftwood.strategies.mtp.head import MtpHead

CheckedHead = Eagle3Head | BlockHead | MtpHead | PEagleHead | Heads | HydraHead
"""Heads that are compared with their target on a known text."""


def depths_of(head: CheckedHead, depths: int) -> int:
    """Returns how many drafted tokens, at most `depths`, the head guesses."""
    if isinstance(head, BlockHead):
        return min(depths, max(head.config.block_size - 1, 1))
    if isinstance(head, PEagleHead):
        return min(depths, head.config.depths)
    if isinstance(head, HydraHead):
        return min(depths, head.config.heads)
    return min(depths, head.count) if isinstance(head, Heads) else depths


def load_for(name: str | PathLike[str], target: StateBackend) -> CheckedHead:
    """Returns the head `name` in the target's dtype on its device; a checkpoint may hold an MTP layer.

    Args:
        name: a folder or a hub name.
        target: the backend that it was made for.

    Raises:
        InvalidInput: as `load_head` and `load_block`, one that taps layers which the target does not have, or
            one that is not followed through a known text.
        IncompatibleModels: a head for another width or vocabulary.
        UnsupportedModel: the target gives no features, or its rotation cannot be undone.
    """
    folder = described_in(name)
    if (folder / DESCRIPTION).is_file() or MedusaHeads.reads(name):
        heads = MedusaHeads(target, folder_of(name)).heads
        return heads.to(target.input_embeddings(torch.zeros(1, dtype=torch.int64))).requires_grad_(False)
    if Hydra.reads(name):
        hydra: HydraHead = Hydra(target, name).head
        return hydra
    known = is_head(folder) or is_block(folder) or is_peagle(folder)
    if not known and (is_layer(folder) or family_of(read_description(folder)) is not None):
        layer: MtpHead = Mtp(target, folder).head
        return layer
    folder = folder_of(name)
    head: Eagle3Head | BlockHead | PEagleHead
    if is_block(folder):
        head = load_block(folder)
        check_block_fits(head, target)
        if head.config.markov_type == "rnn" and not head.config.root_guesses:
            raise InvalidInput(
                f"{str(folder)!r} corrects by a recurrence from a slot that guesses nothing; such drafters "
                "can be used, but not checked."
            )
    else:
        head = load_peagle(folder) if is_peagle(folder) else load_head(folder)
        pairs = head.head if isinstance(head, PEagleHead) else head
        check_fits(pairs, target)
        if pairs.lm_head is None:
            pairs.borrow(target.output_head)
    head.taps_in(target.feature_layers)
    table: Any = target.input_embeddings(torch.zeros(1, dtype=torch.int64))
    head.to(table).requires_grad_(False)
    undo_rotation(head.head if isinstance(head, PEagleHead) else head, target)
    return head
