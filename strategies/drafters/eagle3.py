"""EAGLE-3: a head of one layer over the target's features drafts, and goes on from its own states."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from typing import Any

import attrs
import torch

from draftwood import InvalidInput, StateBackend
from draftwood.strategies.drafters.layer_skip import as_layers
from draftwood.strategies.drafters.pair_drafter import PairDrafter, check_sizes
from draftwood.strategies.drafters.rotated_target import undo_rotation
from draftwood.strategies.drafters.target import as_target
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.formats import check_generation, is_head, load_head
from draftwood.strategies.heads.found import described_in, folder_of


def as_taps(taps: str | Iterable[int] | None) -> tuple[int, ...] | None:
    """Returns layers of the target, ascending; None where none are given."""
    return None if taps is None else tuple(sorted(as_layers(taps if isinstance(taps, str) else tuple(taps))))


@attrs.define(eq=False)
class Eagle3(PairDrafter):
    """Drafts with an EAGLE-3 head, in trees of any shape.

    The head reads a token together with the target's features of the token before it. For drafted tokens it
    takes its own state in place of the target's, and the keys and values that came of it are dropped with the
    round: accepted tokens are read again, with the target's features. Before a text's second token there
    are no features, and nothing is proposed.

    It reads the features of `target`, and must be the only one who takes them; `target` must be the backend
    that the decoder drives.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        head: a folder or hub name in one of the formats of `heads.formats`, or the module, which goes to the
            target's device and dtype.
        taps: layers of the target to read instead of those that the head names, as numbers or as text such as
            `"2,16,29"`.
        rotation: `"none"` for a head that was trained on this very target though that is rotated, or a file
            of safetensors with the rotation; None for what the files of the target say.

    Raises:
        UnsupportedModel: the target declares that it gives no features, or its rotation cannot be undone.
        IncompatibleModels: a head for another width or vocabulary than the target's.
        InvalidInput: a head that cannot be read, or one that taps layers which the target does not have.

    Source: EAGLE-3 (Li et al. 2025, arXiv 2503.01840), section 3.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    head: Any = attrs.field(repr=False)
    taps: tuple[int, ...] | None = attrs.field(default=None, converter=as_taps, kw_only=True)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    source = "EAGLE-3 (Li et al. 2025), section 3"

    def __attrs_post_init__(self) -> None:
        if isinstance(self.head, str | PathLike):
            if (described := described_in(self.head)).is_dir():
                check_generation(described)  # before weights are fetched
            self.head = load_head(folder_of(self.head), taps=self.taps)
        check_fits(self.head, self.target)
        taps = tapped(self.head.config, self.taps).taps_in(self.target.feature_layers)
        self.head.to(self.target.input_embeddings(torch.zeros(1, dtype=torch.int64)))
        self.head.requires_grad_(False)
        if self.head.lm_head is None:
            self.head.borrow(self.target.output_head)
        undo_rotation(self.head, self.target, self.rotation)
        self._begin(taps)

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is one for it, readable or not: a module, a folder or a hub name."""
        return isinstance(head, Eagle3Head) or (
            isinstance(head, str | PathLike) and is_head(described_in(head))
        )


def tapped(config: Eagle3Config, taps: tuple[int, ...] | None) -> Eagle3Config:
    """Returns `config` with other taps, of which there must be as many; as it is where `taps` is None.

    Raises:
        InvalidInput: another number of them.
    """
    if taps is None:
        return config
    if len(taps) != config.tap_count:
        raise InvalidInput(
            f"taps names {len(taps)} layers, but the head reads {config.tap_count}; give that many."
        )
    return attrs.evolve(config, taps=taps)


def check_fits(head: Eagle3Head, target: StateBackend) -> None:
    """Raise unless `target` gives features, of the width and vocabulary that `head` was made for.

    Raises:
        UnsupportedModel: it gives none.
        IncompatibleModels: another width or vocabulary.
    """
    config = head.config
    check_sizes(target, width=config.target_hidden_size, vocabulary=config.vocab_size, kind="eagle3")
