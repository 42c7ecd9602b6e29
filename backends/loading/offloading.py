"""Where the parts of a model go whose decoder layers stay on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers.utils import is_accelerate_available

from draftwood.backends.structure.auto_class import auto_class
from draftwood.backends.structure.layers import layer_list
from draftwood.base.errors import InvalidInput, UnsupportedModel


def disk_options(
    config: Any, *, folder: Path, device: torch.device | str, trust_remote_code: bool
) -> dict[str, Any]:
    """Options of `from_pretrained` by which decoder layers stay on the disk, and the rest goes to `device`.

    Weights that the checkpoint's files hold as the model wants them are streamed from there. `folder` takes
    the others, such as experts that are merged.

    Raises:
        InvalidInput: accelerate is missing, `folder` cannot be made, or `device` is `"auto"`.
        UnsupportedModel: the model's decoder layers are not found.
    """
    if not is_accelerate_available():
        raise InvalidInput("offload needs the package accelerate; install it or leave offload out.")
    if device == "auto":
        raise InvalidInput(
            "offload keeps weights on the disk, and device 'auto' chooses their place; give one of the two."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {folder} cannot be made ({error}); name another.") from error
    with torch.device("meta"):
        model = auto_class(config).from_config(config, trust_remote_code=trust_remote_code)
    layers = layer_list(model)
    if layers is None:
        raise UnsupportedModel(
            f"The decoder layers of {type(model).__name__} are not found, so none can stay on the disk; load "
            "it without offload."
        )
    return {"device_map": _places(model, "", layers, str(device)), "offload_folder": str(folder)}


def _places(module: torch.nn.Module, prefix: str, layers: str, device: str) -> dict[str, str]:
    """`"disk"` for `layers`, `device` for all that does not hold it."""
    places: dict[str, str] = {}
    for name, child in module.named_children():
        full = prefix + name
        if layers.startswith(f"{full}."):
            places |= _places(child, f"{full}.", layers, device)
        else:
            places[full] = "disk" if full == layers else device
    return places
