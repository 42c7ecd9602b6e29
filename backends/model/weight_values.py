"""Whether the values of a model's weights have changed in place, for whoever holds copies of them."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SAMPLES = 4
"""Parts of every axis of a weight, of each of which one value is looked at."""

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class WeightValues:
    """The values of a model's weights and buffers at one time.

    Torch counts the changes of a tensor in place. Those made through `.data` it does not count, so a few
    values of each are compared as well: a change there of few other values is not seen.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        """Note the values of `model`, on the CPU, which are looked at for as long as it has these tensors."""
        tensors = list(chain(model.parameters(), model.buffers()))
        self._counted = [tensor for tensor in tensors if not tensor.is_inference()]
        # Views of the same width are read together.
        self._few: dict[int, list[NDArray[Any]]] = defaultdict(list)
        for tensor in tensors:
            few = _few(tensor)
            self._few[few.itemsize].append(few)
        self._then = self._now()

    def changed(self) -> bool:
        """Returns whether the values are others now."""
        return self._now() != self._then

    def _now(self) -> tuple[list[int], list[bytes]]:
        read = [np.concatenate([view.ravel() for view in views]).tobytes() for views in self._few.values()]
        return [tensor._version for tensor in self._counted], read


def _few(tensor: Tensor) -> NDArray[Any]:
    """The bits of a few values of `tensor`, in its own memory."""
    values = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
    places = tuple([slice(None, None, max(size // SAMPLES, 1)) for size in values.shape])
    return values[places].view(_BITS[values.element_size()]).numpy()
