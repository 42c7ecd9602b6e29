"""Features of the last layer's output, before the final norm: those after it are the norm of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import InvalidInput, load
from tests.backends.recurrent_models import build

FINAL = {"bamba": lambda model: model.model.final_layernorm, "mamba2": lambda model: model.backbone.norm_f}


@pytest.mark.parametrize("name", FINAL)
@torch.no_grad()
def test_the_final_norm_makes_one_of_the_other(name: str) -> None:
    model: Any = build(name)
    backend = load(model)
    most = backend.feature_layers
    backend.keep_features([most + 1, most])
    backend.prefill([torch.tensor([3, 5, 2, 7])])
    backend.extend(torch.tensor([[1, 4]]), torch.tensor([[-1, 0]]))
    backend.commit([[0, 1]])
    (features,) = backend.take_features()
    before, after = features.chunk(2, -1)
    assert len(features) == 6
    torch.testing.assert_close(FINAL[name](model)(before), after)
    backend.release()
    with pytest.raises(
        InvalidInput,
        match=rf"no features of layer {most + 2}; .* or {most + 1} \(output",
    ):
        backend.keep_features([most + 2])
