"""Features: what chosen decoder layers of a model read, and what its body puts out, at committed tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from operator import index
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.backends.structure.layers import body, decoder_layers
from draftwood.base.errors import InvalidInput, UnsupportedModel

Through = Callable[[Tensor], Tensor]
Pieces = tuple[Tensor, ...]
"""Features of one row, each `[length, width]`, in the order of its text."""


def _as_indices(layers: Iterable[int]) -> tuple[int, ...]:
    return tuple(map(index, layers))


@attrs.frozen
class FeatureRequest:
    """The arguments of a call of `keep_features`.

    Attributes:
        layers: which are kept, in the order in which they are concatenated.
        last: tokens of a row whose features are kept; None for all.
        through: what they go through before they are kept; None for nothing.
    """

    layers: tuple[int, ...] = attrs.field(converter=_as_indices)
    last: int | None = attrs.field(default=None)
    through: Through | None = None

    @last.validator
    def _positive(self, _: attrs.Attribute[int | None], last: int | None) -> None:
        if last is not None and last < 1:
            raise InvalidInput(f"last is {last}; keep the features of 1 token or more, or of all with None.")


class Features:
    """Reads the features of one module, as requested, and puts the pieces of a row together."""

    def __init__(self, module: Any, request: FeatureRequest) -> None:
        """Read features of `module`, whose body and decoder layers `layers` finds.

        Raises:
            InvalidInput: a layer that it does not have.
        """
        layers, self._body = decoder_layers(module), body(module)
        for layer in request.layers:
            if not 0 <= layer <= len(layers) + 1:
                raise InvalidInput(
                    f"There are no features of layer {layer}; name layers from 0 (input of the first layer) "
                    f"to {len(layers)} (input of the output head), or {len(layers) + 1} (output of the last "
                    "layer before the final norm)."
                )
        self.module, self.request = module, request
        self._seen: dict[int, list[Tensor]] = {}
        self._layers = {layer: layers[layer] for layer in set(request.layers) if layer < len(layers)}
        self._last, self._before_norm = layers[-1], len(layers) + 1

    def read(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        """Features `[rows, nodes, width]` of a pass of the module, and its output.

        Raises:
            UnsupportedModel: a layer is not called once, or reads something else than a state a token.
        """
        with self.watched():
            features, output = self.run(options)
        return self.passed_through(features), output

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside it `run` sees what the layers read."""
        with ExitStack() as hooks:
            # Only for one pass: the model is its owner's, who may run or copy it in between.
            for layer in dict.fromkeys(self.request.layers):
                hooks.callback(self._hook(layer).remove)
            yield

    def run(self, options: dict[str, Any]) -> tuple[Tensor, Any]:
        """Run the module inside `watched`; returns raw features and its output, also in a trace."""
        self._seen = {layer: [] for layer in self.request.layers}
        output = self.module(**options)
        # A trace is to see no change of it.
        inputs, self._seen = self._seen, {}
        ids = (options.get(name) for name in ("decoder_input_ids", "input_ids"))
        tokens = next((one for one in ids if one is not None), None)
        tokens = options["inputs_embeds"][..., 0] if tokens is None else tokens
        for layer, states in inputs.items():
            if len(states) != 1 or states[0].shape[:-1] != tokens.shape:
                shapes = ", ".join([str(tuple(state.shape)) for state in states]) or "nothing"
                raise UnsupportedModel(
                    f"{type(self.module).__name__} gives no features of layer {layer}: for tokens of shape "
                    f"{tuple(tokens.shape)} that layer read {shapes}; use a draft model."
                )
        kept = [inputs[layer][0].to(tokens.device) for layer in self.request.layers]
        return torch.cat(kept, -1), output

    def passed_through(self, features: Tensor) -> Tensor:
        """Returns the part of a pass's features `[rows, nodes, width]` that is kept."""
        return features if self.request.through is None else self.request.through(features)

    def _hook(self, layer: int) -> Any:
        """Note what is read at `layer`, until the hook is removed."""
        if layer in self._layers:

            def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                self._seen[layer].append(args[0] if args else kwargs["hidden_states"])

            return self._layers[layer].register_forward_pre_hook(before, with_kwargs=True)

        def afterwards(_: Any, __: Any, output: Any) -> None:
            self._seen[layer].append(_states(output))

        # The last layer is known to be one of those that the body runs.
        put_out = self._last if layer == self._before_norm else self._body
        return put_out.register_forward_hook(afterwards)

    def trimmed(self, pieces: Sequence[Tensor]) -> Pieces:
        """Returns the features of a row's last tokens, as many as are requested."""
        if self.request.last is None:
            return tuple(pieces)
        last: list[Tensor] = []
        left = self.request.last
        for piece in reversed(pieces):
            if left and len(piece):
                # Not a view, which would hold what is dropped.
                last.append(piece if len(piece) <= left else piece[-left:].clone())
                left -= len(last[-1])
        return tuple(reversed(last))

    def joined(self, pieces: Sequence[Tensor], *, blank: Tensor) -> Tensor:
        """The pieces of a row in one; of a row without any, what `blank` `[0, hidden]` leads to."""
        if pieces:
            return pieces[0] if len(pieces) == 1 else torch.cat(list(pieces))
        blank = blank.repeat(1, len(self.request.layers))
        return blank if self.request.through is None else self.request.through(blank)


def _states(output: Any) -> Tensor:
    """Returns the states among the outputs of a body or a layer."""
    if isinstance(output, Tensor):
        return output
    states: Tensor | None = getattr(output, "last_hidden_state", None)
    return output[0] if states is None else states
