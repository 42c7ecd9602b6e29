"""Hydra: heads on the target's own hidden state, each of which reads the tokens drafted before."""

from __future__ import annotations

from os import PathLike
from typing import Any

import attrs
import torch

from draftwood import StateBackend, UnsupportedModel
from draftwood.strategies.drafters.pair_drafter import PairDrafter, check_sizes
from draftwood.strategies.drafters.rotated_target import check_not_rotated
from draftwood.strategies.drafters.target import as_target
from draftwood.strategies.heads.found import described_in, folder_of
from draftwood.strategies.heads.hydra import HydraHead
from draftwood.strategies.heads.hydra_files import is_hydra, load_hydra


@attrs.define(eq=False)
class Hydra(PairDrafter):
    """Drafts with Hydra heads, in trees of any shape; nothing is proposed below the last head.

    It reads the features of `target`, and must be the only one who takes them; `target` must be the backend
    that the decoder drives. Before a text's second token there are no features, and nothing is proposed.

    Attributes:
        target: a backend that declares its `feature_layers`. It must have no rows yet.
        head: a folder or hub name with published heads, or the module, which goes to the target's device and
            dtype.
        rotation: `"none"` for heads that were trained on this very target though that is rotated.

    Raises:
        UnsupportedModel: the target gives no features, or is rotated; heads of another architecture.
        IncompatibleModels: heads for another width or vocabulary than the target's.
        InvalidInput: heads that cannot be read.

    Source: Hydra (Ankner et al. 2024, arXiv 2402.05109), sections 3 and 4.
    """

    target: StateBackend = attrs.field(converter=as_target, repr=False)
    head: Any = attrs.field(repr=False)
    rotation: str | None = attrs.field(default=None, kw_only=True)
    source = "Hydra (Ankner et al. 2024), section 3"

    def __attrs_post_init__(self) -> None:
        if isinstance(self.head, str | PathLike):
            self.head = load_hydra(folder_of(self.head), _description_of(self.target))
        config = self.head.config
        check_sizes(self.target, width=config.hidden_size, vocabulary=config.vocab_size, kind="hydra")
        check_not_rotated(self.target, self.rotation, kind="Hydra heads")
        self.head.to(self.target.input_embeddings(torch.zeros(1, dtype=torch.int64))).requires_grad_(False)
        self._begin(self.head.taps_in(self.target.feature_layers))

    @staticmethod
    def reads(head: Any) -> bool:
        """Returns whether `head` is one for it, readable or not: a module, a folder or a hub name."""
        return isinstance(head, HydraHead) or (
            isinstance(head, str | PathLike) and is_hydra(described_in(head))
        )


def _description_of(target: StateBackend) -> dict[str, Any]:
    """Returns the description of the target's text model, which published heads leave out."""
    config = getattr(getattr(target, "model", None), "config", None)
    if config is None:
        raise UnsupportedModel(
            f"{type(target).__name__} has no config, by which Hydra heads know their sizes; use a model of "
            "transformers."
        )
    text: dict[str, Any] = config.get_text_config(decoder=True).to_dict()
    return text
