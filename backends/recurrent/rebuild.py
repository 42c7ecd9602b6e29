"""A private copy of a model's structure whose recurrent mixers are ours, over the same weights."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from draftwood.backends.layers import decoder_layers, shared_copy
from draftwood.backends.recurrent.adapters import adapter_of, served
from draftwood.backends.recurrent.mamba2 import OPEN
from draftwood.backends.recurrent.mixer import Mixer
from draftwood.backends.recurrent.snapshots import Snapshots
from draftwood.backends.recurrent.states import States
from draftwood.errors import UnsupportedModel


def recurrent_layers(config: Any) -> list[int]:
    """Places of the layers that keep a recurrent state, by the cache that transformers makes for them."""
    layers = DynamicCache(config=config).layers
    return [place for place, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]


def rebuilt(model: Any, *, snapshots: bool = False) -> tuple[Any, States]:
    """A copy of `model` with our mixers, and the states that they use.

    The copy has the model's own parameters and buffers; the model itself is not touched, so that any number
    of copies may run beside it.

    Args:
        model: a transformers model.
        snapshots: whether every node keeps a copy of the states.

    Raises:
        UnsupportedModel: a recurrent layer that no registered mixer stands for, or weights that are offloaded
            or on several devices.
    """
    devices = sorted({str(weight.device) for weight in model.parameters()})
    if len(devices) > 1 or "meta" in devices:
        where = "offloaded" if "meta" in devices else f"on {' and '.join(devices)}"
        raise UnsupportedModel(
            f"The weights of {type(model).__name__} are {where}, and recurrent layers are served on one "
            "device alone; load the model onto one."
        )
    states, found = States(Snapshots) if snapshots else States(), shared_copy(model)
    for name, module in list(found.named_modules()):
        if (mixer := adapter_of(type(module))) is not None:
            parent, _, attribute = name.rpartition(".")
            have = len(states.layers)
            setattr(found.get_submodule(parent), attribute, mixer(module, states))
            for layer in states.layers[have:]:
                layer.name = name
    layers = decoder_layers(found)
    for place in recurrent_layers(model.config):
        inside = list(layers[place].modules() if layers else found.modules())
        if not any(isinstance(module, Mixer) for module in inside):
            parts = ", ".join(type(part).__name__ for part in (layers[place] if layers else found).children())
            raise UnsupportedModel(
                f"Layer {place} of {type(model).__name__} is recurrent, but none of its parts ({parts}) is "
                f"known; those served are {served()}."
            )
    if not states.layers and getattr(model.config.get_text_config(decoder=True), "layer_types", None) is None:
        what = type(layers[0]).__name__ if layers else type(model).__name__
        raise UnsupportedModel(
            f"{type(model).__name__} keeps recurrent states in layers that are not known ({what}); those "
            f"served are {served()}."
        )
    states.may_overflow = model.dtype == torch.float16
    return found, states


def reference(model: Any) -> Any:
    """`model`, or a copy of it over the same weights, to compare ours with.

    Its scans over many tokens clamp no step, which transformers does in a prompt, but not when it decodes
    token by token. And it runs where the model's weights are: where `mamba_ssm` can be imported, transformers
    takes that package's kernels for CPU tensors too, which fails.
    """
    found = model
    if clamps(model):
        found = shared_copy(model)
        for module in found.modules():
            if hasattr(module, "time_step_limit"):
                module.time_step_limit = OPEN
    if model.device.type != "cpu" or not any(map(_of_packages, model.modules())):
        return found
    found = shared_copy(model) if found is model else found
    for module in found.modules():
        if plain := _of_packages(module):
            forward: Any = inspect.unwrap(type(module).forward)
            own = FunctionType(
                forward.__code__, forward.__globals__ | plain, None, forward.__defaults__, forward.__closure__
            )
            own.__kwdefaults__ = forward.__kwdefaults__
            module.forward = MethodType(own, module)
    return found


def _of_packages(module: torch.nn.Module) -> dict[str, Any]:
    """The functions of packages that a layer calls: by name, what transformers itself has for them."""
    forward: Any = inspect.unwrap(type(module).forward)
    found: dict[str, Any] = {}
    if not inspect.isfunction(forward):
        return found
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
            taken = inspect.getclosurevars(function).nonlocals.get("implementation")
            if taken is not None and taken is not function.__wrapped__:
                found[name] = function.__wrapped__
    return found


def clamps(model: Any) -> bool:
    """Whether scans of `model` over many tokens clamp the step."""
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != OPEN for limit in limits)
