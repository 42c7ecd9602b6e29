"""Lazy tensors: their values are computed when they are first read."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class LazyTensor:
    """Passes whatever a tensor can do on to the tensor with all its values."""

    @abstractmethod
    def complete(self) -> Tensor:
        """The tensor with all its values."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.complete(), name)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        _: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return func(*map(_completed, args), **{name: _completed(one) for name, one in (kwargs or {}).items()})


def _completed(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return type(value)(map(_completed, value))
    return value.complete() if isinstance(value, LazyTensor) else value


class LazyRows(LazyTensor):
    """Stands for a tensor `[nodes, vocab]`; a subclass gives one row at a time.

    Attributes:
        certain: whether every row has all of its probability at one token.
    """

    certain: bool = False

    @abstractmethod
    def row(self, node: int) -> Tensor:
        """The row `[vocab]` of a node."""

    def likeliest(self, node: int) -> int:
        """The first of the most likely tokens of a node."""
        return int(self.row(node).argmax())

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    def dtype(self) -> torch.dtype:
        return self.row(0).dtype

    @property
    def device(self) -> torch.device:
        return self.row(0).device

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), *self.row(0).shape))

    def __getitem__(self, index: Any) -> Tensor:
        node, rest = (index[0], index[1:]) if isinstance(index, tuple) else (index, ())
        if not isinstance(node, int) or not 0 <= node < len(self):
            return self.complete()[index]
        return self.row(node)[rest] if rest else self.row(node)
