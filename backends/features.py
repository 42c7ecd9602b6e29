"""Features: what chosen decoder layers of a model read, and what its body puts out, at committed tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from operator import index
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.backends.layers import body, decoder_layers
from draftwood.errors import InvalidInput, UnsupportedModel

Through = Callable[[Tensor], Tensor]
Pieces = tuple[Tensor, ...]
"""Features of one row, each `[length, width]`, in the order of its text."""


def _as_places(layers: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(index, layers))


@attrs.frozen
class Wish:
    """What `keep_features` was asked for.

    Attributes:
        layers: which are kept, in the order in which they are concatenated.
        last: tokens of a row whose features are kept; None for all.
        through: what they go through before they are kept; None for nothing.
    """

    layers: tuple[int, ...] = attrs.field(converter=_as_places)
    last: int | None = attrs.field(default=None)
    through: Through | None = None

    @last.validator
    def _positive(self, _: attrs.Attribute[int | None], last: int | None) -> None:
        if last is not None and last < 1:
            raise InvalidInput(f"last is {last}; keep the features of 1 token or more, or of all with None.")


class Features:
    """Reads the features of one module, as wished for, and puts the pieces of a row together."""

    def __init__(self, module: Any, wish: Wish) -> None:
        """Those of `module`, whose body and decoder layers are found.

        Raises:
            InvalidInput: a layer that it does not have.
        """
        layers, self._body = decoder_layers(module), body(module)
        for layer in wish.layers:
            if not 0 <= layer <= len(layers):
                raise InvalidInput(
                    f"There are no features of layer {layer}; those of 0 (what the first layer reads) to "
                    f"{len(layers)} (what the output head reads) can be kept."
                )
        self.module, self.wish = module, wish
        self._layers = {layer: layers[layer] for layer in set(wish.layers) if layer < len(layers)}

    def read(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        """Features `[rows, nodes, width]` of a pass of the module, and what the pass gave.

        Raises:
            UnsupportedModel: a layer is not called once, or reads something else than a state a token.
        """
        found: dict[int, list[Tensor]] = {layer: [] for layer in self.wish.layers}
        with ExitStack() as hooks:
            # For this pass alone: the model is its owner's, who may run or copy it in between.
            for layer, held in found.items():
                hooks.callback(self._hook(layer, held).remove)
            output = self.module(**options)
        tokens = options["input_ids"]
        for layer, held in found.items():
            if len(held) != 1 or held[0].shape[:-1] != tokens.shape:
                shapes = ", ".join(str(tuple(one.shape)) for one in held) or "nothing"
                raise UnsupportedModel(
                    f"{type(self.module).__name__} gives no features of layer {layer}: of the tokens "
                    f"{tuple(tokens.shape)} it read {shapes}; use a draft model."
                )
        states = torch.cat([found[layer][0].to(tokens.device) for layer in self.wish.layers], -1)
        return states if self.wish.through is None else self.wish.through(states), output

    def _hook(self, layer: int, held: list[Tensor]) -> Any:
        """Let `held` get what is read at `layer`, until the hook is removed."""
        if layer in self._layers:
            return self._layers[layer].register_forward_pre_hook(
                lambda _, given, named: held.append(given[0] if given else named["hidden_states"]),
                with_kwargs=True,
            )
        return self._body.register_forward_hook(lambda _, __, output: held.append(_states(output)))

    def trimmed(self, pieces: Sequence[Tensor]) -> Pieces:
        """Of the features of a row those of its last tokens, as many as are wished for."""
        if self.wish.last is None:
            return tuple(pieces)
        kept: list[Tensor] = []
        left = self.wish.last
        for piece in reversed(pieces):
            if left and len(piece):
                # Not a view, which would hold what is dropped.
                kept.append(piece if len(piece) <= left else piece[-left:].clone())
                left -= len(kept[-1])
        return tuple(reversed(kept))

    def joined(self, pieces: Sequence[Tensor], *, blank: Tensor) -> Tensor:
        """The pieces of a row in one; of a row without any, what `blank` `[0, hidden]` leads to."""
        if pieces:
            return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        blank = blank.repeat(1, len(self.wish.layers))
        return blank if self.wish.through is None else self.wish.through(blank)


def _states(output: Any) -> Tensor:
    """What a body puts out, in whatever form."""
    if isinstance(output, Tensor):
        return output
    states: Tensor | None = getattr(output, "last_hidden_state", None)
    return output[0] if states is None else states
