"""`TransformerBackend`: any Hugging Face decoder whose attention takes a mask, with its KV rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxtyping import Float
from torch import Tensor

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.model.runner import RunnerMaker
from draftwood.backends.passes.capture import Capture
from draftwood.backends.structure.forward import decoder_prefix, takes
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
        whole_prompts: bool = False,
    ) -> None:
        """Serve `model`, a decoder-only transformers model; see `ModelBackend`.

        Args:
            model: a transformers model.
            chunk: tokens a prefill pass takes at once.
            capture: whether and how passes over trees are captured; see `capture`.
            runner: makes what runs passes, where they are not captured; None: they run as they are.
            whole_prompts: whether only the cache has windows, by a setting that the model's code does not
                read: its forward over a prompt sees all of it, and its written tokens a window.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
            UnsupportedModel: layers that are not attention with a KV cache, or no way to give positions.
        """
        positions = f"{decoder_prefix(model)}position_ids"
        if not takes(model, positions):
            raise UnsupportedModel(
                f"{type(model).__name__} takes no {positions}, so nodes cannot share a position."
            )
        super().__init__(
            model,
            model,
            kinds=reaches(model.config),
            states=None,
            chunk=chunk,
            capture=capture,
            runner=runner,
            whole_prompts=whole_prompts,
        )
        self._whole_prompts = whole_prompts
        self._options["whole_prompts"] = whole_prompts

    def take_over(self, cache: Any, lengths: Sequence[int]) -> None:
        """Take over a cache, as `PackedBackend.take_over` does."""
        self._check_goes_on()
        super().take_over(cache, lengths)

    def read(self, rows: Sequence[Sequence[int]]) -> Float[Tensor, "rows vocab"]:
        """Read on, as `PackedBackend.read` does."""
        self._check_goes_on()
        return super().read(rows)

    def _check_goes_on(self) -> None:
        if self._whole_prompts:
            raise UnsupportedModel(
                f"{type(self.model).__name__} sees all of a prompt and its cache keeps a window of it, so a "
                "text does not go on from past_key_values; leave it out, or set sliding_window of the "
                "model's config to None."
            )
