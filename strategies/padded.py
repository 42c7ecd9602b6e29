"""Arrays with room after their values."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def widened(values: NDArray[Number], columns: int, none: int = 0) -> NDArray[Number]:
    """Returns `values` `[rows, m, ...]` and then `none`, `[rows, columns, ...]`; quicker than `np.pad`."""
    wide = np.full((len(values), columns, *values.shape[2:]), none, values.dtype)
    wide[:, : values.shape[1]] = values
    return wide
