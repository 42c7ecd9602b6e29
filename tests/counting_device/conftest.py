"""Requirement of the stand-in: a machine without the device that it stands for."""

from collections.abc import Iterator

import pytest
import torch

from tests.counting_device.device import CountingDevice, counting_device


@pytest.fixture(scope="session", autouse=True)
def no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("counts what a GPU would do, and here is one")


@pytest.fixture
def device() -> Iterator[CountingDevice]:
    with counting_device() as running:
        yield running
