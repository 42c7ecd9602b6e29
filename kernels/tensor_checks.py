"""Checks of the tensors that kernels take: shapes, dtypes, layout; and the strides that they are given."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES


def check_shapes(basis: str, shapes: Mapping[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Compare tensors, by name, with the shapes that `basis` asks of them.

    Raises:
        ValueError: a shape is another.
    """
    for name, (tensor, shape) in shapes.items():
        if tensor.shape != shape:
            raise ValueError(f"The shape of {name} is {tuple(tensor.shape)}, and {basis} need {shape}.")


def dtype_objection(*tensors: Tensor) -> str | None:
    """Returns why no kernel takes the one dtype of `tensors`, or their device; None where one does."""
    if (reason := support.objection(tensors[0])) is not None:
        return reason
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= TYPES.keys():
        return f"its tensors are {' and '.join(sorted(map(str, dtypes)))}"
    return None


def layout_objection(multiple: int = 16, /, **tensors: Tensor) -> str | None:
    """Returns why named tensors are not laid out in memory as kernels read them; None where they are.

    Kernels need a contiguous last axis, other strides in such multiples of elements (an axis of one element
    aside), addresses in multiples of 16 bytes, and strides below 2^31. So every call is one of the
    configurations that were compiled ahead of time.
    """
    for name, tensor in tensors.items():
        *outer, last = strides(tensor)
        if tensor.shape[-1] > 1 and last != 1:
            return f"{name} is not contiguous along its last axis"
        if any(stride % multiple for stride in outer):
            return f"{name} has strides {tuple(outer)}, which are not multiples of {multiple}"
        if any(stride >= 2**31 for stride in outer):
            return f"{name} has strides {tuple(outer)}, of which one exceeds 32 bits"
        if tensor.data_ptr() % 16:
            return f"{name} starts at an address that is not a multiple of 16 bytes"
    return None


def scalar_layout_objection(**tensors: Tensor) -> str | None:
    """Returns `layout_objection` for tensors read one number at a time, for which any strides will do."""
    return layout_objection(1, **tensors)


def strides_of(names: str, tensor: Tensor) -> dict[str, int]:
    """The leading strides of `tensor` by these names, separated by spaces; 0 along axes of one element."""
    return dict(zip(names.split(), strides(tensor), strict=False))


def strides(tensor: Tensor) -> list[int]:
    """Strides in elements, 0 where an axis has one element and its stride may be anything."""
    return [stride if size > 1 else 0 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]
