"""Whether the values of a model's weights have changed in place, for whoever holds copies of them."""

from __future__ import annotations

from itertools import chain

import torch
from torch import Tensor

SAMPLES = 4
"""Parts of every axis of a weight, of each of which one value is looked at."""

Mark = tuple[tuple[int, bytes], ...]


def mark_of(model: torch.nn.Module) -> Mark:
    """Returns what changes with the values of the weights and buffers of `model`.

    Torch counts the changes of a tensor in place. Those made through `.data` it does not count, so
    a few values of each are compared as well: a change there of few other values is not seen.
    """
    return tuple([_marked(tensor) for tensor in chain(model.parameters(), model.buffers())])


def _marked(tensor: Tensor) -> tuple[int, bytes]:
    changes = 0 if tensor.is_inference() else tensor._version
    few = tensor.detach()[tuple([slice(None, None, max(size // SAMPLES, 1)) for size in tensor.shape])]
    return changes, few.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
