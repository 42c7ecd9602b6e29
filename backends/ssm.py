"""`SSMBackend` and `HybridBackend`: models with recurrent layers, alone or beside attention."""

from __future__ import annotations

from typing import Any

from draftwood.backends.masks import reaches
from draftwood.backends.packed import PackedBackend
from draftwood.backends.recurrent.rebuild import rebuilt
from draftwood.errors import UnsupportedModel


class SSMBackend(PackedBackend):
    """Runs a draft tree through a model of recurrent layers alone: one committed state, none for a node.

    The model is not touched: a copy of its structure, with mixers of our own over the same weights, runs.
    """

    def __init__(self, model: Any, *, chunk: int = 512, snapshots: bool = False) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model.
            chunk: tokens a prefill pass takes at once.
            snapshots: keep a copy of every recurrent state for every node, as others do, for comparison.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
            UnsupportedModel: a recurrent layer of an unknown kind, or attention.
        """
        kinds = reaches(model.config, recurrent=True)
        if kinds:
            raise UnsupportedModel(
                f"{type(model).__name__} has attention layers ({', '.join(kinds)}) too; use HybridBackend."
            )
        module, states = rebuilt(model, snapshots=snapshots)
        super().__init__(model, module, kinds=kinds, states=states, chunk=chunk)


class HybridBackend(PackedBackend):
    """Runs a draft tree through a model that mixes attention and recurrent layers.

    Attention keeps keys and values of every node, as in `TransformerBackend`; a recurrent layer keeps what
    `SSMBackend` keeps.
    """

    def __init__(self, model: Any, *, chunk: int = 512, snapshots: bool = False) -> None:
        """Serve `model`; see `ModelBackend`.

        Args:
            model: a transformers model.
            chunk: tokens a prefill pass takes at once.
            snapshots: keep a copy of every recurrent state for every node, as others do, for comparison.

        Raises:
            InvalidInput: a model in training mode, or `chunk` below 1.
            UnsupportedModel: a recurrent layer of an unknown kind, or none.
        """
        kinds = reaches(model.config, recurrent=True)
        module, states = rebuilt(model, snapshots=snapshots)
        super().__init__(model, module, kinds=kinds, states=states, chunk=chunk)
