"""Real models of the zoo, loaded once."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import zoo

TEXT = (
    "Question: Tom has 3 boxes with 12 apples each and eats 5 of them. How many are left?\n"
    "Answer: There are 3 * 12 = 36 apples, so 36 - 5 = 31 are left.\n#### 31\n"
)


@pytest.fixture(scope="session")
def target() -> Any:
    return zoo.load("llama-7m")


@pytest.fixture(scope="session")
def draft() -> Any:
    return zoo.load("llama-draft")


@pytest.fixture(scope="session")
def text() -> torch.Tensor:
    """Real text, int64 `[1, length]`."""
    return torch.tensor([zoo.tokenizer()(TEXT)["input_ids"]])
