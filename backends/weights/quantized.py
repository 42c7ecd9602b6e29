"""Activations of few bits."""

from __future__ import annotations

from typing import Any

_OF_TORCHAO = ("act_quant_kwargs", "act_quant_scale", "activation_quantization")
"""How torchao's weights say what is done to the activations beside them."""


def rounds_activations(model: Any) -> bool:
    """Whether layers of `model` may round their activations by what else is in a pass.

    Told by the classes of layers and weights, of torch and of the common packages: those of torchao,
    optimum-quanto and bitsandbytes that hold weights of few bits alone are known.
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
