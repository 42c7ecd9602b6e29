"""A text read at once: the outputs and the state of a tree that is one chain, whatever its length."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from draftwood.kernels.mamba2_tree import prompt as mamba2
from draftwood.kernels.mamba2_tree import reference as mamba2_tree
from draftwood.kernels.tree_conv import prompt as conv
from draftwood.kernels.tree_conv import reference as tree_conv

LENGTHS = (1, 2, 63, 64, 65, 128, 200)


def chain(rows: int, tokens: int) -> Tensor:
    """Bool `[rows, tokens, tokens]`."""
    return torch.ones(tokens, tokens, dtype=torch.bool).tril().expand(rows, -1, -1)


def mamba2_inputs(tokens: int, *, forget: float) -> dict[str, Tensor]:
    """Two rows, two groups of two heads; a step forgets up to `exp(-forget)`."""
    torch.manual_seed(tokens)
    queries, keys = torch.randn(2, tokens, 4, 8).split(2, dim=2)
    return {
        "queries": queries,
        "keys": keys,
        "values": torch.randn(2, tokens, 4, 5),
        "decay": -forget * torch.rand(2, tokens, 4) ** 4,
        "state": torch.randn(2, 4, 5, 8),
    }


@pytest.mark.parametrize("forget", [0.1, 30.0])
@pytest.mark.parametrize("tokens", LENGTHS)
def test_mamba2_reads_a_text_as_a_chain(tokens: int, forget: float) -> None:
    inputs = mamba2_inputs(tokens, forget=forget)
    out, state = mamba2.read(**inputs)
    exact = {name: tensor.double() for name, tensor in inputs.items()}
    expected = mamba2_tree.attend(**exact, visible=chain(2, tokens))
    torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-5)
    del exact["queries"]
    behind = mamba2_tree.replay(**exact, kept=torch.ones(2, tokens, dtype=torch.bool))
    torch.testing.assert_close(state.double(), behind, rtol=1e-5, atol=1e-5)


def test_mamba2_passes_over_tokens_without_value_and_decay() -> None:
    inputs = mamba2_inputs(150, forget=1.0)
    for name in ("values", "decay"):
        inputs[name][:, 70:] = 0.0
    _, state = mamba2.read(**inputs)
    short = {name: tensor if name == "state" else tensor[:, :70] for name, tensor in inputs.items()}
    torch.testing.assert_close(state, mamba2.read(**short)[1])


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("tokens", [1, 2, 7])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_convolution_reads_a_text_as_a_chain(tokens: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(tokens)
    inputs, state = torch.randn(2, tokens, 6).to(dtype), torch.randn(2, width - 1, 6).to(dtype)
    weight, bias = torch.randn(6, width).to(dtype), torch.randn(6).to(dtype)
    window = tree_conv.windows(visible=chain(2, tokens), width=width)
    for b in (bias, None):
        torch.testing.assert_close(
            conv.attend(inputs=inputs, state=state, weight=weight, bias=b),
            tree_conv.attend(inputs=inputs, state=state, weight=weight, bias=b, window=window),
        )
    counts = torch.tensor([tokens, tokens - 1])
    kept = torch.arange(tokens) < counts.unsqueeze(1)
    found = conv.replay(inputs=inputs, state=state, counts=counts)
    assert torch.equal(found, tree_conv.replay(inputs=inputs, state=state, kept=kept))
