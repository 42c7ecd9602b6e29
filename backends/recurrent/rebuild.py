"""A private copy of a model's structure whose recurrent mixers are ours, over the same weights."""

from __future__ import annotations

import inspect
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import LinearAttentionCacheLayerMixin

from draftwood.backends.recurrent.mamba2 import OPEN
from draftwood.backends.recurrent.mixer import Mixer
from draftwood.backends.recurrent.mixer_registry import mixer_for, served_classes
from draftwood.backends.recurrent.snapshots import Snapshots
from draftwood.backends.recurrent.states import States
from draftwood.backends.structure.layers import decoder_layers, shared_copy
from draftwood.backends.weights.sharded import ranks_of
from draftwood.backends.weights.streamed import hooked, rename, streamed_as_one, streamed_modules
from draftwood.base.errors import UnsupportedModel


def recurrent_layers(config: Any) -> list[int]:
    """Numbers of the layers that keep a recurrent state, by the cache that transformers makes for them."""
    layers = DynamicCache(config=config).layers
    return [index for index, layer in enumerate(layers) if isinstance(layer, LinearAttentionCacheLayerMixin)]


def with_mixers(model: Any, *, snapshots: bool = False, standing: bool = False) -> tuple[Any, States]:
    """A copy of `model` with our mixers, and the states that they use.

    The copy has the model's own parameters and buffers; the model itself is not touched, so that any number
    of copies may run at the same time.

    Args:
        model: a transformers model.
        snapshots: whether every node keeps a copy of the states.
        standing: whether states lie in arenas, for captured passes.

    Raises:
        UnsupportedModel: a recurrent layer that no registered mixer stands for, or weights on no device.
    """
    if ranks_of(model) is not None:
        raise UnsupportedModel(
            f"{type(model).__name__} is sharded over processes, and recurrent layers must be whole; load "
            "it without a tp_plan."
        )
    _check_weights(model)
    states = States(Snapshots) if snapshots else States(standing=standing)
    copy = shared_copy(model)
    for name, module in list(copy.named_modules()):
        if (mixer := mixer_for(type(module))) is not None:
            parent, _, attribute = name.rpartition(".")
            have = len(states.layers)
            hook, ours = streamed_as_one(module, inside="original"), mixer(module, states)
            setattr(copy.get_submodule(parent), attribute, ours)
            if hook is not None:
                hooked(ours, hook)
            for layer in states.layers[have:]:
                layer.name, layer.number = name, getattr(module, "layer_idx", None)
    for module, hook in streamed_modules(copy):
        if hook.place_submodules and not isinstance(module, Mixer):
            rename(module, hook, "original.")
    layers = decoder_layers(copy)
    for index in recurrent_layers(model.config):
        inside = list(layers[index].modules() if layers else copy.modules())
        if not any(isinstance(module, Mixer) for module in inside):
            parts = ", ".join(type(part).__name__ for part in (layers[index] if layers else copy).children())
            raise UnsupportedModel(
                f"Layer {index} of {type(model).__name__} is recurrent, but none of its parts ({parts}) is "
                f"known; supported are {served_classes()}."
            )
    if not states.layers and getattr(model.config.get_text_config(decoder=True), "layer_types", None) is None:
        what = type(layers[0]).__name__ if layers else type(model).__name__
        raise UnsupportedModel(
            f"{type(model).__name__} keeps recurrent states in layers that are not known ({what}); "
            f"supported are {served_classes()}."
        )
    states.may_overflow = model.dtype == torch.float16
    return copy, states


def _check_weights(model: Any) -> None:
    """Refuse weights that are nowhere and that nothing brings."""
    streamed = streamed_modules(model)
    brought = {id(weight) for module, hook in streamed for weight in module.parameters(hook.place_submodules)}
    if any(weight.device.type == "meta" and id(weight) not in brought for weight in model.parameters()):
        raise UnsupportedModel(
            f"Weights of {type(model).__name__} are on the device meta and no hook loads them; load the "
            "model onto a device."
        )


def held_forward(model: Any) -> str | None:
    """Why a copy of `model` with our mixers does not run them: a forward that runs the model's own parts.

    None where there is no such forward.
    """
    own, copy = {id(module): module for module in model.modules()}, shared_copy(model)
    for name, module in copy.named_modules():
        if (forward := vars(module).get("forward")) is None:
            continue
        held = _held(forward, own)
        if held is not None and any(mixer_for(type(part)) for part in module.modules()):
            return (
                f"The forward of {name or type(model).__name__} was replaced by a function that holds the "
                f"{type(held).__name__} of this very model, so that it cannot run in a copy with draftwood's "
                "recurrent layers; make it a method (types.MethodType) that calls the class's, or a hook."
            )
    return None


def _held(function: Any, own: dict[int, Any]) -> Any:
    """The first module of `own` that a function calls or closes over, or None."""
    left, seen = [function], set[int]()
    while left:
        one = left.pop()
        if id(one) in own:
            return own[id(one)]
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, MethodType):
            left += [one.__self__, one.__func__]
        elif isinstance(one, partial):
            left += [one.func, *one.args, *one.keywords.values()]
        elif isinstance(one, FunctionType):
            names = inspect.getclosurevars(one)
            left += names.nonlocals.values()
            # Other functions that it calls lead through all of a library.
            left += [value for value in names.globals.values() if not isinstance(value, FunctionType)]
    return None


def reference(model: Any) -> Any:
    """`model`, or a copy of it over the same weights, to compare ours with.

    It runs where the model's weights are: where `mamba_ssm` can be imported, transformers takes that
    package's kernels for CPU tensors too, which fails.
    """
    if model.device.type != "cpu" or not any(map(_package_functions, model.modules())):
        return model
    plain = shared_copy(model)
    for module in plain.modules():
        if functions := _package_functions(module):
            forward: Any = inspect.unwrap(type(module).forward)
            unwrapped = FunctionType(
                forward.__code__,
                forward.__globals__ | functions,
                None,
                forward.__defaults__,
                forward.__closure__,
            )
            unwrapped.__kwdefaults__ = forward.__kwdefaults__
            module.forward = MethodType(unwrapped, module)
    return plain


def _package_functions(module: torch.nn.Module) -> dict[str, Any]:
    """The functions of packages that a layer calls: by name, what transformers itself has for them."""
    forward: Any = inspect.unwrap(type(module).forward)
    functions: dict[str, Any] = {}
    if not inspect.isfunction(forward):
        return functions
    for name in forward.__code__.co_names:
        function = forward.__globals__.get(name)
        if inspect.isfunction(function) and hasattr(function, "__wrapped__"):
            chosen = inspect.getclosurevars(function).nonlocals.get("implementation")
            if chosen is not None and chosen is not function.__wrapped__:
                functions[name] = function.__wrapped__
    return functions


def clamps_steps(model: Any) -> bool:
    """Whether `model` clamps the step where it reads several tokens at once, such as a prompt.

    Decoding token by token, transformers clamps none. So its forward over a whole text is not its decoding.
    """
    limits = (getattr(module, "time_step_limit", None) for module in model.modules())
    return any(limit is not None and tuple(limit) != OPEN for limit in limits)
