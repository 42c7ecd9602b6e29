"""Checkpoints of other packages: their weights, put into transformers' structures without a copy."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.base.machine_faults import machine_fault

NEVER_NARROWED = ("A_log", ".D")
"""How names of parameters end that no `dtype` narrows: other packages keep them in single precision."""


def read_json(file: Path) -> dict[str, Any]:
    """The object in a JSON file, or `InvalidInput`."""
    try:
        settings = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(
            f"{file} could not be read ({first_line(error)}); download the model again."
        ) from error
    if not isinstance(settings, dict):
        raise InvalidInput(f"{file} holds no JSON object; download the model again.")
    return settings


def read_weights(folder: Path) -> dict[str, Tensor]:
    """All tensors of a folder, mapped from disk: safetensors, or else what `torch.save` wrote.

    The latter goes through torch's restricted unpickler (`weights_only=True`), which makes tensors and runs
    no code of the file's.

    Raises:
        InvalidInput: no weights, or a damaged file.
        UnsupportedModel: a pickle that holds more than tensors.
    """
    files = sorted(folder.glob("model*.safetensors")) or sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise InvalidInput(
            f"{folder} has no weights, neither model.safetensors nor pytorch_model.bin; download the model "
            "again."
        )
    weights: dict[str, Tensor] = {}
    for file in files:
        weights |= _tensors(file)
    return weights


def build_model(
    make: Callable[[], Any], tensors: Mapping[str, Tensor], *, source: str, dtype: torch.dtype | None = None
) -> Any:
    """The model that `make` describes, in evaluation mode, whose parameters are `tensors` themselves.

    Args:
        make: builds the model; called where it allocates nothing.
        tensors: by the names of the model's parameters.
        source: where they come from, for errors.
        dtype: of the weights; None keeps those that they have.

    Raises:
        InvalidInput: settings that describe no model; tensors that are missing, left over, of other shapes,
            or tied but not equal.
    """
    try:
        with torch.device("meta"):
            model = make()
    except Exception as error:  # transformers' checks raise several kinds of errors
        raise InvalidInput(
            f"The configuration of {source} describes no model ({first_line(error)}); download the model "
            "again."
        ) from error
    model.tie_weights()
    weights = dict(tensors)
    parameters: dict[str, Tensor] = dict(model.named_parameters())
    first = {id(parameter): name for name, parameter in parameters.items()}
    for name, parameter in model.state_dict(keep_vars=True).items():
        if name in parameters or name not in weights:
            continue
        tied = weights.pop(name)
        weight = weights.setdefault(first[id(parameter)], tied)
        if weight.data_ptr() != tied.data_ptr() and not torch.equal(weight, tied):
            raise _mismatch(source, "tied but unequal tensors", [name])
    _check(source, parameters, weights)
    if dtype is not None:
        weights = {name: _converted(name, tensor, dtype) for name, tensor in weights.items()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model.eval()


def move_to(model: Any, device: torch.device | str) -> Any:
    """`model` on a device, or with `"auto"` spread over what there is."""
    if device != "auto":
        return model.to(device)
    from accelerate import dispatch_model, infer_auto_device_map

    unsplit = list(model._no_split_modules)
    return dispatch_model(model, infer_auto_device_map(model, no_split_module_classes=unsplit))


def first_line(error: Exception) -> str:
    """The beginning of the message of an error of other packages, in one line."""
    return (" ".join(str(error).split()) or type(error).__name__)[:160].rstrip(".")


def _tensors(file: Path) -> dict[str, Tensor]:
    try:
        if file.suffix == ".safetensors":
            return load_file(file)
        # What older versions of torch wrote is no zip file and cannot be mapped.
        mapped = zipfile.is_zipfile(file)
        tensors = torch.load(file, map_location="cpu", mmap=mapped, weights_only=True)
    except pickle.UnpicklingError as error:
        # torch's own words end in advice to load the file unsafely.
        raise UnsupportedModel(
            f"{file} is damaged or holds more than tensors, which is never loaded; download it again or "
            "convert it to safetensors."
        ) from error
    except Exception as error:  # a damaged file fails in many ways
        if machine_fault(error) is not None:
            raise
        raise InvalidInput(
            f"The weights in {file} could not be read ({first_line(error)}); download the model again."
        ) from error
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise InvalidInput(f"{file} holds no table of tensors; download the model again.")
    return tensors


def _check(source: str, parameters: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    if missing := parameters.keys() - weights.keys():
        raise _mismatch(source, "missing keys", missing)
    if unknown := weights.keys() - parameters.keys():
        raise _mismatch(source, "unknown keys", unknown)
    other = [
        name
        for name, tensor in weights.items()
        if tensor.shape != parameters[name].shape or not tensor.is_floating_point()
    ]
    if other:
        raise _mismatch(source, "tensors of another shape or no floating-point dtype", other)


def _mismatch(source: str, what: str, names: Collection[str]) -> InvalidInput:
    return InvalidInput(
        f"The weights in {source} do not fit its configuration ({len(names)} {what}, {min(names)} first); "
        "download the model again."
    )


def _converted(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    return tensor.to(torch.promote_types(dtype, tensor.dtype) if name.endswith(NEVER_NARROWED) else dtype)
