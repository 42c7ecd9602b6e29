"""Tests of kernels run them, on a GPU where there is one, and find memory that nobody wrote full of NaN."""

from collections.abc import Iterator

import pytest
import torch

from draftwood.kernels.support import kernels_enabled


@pytest.fixture(scope="module", autouse=True)
def poisoned_kernels() -> Iterator[None]:
    # Fills what torch allocates without writing it, with NaN or the largest integer.
    torch.use_deterministic_algorithms(True, warn_only=True)
    with kernels_enabled(True):
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
