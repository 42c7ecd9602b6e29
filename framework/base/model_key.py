"""`ModelKey`: everything of a model that copies, graphs and verdicts made from it depend on.

Law R: whatever is copied, traced, compiled, decided or sized from a model is kept with the key of that
model, and used at the next call only if the key is still the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

# Attributes that every module has; those that matter are looked at by name.
_OF_ALL_MODULES = frozenset(vars(torch.nn.Module())) | {"forward", "_hf_hook", "_old_forward"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_PLAIN = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_DEPTH = 3
"""How deep containers are looked into; adapters keep their settings in dicts of dicts."""


@attrs.frozen
class ModelKey:
    """A comparable description of a model's parts.

    Attributes:
        structure: its modules' classes, forwards, hooks and modes, its configuration, dtypes and devices, and
            autocast. Nothing else decides whether a method of running trees supports the model.
        contents: its modules and tensors by identity, storage and layout, and the modules' other attributes,
            such as which adapters are active. A copy of it depends on these too. Values of weights that are
            updated in place do not count, as copies share them.
    """

    structure: tuple[Any, ...]
    contents: tuple[Any, ...]

    @classmethod
    def of(cls, model: torch.nn.Module) -> ModelKey:
        """The key of `model` as it is now, in the autocast mode of now."""
        structure: list[Any] = []
        contents: list[Any] = []
        kinds: set[tuple[Any, Any]] = set()
        configs: dict[int, Any] = {}
        for module in model.modules():
            state = vars(module)
            kind = type(module)
            hooks = tuple([number for name in _HOOKS for number in state[name]])
            structure.append((kind, kind.forward, state.get("forward"), hooks, module.training))
            contents.append(id(module))
            streamed = getattr(state.get("_hf_hook"), "offload", False)
            for tensor in (*state["_parameters"].values(), *state["_buffers"].values()):
                if tensor is not None:
                    kinds.add((tensor.dtype, tensor.device))
                    contents.append(_tensor(tensor, streamed=streamed))
            for name in state.keys() - _OF_ALL_MODULES:
                value = state[name]
                if name == "config" and hasattr(value, "to_dict"):
                    configs[id(value)] = value
                elif not isinstance(value, Tensor):
                    contents.append((name, _frozen(value)))
        structure += [_frozen(vars(config)) for config in configs.values()]
        structure += [frozenset(kinds), *_autocast({device.type for _, device in kinds})]
        contents.append(_special_tokens(model))
        return cls(tuple(structure), tuple(contents))


def _tensor(tensor: Tensor, *, streamed: bool) -> tuple[Any, ...]:
    """Returns identity, storage and layout; for weights that are loaded for every pass, only the layout."""
    if streamed or tensor.device.type == "meta":
        return tensor.shape, tensor.dtype
    try:
        place = tensor.data_ptr()
    except RuntimeError:  # a tensor subclass without its own storage, such as a quantised one
        place = 0
    return id(tensor), place, tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _frozen(value: Any, depth: int = _DEPTH) -> Any:
    """`value` as a value: numbers and words as they are, containers as tuples, other objects by identity."""
    if isinstance(value, _PLAIN):
        # 1, 1.0 and True are equal, and a configuration may tell them apart.
        return value if type(value) in (str, type(None)) else (type(value), value)
    if depth:
        if isinstance(value, Mapping):
            return tuple([(key, _frozen(one, depth - 1)) for key, one in _sorted(value.items())])
        if isinstance(value, list | tuple):
            return tuple([_frozen(one, depth - 1) for one in value])
        if isinstance(value, set | frozenset):
            return frozenset(_frozen(one, depth - 1) for one in value)
    if isinstance(value, Tensor):
        return "tensor"  # kept from a pass
    return type(value), id(value)


def _sorted(items: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    return sorted(items, key=lambda item: str(item[0]))


def _autocast(devices: set[str]) -> Iterator[tuple[Any, ...]]:
    for device in sorted(devices - {"meta"}):
        enabled = torch.is_autocast_enabled(device)
        yield device, enabled, torch.get_autocast_dtype(device) if enabled else None


def _special_tokens(model: Any) -> Any:
    config = getattr(model, "generation_config", None)
    return _frozen([getattr(config, name, None) for name in ("eos_token_id", "pad_token_id")])
