"""Weights and activations of few bits."""

from __future__ import annotations

from typing import Any


def quantized(model: Any) -> bool:
    """Whether layers of `model` may round their activations by what else is in a pass.

    By where the classes of layers and weights come from: those of torch and of the common packages.
    """
    homes = {type(part).__module__ for part in [*model.modules(), *model.parameters()]}
    return any(
        home.startswith(("torch.ao.", "torchao.", "bitsandbytes.", "optimum.quanto.")) for home in homes
    )
