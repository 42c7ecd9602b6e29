"""Models whose weights transformers has sharded over processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from draftwood.base.errors import UnsupportedModel
from draftwood.protocols.ranks import Ranks


def ranks_of(model: torch.nn.Module) -> Ranks | None:
    """The processes that `model` is sharded over; None where this one has all of it.

    Raises:
        UnsupportedModel: it is sharded in several ways at once.
    """
    meshes = {weight.device_mesh for weight in model.parameters() if isinstance(weight, DTensor)}
    shards = {mesh for mesh in meshes if mesh.size() > 1}
    if not shards:
        return None
    (mesh, *others) = shards
    if others or mesh.ndim > 1:
        raise UnsupportedModel(
            f"{type(model).__name__} is sharded over the meshes {', '.join(map(str, shards))}; shard it by "
            "tensor parallelism only."
        )
    return Ranks(mesh.get_group(), torch.device(mesh.device_type))


def local_bytes(weight: Tensor) -> int:
    """Bytes of a weight in this process."""
    local: Any = weight.to_local() if isinstance(weight, DTensor) else weight
    return int(local.numel() * local.element_size())
