"""Torch's operations on a CUDA device: their kernel launches, waits and refusals."""

from __future__ import annotations

from functools import cache
from typing import Any

import attrs
import torch
from torch import Tensor

from tests.counting_device.tensor import DeviceTensor

INDEXING = ("index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_")
"""Advanced indexing, the one kind of operation that takes indices on the CPU."""

ALLOCATIONS = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")

NO_KERNEL = (
    *ALLOCATIONS,
    *("_unsafe_view", "unsafe_split", "unsafe_chunk", "unsafe_split_with_sizes", "lift"),
    "_local_scalar_dense",
)
"""Allocations, views that torch does not declare as views, and what is a copy alone."""

MORE_KERNELS = dict.fromkeys(
    ("constant_pad_nd", "eye", "index_fill", "index_put", "masked_fill", "scatter"), 2
)
"""Operations that first make a copy or fill, and then write into it."""

TAKE_NUMBERS = ("masked_fill", "masked_fill_", "fill", "fill_", "index_fill", "index_fill_")
"""Take a number as a tensor on the CPU, though torch does not tag them as pointwise."""

PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "vdot", "convolution")
"""Computed by cuBLAS and cuDNN, which take one floating dtype."""

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@attrs.frozen
class Operation:
    """One operation of torch, of any overload.

    Attributes:
        name: `add` of `aten.add.Tensor`.
        view: whether it computes nothing.
        pointwise: whether it takes numbers of the CPU as arguments of its kernel.
        needs_result: whether the host needs what it computes, to go on or to know a shape.
        reshapes: whether it changes the shape of a tensor in place.
    """

    name: str
    view: bool
    pointwise: bool
    needs_result: bool
    reshapes: bool

    @property
    def indexes(self) -> bool:
        """Whether it is advanced indexing."""
        return self.name in INDEXING

    @property
    def allocates(self) -> bool:
        """Whether it gives memory that nobody has written."""
        return self.name in ALLOCATIONS

    def launches(self, args: Args, kwargs: Kwargs, result: Any) -> int:
        """Kernels that it runs. Of an operation that runs several at times, one is counted."""
        if self.view or self.name in NO_KERNEL:
            return 0
        if isinstance(result, (Tensor, list, tuple)):
            made = [result] if isinstance(result, Tensor) else result
            if not any(one.numel() for one in made if isinstance(one, Tensor)):
                return 0
        elif not isinstance(result, bool):  # `equal` computes one
            return 0
        kernels = MORE_KERNELS.get(self.name, 1)
        if self.indexes and not self._fills(args, kwargs):
            kernels += sum(map(_is_mask_there, args[1]))  # the `nonzero` of each
        return kernels

    def waits(self, args: Args, kwargs: Kwargs) -> str | None:
        """Returns the reason why the host waits; None where it does not wait."""
        if self.name == "_local_scalar_dense":
            return "item"
        if self.indexes:
            by_mask = any(map(_is_mask_there, args[1]))
            return "boolean index" if by_mask and not self._fills(args, kwargs) else None
        if self.name == "repeat_interleave" and kwargs.get("output_size") is not None:
            return None
        return self.name if self.needs_result else None

    def copies(self, args: Args, kwargs: Kwargs) -> int:
        """Returns the number of indices and values of advanced indexing that the device must get first."""
        if not self.indexes:
            return 0
        moved = args[1] if self._fills(args, kwargs) else (*args[1], *args[2:3])
        return sum(isinstance(one, Tensor) and not _is_there(one) and one.numel() > 0 for one in moved)

    def misfit(self, args: Args, kwargs: Kwargs, tensors: list[Tensor]) -> str | None:
        """Returns torch's objection on CUDA to the devices or dtypes of its operands, `tensors`, or None."""
        if self.indexes:
            return _indexing_misfit(args)
        hosts = [one for one in tensors if not _is_there(one)]
        if hosts and not self._takes(tensors, hosts):
            return (
                "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                f"cpu! (when checking the arguments of {self.name})"
            )
        generator = kwargs.get("generator")
        if generator is not None and generator.device.type != "cuda":
            return f"Expected a 'cuda' device type for generator but found '{generator.device.type}'"
        if self.name in PRODUCTS:
            dtypes = sorted({str(one.dtype) for one in tensors})
            if len(dtypes) > 1:
                return f"expected the operands of {self.name} to have the same dtype, but got: {dtypes}"
            if not tensors[0].is_floating_point() and not tensors[0].is_complex():
                return f'"{self.name}_cuda" not implemented for {dtypes[0]}'
        return None

    def _takes(self, tensors: list[Tensor], hosts: list[Tensor]) -> bool:
        """Whether operands on the CPU are numbers that go to the kernel as arguments."""
        written = self.name.endswith("_") and not _is_there(tensors[0])
        takes_numbers = self.pointwise or self.name in TAKE_NUMBERS
        return takes_numbers and not written and all(one.dim() == 0 for one in hosts)

    def _fills(self, args: Args, kwargs: Kwargs) -> bool:
        """Whether torch makes a `masked_fill_` of it, which waits for nothing: one number under one mask."""
        if not self.name.startswith(("index_put", "_index_put")):
            return False
        accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
        indices = [index for index in args[1] if index is not None]
        one_number = args[2].numel() == 1 and not _is_there(args[2])
        return not accumulates and one_number and len(indices) == 1 and _is_mask_there(indices[0])


@cache
def operation_of(func: Any) -> Operation:
    """Returns the operation of which `func` is one overload."""
    dynamic = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    return Operation(
        name=str(func.overloadpacket.__name__),
        view=func.is_view,
        pointwise=torch.Tag.pointwise in func.tags,
        needs_result=dynamic,
        reshapes=torch.Tag.inplace_view in func.tags,
    )


def _is_there(tensor: Any) -> bool:
    return isinstance(tensor, DeviceTensor)


def _is_mask_there(index: Any) -> bool:
    """Whether `index` is a tensor on the device that indexes by being true."""
    return isinstance(index, DeviceTensor) and index.dtype in (torch.bool, torch.uint8)


def _indexing_misfit(args: Args) -> str | None:
    if not _is_there(args[0]):
        return "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    values = args[2] if len(args) > 2 else None
    if values is not None and not _is_there(values) and values.dim():
        return "Expected all tensors to be on the same device, but got value is on cpu (when indexing cuda:0)"
    return None
