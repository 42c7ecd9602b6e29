"""`one_thread`: torch without further threads, for computations on small tensors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread() -> Iterator[None]:
    """Inside it torch computes with one thread.

    Torch gives even a softmax of nine numbers to all threads, which wait for each other in every call. Where
    other processes run on the same cores, that takes ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
