"""Where models run when nobody says where."""

from __future__ import annotations

import torch


def default_device() -> torch.device:
    """The accelerator where there is one, else the CPU.

    A build of torch for an accelerator names it on every machine, so it is asked whether one is there.
    """
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return accelerator or torch.device("cpu")
