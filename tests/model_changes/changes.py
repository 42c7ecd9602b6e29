"""Changes that programs make to a model between two calls of it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

from draftwood.backends.structure.layers import decoder_layers

Change = Callable[[Any, torch.Generator], None]

CHANGES: dict[str, Change] = {}


def change(function: Change) -> Change:
    """Lists a change by its name; one that does not apply to the model as it is does nothing."""
    CHANGES[function.__name__] = function
    return function


def _layer(model: Any, rng: torch.Generator) -> Any:
    layers = decoder_layers(model)
    return layers[int(torch.randint(len(layers), (), generator=rng))]


def _linear(model: Any, rng: torch.Generator) -> torch.nn.Linear:
    found = [one for one in _layer(model, rng).modules() if isinstance(one, torch.nn.Linear)]
    return found[int(torch.randint(len(found), (), generator=rng))]


def _shaken(tensor: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=rng, dtype=torch.float32)
    return (tensor.detach() + 0.2 * noise.to(tensor.dtype)).clone()


# Weights.


@change
def updated_in_place(model: Any, rng: torch.Generator) -> None:
    weight = _linear(model, rng).weight
    with torch.no_grad():
        weight.copy_(_shaken(weight, rng))


@change
def data_assigned(model: Any, rng: torch.Generator) -> None:
    weight = _linear(model, rng).weight
    weight.data = _shaken(weight, rng)


@change
def parameter_replaced(model: Any, rng: torch.Generator) -> None:
    linear = _linear(model, rng)
    linear.weight = torch.nn.Parameter(_shaken(linear.weight, rng))


@change
def state_dict_assigned(model: Any, rng: torch.Generator) -> None:
    state = {
        name: _shaken(value, rng) if "proj" in name and value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    model.load_state_dict(state, assign=True)
    model.tie_weights()


@change
def module_exchanged(model: Any, rng: torch.Generator) -> None:
    layer = _layer(model, rng)
    name = next((name for name, _ in layer.named_children() if "mlp" in name or "feed" in name), None)
    if name is not None:
        other = copy.deepcopy(getattr(layer, name))
        with torch.no_grad():
            for weight in other.parameters():
                weight.copy_(_shaken(weight, rng))
        setattr(layer, name, other)


@change
def in_double_precision(model: Any, rng: torch.Generator) -> None:
    model.to(torch.float64)


@change
def in_single_precision(model: Any, rng: torch.Generator) -> None:
    model.to(torch.float32)


# Adapters, by peft's own layers.


def _lora_layers(model: Any) -> list[Any]:
    from peft.tuners.lora import LoraLayer

    return [module for module in model.modules() if isinstance(module, LoraLayer)]


def _names(model: Any) -> list[str]:
    return sorted({name for layer in _lora_layers(model) for name in layer.r})


@change
def adapter_added(model: Any, rng: torch.Generator) -> None:
    from peft import LoraConfig, inject_adapter_in_model

    count = len(_names(model))
    if count < 3:
        names = {part for name, _ in model.named_modules() for part in name.split(".")}
        targets = [one for one in ("q_proj", "query_key_value", "in_proj", "down_proj") if one in names]
        torch.manual_seed(int(torch.randint(2**31, (), generator=rng)))
        options: Any = {"r": 2, "target_modules": targets, "init_lora_weights": False}
        inject_adapter_in_model(LoraConfig(**options), model, f"adapter{count}")
        model.train(model.training)


@change
def adapter_switched(model: Any, rng: torch.Generator) -> None:
    if names := _names(model):
        chosen = names[int(torch.randint(len(names), (), generator=rng))]
        for layer in _lora_layers(model):
            layer.set_adapter(chosen)


@change
def adapters_disabled(model: Any, rng: torch.Generator) -> None:
    for layer in _lora_layers(model):
        layer.enable_adapters(False)


@change
def adapters_enabled(model: Any, rng: torch.Generator) -> None:
    for layer in _lora_layers(model):
        layer.enable_adapters(True)


@change
def adapter_weighted(model: Any, rng: torch.Generator) -> None:
    for layer in _lora_layers(model):
        for name in layer.scaling:
            layer.scaling[name] *= 1.7


@change
def adapters_merged(model: Any, rng: torch.Generator) -> None:
    for layer in _lora_layers(model):
        if not layer.merged_adapters:
            layer.merge()


@change
def adapters_unmerged(model: Any, rng: torch.Generator) -> None:
    for layer in _lora_layers(model):
        if layer.merged_adapters:
            layer.unmerge()


@change
def adapter_deleted(model: Any, rng: torch.Generator) -> None:
    names = _names(model)
    if len(names) > 1:
        adapters_unmerged(model, rng)
        for layer in _lora_layers(model):
            layer.set_adapter(names[0])
            layer.delete_adapter(names[-1])


@change
def adapters_unloaded(model: Any, rng: torch.Generator) -> None:
    adapters_unmerged(model, rng)
    for name, layer in [(name, one) for name, one in model.named_modules() if hasattr(one, "base_layer")]:
        parent, _, attribute = name.rpartition(".")
        setattr(model.get_submodule(parent), attribute, layer.base_layer)


# Code.


@change
def hook_added(model: Any, rng: torch.Generator) -> None:
    shift = torch.randn((), generator=rng).item()

    def shifted(_: Any, __: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0] * (1 + 0.3 * shift), *output[1:])
        return output * (1 + 0.3 * shift)

    vars(model).setdefault("test_hooks", []).append(_layer(model, rng).register_forward_hook(shifted))


@change
def hook_removed(model: Any, rng: torch.Generator) -> None:
    if handles := vars(model).get("test_hooks"):
        handles.pop().remove()


@change
def layers_forward_replaced(model: Any, rng: torch.Generator) -> None:
    layer = _layer(model, rng)
    if "forward" not in vars(layer):
        before = layer.forward
        layer.forward = lambda *args, **kwargs: before(*args, **kwargs)


@change
def layers_forward_restored(model: Any, rng: torch.Generator) -> None:
    for layer in decoder_layers(model):
        vars(layer).pop("forward", None)


@change
def models_forward_replaced(model: Any, rng: torch.Generator) -> None:
    if "forward" not in vars(model):
        before = type(model).forward.__get__(model)

        def forward(input_ids: Any = None, **options: Any) -> Any:
            output = before(input_ids, **options)
            output.logits = output.logits.roll(1, -1)
            return output

        import functools

        model.forward = functools.wraps(before)(forward)


@change
def models_forward_restored(model: Any, rng: torch.Generator) -> None:
    vars(model).pop("forward", None)


# Modes and configuration.


@change
def training(model: Any, rng: torch.Generator) -> None:
    model.train()


@change
def evaluating(model: Any, rng: torch.Generator) -> None:
    model.eval()


@change
def dropout_set(model: Any, rng: torch.Generator) -> None:
    for module in model.modules():
        if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
            module.attention_dropout = 0.1


@change
def dropout_unset(model: Any, rng: torch.Generator) -> None:
    for module in model.modules():
        if hasattr(module, "attention_dropout") and isinstance(module.attention_dropout, float):
            module.attention_dropout = 0.0


@change
def checkpointing(model: Any, rng: torch.Generator) -> None:
    if model.supports_gradient_checkpointing:
        model.gradient_checkpointing_enable()


@change
def no_checkpointing(model: Any, rng: torch.Generator) -> None:
    model.gradient_checkpointing_disable()


@change
def eager_attention(model: Any, rng: torch.Generator) -> None:
    model.set_attn_implementation("eager")


@change
def sdpa_attention(model: Any, rng: torch.Generator) -> None:
    if model._supports_sdpa:
        model.set_attn_implementation("sdpa")


@change
def another_end_of_text(model: Any, rng: torch.Generator) -> None:
    ends = torch.randint(model.config.vocab_size, (2,), generator=rng).tolist()
    model.generation_config.eos_token_id = ends


@change
def embeddings_resized(model: Any, rng: torch.Generator) -> None:
    model.resize_token_embeddings(model.config.get_text_config().vocab_size + 1)


@change
def layers_forward_shares_autocast(model: Any, rng: torch.Generator) -> None:
    """Run a layer's forward in autocast, as accelerate does with the whole model."""
    if "forward" not in vars(model) and next(model.parameters()).dtype == torch.float32:
        import types

        run = torch.autocast("cpu", torch.bfloat16)(type(model).forward)
        model.forward = types.MethodType(run, model)
