"""`SSMBackend` and `HybridBackend`: models with recurrent layers, with or without attention."""

from __future__ import annotations

from typing import Any

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.model.runner import RunnerMaker
from draftwood.backends.passes.capture import Capture
from draftwood.backends.recurrent.rebuild import with_mixers
from draftwood.backends.structure.masks import reaches
from draftwood.base.errors import UnsupportedModel


class RecurrentBackend(PackedBackend):
    """Abstract: runs a tree through a model with recurrent layers: one committed state, and none for a node.

    The model is not touched: a copy of its structure, with our mixers over the same weights, runs.
    """

    def __init__(
        self,
        model: Any,
        *,
        chunk: int = 1024,
        snapshots: bool = False,
        capture: Capture = "off",
        runner: RunnerMaker | None = None,
    ) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model.
            chunk: tokens a prefill pass takes at once.
            snapshots: keep a copy of every recurrent state for every node, as others do, for comparison.
            capture: whether and how passes over trees are captured; see `capture`.
            runner: makes what runs passes, where they are not captured; None: they run as they are.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
            UnsupportedModel: a recurrent layer of an unknown kind, or none; attention, for `SSMBackend`.
        """
        kinds = reaches(model.config, recurrent=True)
        self._check_attention(model, list(kinds))
        module, states = with_mixers(model, snapshots=snapshots, standing=capture != "off")
        # A configuration of a recurrent family may name no recurrent layer.
        held = states if states.layers else None
        super().__init__(model, module, kinds=kinds, states=held, chunk=chunk, capture=capture, runner=runner)
        self._options["snapshots"] = snapshots

    @property
    def not_converted(self) -> str | None:
        """Why an engine does not run its recurrent layers, following the model's name; None where one may."""
        for layer in [] if self._states is None else self._states.layers:
            if layer.not_converted is not None:
                return f"has recurrent layers ({layer.name}, {type(layer).__name__}) {layer.not_converted}"
        return None

    def _check_attention(self, model: Any, kinds: list[str]) -> None:
        """Refuse attention layers of these kinds where they are not served."""


class SSMBackend(RecurrentBackend):
    """Runs a model that has only recurrent layers."""

    def _check_attention(self, model: Any, kinds: list[str]) -> None:
        if kinds:
            raise UnsupportedModel(
                f"{type(model).__name__} has attention layers ({', '.join(kinds)}) too; use HybridBackend."
            )


class HybridBackend(RecurrentBackend):
    """Runs a model that mixes attention and recurrent layers.

    Attention keeps keys and values of every node, as in `TransformerBackend`; a recurrent layer keeps what
    `SSMBackend` keeps.
    """
