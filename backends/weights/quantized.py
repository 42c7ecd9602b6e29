"""Activations of few bits."""

from __future__ import annotations

from typing import Any

_OF_TORCHAO = ("act_quant_kwargs", "act_quant_scale", "activation_quantization")
"""Attributes by which torchao's weights say what is done to the activations."""


def rounds_activations(model: Any) -> bool:
    """Whether layers of `model` may round their activations by what else is in a pass.

    Decided by the classes of layers and weights, of torch and of the common packages: torchao's,
    optimum-quanto's, and bitsandbytes' that only hold weights of few bits, are known.
    """
    return any(map(_rounds, [*model.modules(), *model.parameters()]))


def _rounds(part: Any) -> bool:
    """Whether a layer or a weight does, or may: one that is not known counts."""
    home, name = type(part).__module__, type(part).__name__
    if home.startswith("torch.ao."):
        return True
    if home.startswith("optimum.quanto."):
        return getattr(part, "activation_qtype", None) is not None
    if home.startswith("torchao."):
        by_class = "Activation" in name
        return by_class or any(getattr(part, one, None) is not None for one in _OF_TORCHAO)
    return home.startswith("bitsandbytes.") and name not in (
        "Linear4bit",
        "LinearFP4",
        "LinearNF4",
        "Params4bit",
    )
