"""`TransformerBackend`: any Hugging Face decoder whose attention takes a mask, with its KV rows."""

from __future__ import annotations

from typing import Any

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.model.runner import RunnerMaker
from draftwood.backends.passes.capture import Capture
from draftwood.backends.structure.forward import takes
from draftwood.backends.structure.masks import reaches
from draftwood.base.errors import UnsupportedModel


class TransformerBackend(PackedBackend):
    """Runs a draft tree in one pass: every node attends to the committed text and to its own ancestors."""

    def __init__(
        self,
        model: Any,
        *,
        chunk: int = 1024,
        capture: Capture = "off",
        runner: RunnerMaker | None = None,
    ) -> None:
        """Serve `model`, a decoder-only transformers model; see `ModelBackend`.

        Args:
            model: a transformers model.
            chunk: tokens a prefill pass takes at once.
            capture: whether and how passes over trees are captured; see `capture`.
            runner: makes what runs passes, where they are not captured; None: they run as they are.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
            UnsupportedModel: layers that are not attention with a KV cache, or no way to give positions.
        """
        if not takes(model, "position_ids"):
            raise UnsupportedModel(
                f"{type(model).__name__} takes no position_ids, so nodes cannot share a position."
            )
        super().__init__(
            model,
            model,
            kinds=reaches(model.config),
            states=None,
            chunk=chunk,
            capture=capture,
            runner=runner,
        )
