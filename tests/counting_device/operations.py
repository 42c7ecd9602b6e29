"""What torch's operations are on a CUDA device: which launch kernels, which wait, what they refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.counting_device.tensor import DeviceTensor

INDEXING = frozenset({"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_"})
"""Advanced indexing, the one kind of operation that takes indices on the CPU."""

_NO_KERNEL = frozenset(
    "empty empty_like empty_strided new_empty new_empty_strided _unsafe_view unsafe_split unsafe_chunk "
    "unsafe_split_with_sizes lift".split()
)
"""Allocations and views that torch does not declare as views."""

_MORE_KERNELS = {"constant_pad_nd": 2, "eye": 2, "index_fill": 2, "index_put": 2, "masked_fill": 2, "scatter": 2}
"""Operations that first make a copy or fill, and then write into it."""

_ONE_SCALAR_FROM_THE_CPU = frozenset({"masked_fill", "masked_fill_", "fill", "fill_", "index_fill", "index_fill_"})
"""Take a number as a tensor on the CPU, though torch does not tag them as pointwise."""

_PRODUCTS = frozenset("mm bmm addmm baddbmm addbmm mv addmv dot vdot convolution convolution_overrideable".split())
"""Computed by cuBLAS and cuDNN, which take one floating dtype."""


def name_of(func: Any) -> str:
    """`add` of `aten.add.Tensor`."""
    return str(func.overloadpacket.__name__)


def launches(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> int:
    """Kernels that an operation with this result runs. Of operations that run several at times, one is counted."""
    name = name_of(func)
    if func.is_view or name in _NO_KERNEL or name == "_local_scalar_dense":
        return 0
    if isinstance(result, (Tensor, list, tuple)):
        made = result if isinstance(result, (list, tuple)) else [result]
        if not any(one.numel() for one in made if isinstance(one, Tensor)):
            return 0
    elif not isinstance(result, bool):  # `equal` computes one
        return 0
    kernels = _MORE_KERNELS.get(name, 1)
    if name in INDEXING and not fills(func, args, kwargs):
        kernels += sum(is_mask(index) and isinstance(index, DeviceTensor) for index in args[1])  # its `nonzero`
    return kernels


def waits(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """What the host waits for in an operation; None where it does not wait."""
    name = name_of(func)
    if name == "_local_scalar_dense":
        return "item"
    if name in INDEXING:
        by_mask = any(is_mask(index) and isinstance(index, DeviceTensor) for index in args[1])
        return "boolean index" if by_mask and not fills(func, args, kwargs) else None
    if name == "repeat_interleave" and kwargs.get("output_size") is not None:
        return None
    needs_result = torch.Tag.dynamic_output_shape in func.tags or torch.Tag.data_dependent_output in func.tags
    return name if needs_result else None


def copies_of_indices(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """How many indices and values of advanced indexing go to the device first."""
    moved = args[1] if fills(func, args, kwargs) else (*args[1], *args[2:3])
    return sum(isinstance(one, Tensor) and not isinstance(one, DeviceTensor) and one.numel() > 0 for one in moved)


def is_mask(index: Any) -> bool:
    """Whether `index` is a tensor that indexes by being true."""
    return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)


def fills(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether torch makes a `masked_fill_` of an assignment, one number under one mask, which waits for nothing."""
    if not name_of(func).startswith(("index_put", "_index_put")):
        return False
    accumulates = args[3] if len(args) > 3 else kwargs.get("accumulate", False)
    indices = [index for index in args[1] if index is not None]
    one_number = args[2].numel() == 1 and not isinstance(args[2], DeviceTensor)
    return not accumulates and one_number and len(indices) == 1 and is_mask(indices[0])


def misfit(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], tensors: list[Tensor]) -> str | None:
    """What torch on CUDA says against the operands of an operation, by their devices or dtypes; None: nothing."""
    name = name_of(func)
    hosts = [one for one in tensors if not isinstance(one, DeviceTensor)]
    if name in INDEXING:
        return _indexing_misfit(args)
    if hosts and not _takes_from_the_cpu(func, name, tensors, hosts):
        return (
            "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu! "
            f"(when checking the arguments of {name})"
        )
    generator = kwargs.get("generator")
    if generator is not None and generator.device.type != "cuda":
        return f"Expected a 'cuda' device type for generator but found '{generator.device.type}'"
    if name in _PRODUCTS:
        dtypes = sorted({str(one.dtype) for one in tensors})
        if len(dtypes) > 1:
            return f"expected the operands of {name} to have the same dtype, but got: {' != '.join(dtypes)}"
        if not tensors[0].is_floating_point() and not tensors[0].is_complex():
            return f'"{name}_cuda" not implemented for \'{dtypes[0]}\''
    return None


def _takes_from_the_cpu(func: Any, name: str, tensors: list[Tensor], hosts: list[Tensor]) -> bool:
    """Whether operands on the CPU are numbers that go to the kernel as arguments."""
    pointwise = torch.Tag.pointwise in func.tags or name in _ONE_SCALAR_FROM_THE_CPU
    written = name.endswith("_") and not isinstance(tensors[0], DeviceTensor)
    return pointwise and not written and all(one.dim() == 0 for one in hosts)


def _indexing_misfit(args: tuple[Any, ...]) -> str | None:
    if not isinstance(args[0], DeviceTensor):
        return "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
    values = args[2] if len(args) > 2 else None
    if values is not None and not isinstance(values, DeviceTensor) and values.dim():
        return "Expected all tensors to be on the same device, but got value is on cpu (when indexing cuda:0)"
    return None
