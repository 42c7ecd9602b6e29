"""More layers for a small model, which change nothing until they are trained."""

from __future__ import annotations

import copy
from typing import Any

from draftwood.base.errors import InvalidInput

_ENDS = ("self_attn.o_proj", "mlp.down_proj")
"""What a layer adds to the stream comes out of these."""


def deepened(model: Any, layers: int, *, seed: int = 0) -> Any:
    """A model of `layers` layers that computes what `model` does, in eval mode.

    The new layers come after the others. They begin as any new layer does, but for their last
    projections, which are zero: so they add nothing, and training moves those projections first. Where
    layers attend in different ways, the new ones attend as the last one does.

    Args:
        model: a transformers model like Llama, with layers of attention and an MLP; not changed.
        layers: more than it has.
        seed: of the new layers' weights.

    Raises:
        InvalidInput: not more layers, or layers that do not end in `self_attn.o_proj` and `mlp.down_proj`.
    """
    import torch

    config = copy.deepcopy(model.config)
    before = config.num_hidden_layers
    if layers <= before:
        raise InvalidInput(f"layers is {layers} and the model has {before}; give more.")
    config.num_hidden_layers = layers
    if kinds := vars(config).get("layer_types"):  # some work it out from the number
        config.layer_types = [*kinds, *kinds[-1:] * (layers - before)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        deeper = type(model)(config).to(model.dtype)
    deeper.load_state_dict(model.state_dict(), strict=False)
    inner = dict(deeper.named_modules())
    for number in range(before, layers):
        for end in _ENDS:
            found = [inner[name] for name in inner if name.endswith(f"layers.{number}.{end}")]
            if len(found) != 1:
                raise InvalidInput(f"The layers of {type(model).__name__} have no {end}; give a Llama.")
            torch.nn.init.zeros_(found[0].weight)
    return deeper.eval()
