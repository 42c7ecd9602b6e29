"""Runs Triton kernels of other projects without a GPU."""

from __future__ import annotations

import os

import numpy as np


def interpret_triton() -> None:
    """Let Triton interpret its kernels; call it before they are imported."""
    # vLLM takes no driver for an error unless the devices are hidden on purpose.
    os.environ.update(TRITON_INTERPRET="1", CUDA_VISIBLE_DEVICES="", VLLM_LOGGING_LEVEL="ERROR")

    import triton.language as tl
    from triton.language.extra import libdevice
    from triton.runtime.interpreter import TensorHandle

    def log1p(x: tl.tensor) -> tl.tensor:
        """`libdevice.log1p`: the interpreter has none of libdevice's functions and returns None for them."""
        return tl.tensor(TensorHandle(np.log1p(x.handle.data), x.handle.dtype), x.type)

    libdevice.log1p = log1p
