"""The default device of models."""

from __future__ import annotations

import torch


def default_device() -> torch.device:
    """The accelerator where there is one, else the CPU; Apple's MPS is none for us.

    A build of torch for an accelerator names it on every machine, so it is asked whether one is there.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or accelerator.type == "mps":  # draws need float64, which MPS lacks
        return torch.device("cpu")
    return accelerator
