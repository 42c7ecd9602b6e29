"""Models whose recurrent layers run the kernels agree with the same models on the references."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.testing import relative_error
from tests.backends.recurrent_models import BOTH, EXPERTS, PURE, SMALL, VOCAB
from tests.thorough import some_of

MAMBA2: dict[str, Any] = {"num_heads": 2, "head_dim": 32, "n_groups": 1, "chunk_size": 8}

# Sizes in multiples of 16, and parts that begin at multiples of 16 bytes, which the kernels ask for.
MODELS = {
    "mamba2": lambda: hf.Mamba2Config(**PURE | {"state_size": 16}, **MAMBA2),
    "mamba": lambda: hf.MambaConfig(**PURE, time_step_rank=4),
    "bamba": lambda: hf.BambaConfig(
        **SMALL,
        attn_layer_indices=[1],
        mamba_n_heads=2,
        mamba_d_head=32,
        mamba_d_state=16,
        mamba_n_groups=1,
        mamba_expand=2,
        mamba_chunk_size=8,
    ),
    "qwen3_next": lambda: hf.Qwen3NextConfig(
        **SMALL,
        **EXPERTS,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=16,
        linear_value_head_dim=16,
        head_dim=8,
        layer_types=BOTH,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "recurrent_gemma": lambda: hf.RecurrentGemmaConfig(
        **{name: value for name, value in SMALL.items() if name != "max_position_embeddings"}
        | {"num_hidden_layers": 3},
        attention_window_size=8,
        block_types=["recurrent", "attention"],
    ),
}

WANTED = {
    "mamba2": ["tree_conv:attend", "mamba2_tree:attend"] * 2 + ["tree_conv:replay", "mamba2_tree:replay"],
    "mamba": ["tree_conv:attend", "mamba1_tree:attend"] * 2 + ["tree_conv:replay", "mamba1_tree:replay"],
    "bamba": ["tree_conv:attend", "mamba2_tree:attend", "tree_conv:replay", "mamba2_tree:replay"],
    "qwen3_next": [
        *("tree_conv:attend", "gated_delta_tree:solve", "mamba2_tree:attend"),
        *("tree_conv:replay", "mamba2_tree:replay"),
    ],
    "recurrent_gemma": ["tree_conv:attend", "lru_tree:attend"] * 2 + ["tree_conv:replay", "tree_conv:replay"],
}
"""What one tree of two layers or three launches, and its commit: one launch a kind of layer."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    launch = Configuration.launch

    def noted(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        names.append(f"{self.operation}:{self.kernel.split(':')[1]}")
        launch(self, grid, **arguments)

    monkeypatch.setattr(Configuration, "launch", noted)
    return names


def rounds(backend: Any) -> list[Tensor]:
    """Logits of two rows over rounds of trees whose accepted paths skip columns, in one call and in two."""
    rng, logits = random.Random(0), []
    backend.prefill([[rng.randrange(VOCAB) for _ in range(n)] for n in (5, 2)])
    for parents in ([-1, 0, 0, 1, 2, -1], [-1, 0, 1]):
        tokens = torch.tensor([[rng.randrange(VOCAB) for _ in parents] for _ in range(2)])
        logits.append(
            backend.extend(tokens, torch.tensor([parents] * 2), [len(parents), len(parents) - 1])[:, :-1]
        )
        if len(parents) == 3:
            logits.append(backend.extend(tokens[:, :2], torch.tensor([[1, 3], [0, 2]])))
            backend.commit([[0, 1, 3, 4], [0, 2]])
        else:
            backend.commit([[0, 2, 4], []])
    return logits


@pytest.mark.triton
# Of Mamba-2 beside attention; alone it launches the same.
@pytest.mark.parametrize("name", some_of(MODELS, MODELS.keys() - {"mamba2"}))
def test_a_whole_model_agrees_with_the_references(name: str, launched: list[str]) -> None:
    torch.manual_seed(3)
    model = hf.AutoModelForCausalLM.from_config(MODELS[name](), experts_implementation="eager").eval()
    kind = SSMBackend if name.startswith("mamba") else HybridBackend
    with kernels_enabled(False):
        expected = rounds(kind(model))
    assert not launched
    with kernels_enabled(True):
        logits = rounds(kind(model))
        assert all(relative_error(one, right) < 1e-5 for one, right in zip(logits, expected, strict=True))
        backend = kind(model)
        backend.prefill([torch.tensor([1, 2, 3])])
        launched.clear()
        backend.extend(torch.tensor([[4, 5, 6]]), torch.tensor([[-1, 0, 0]]))
        backend.commit([[0, 2]])
    scans = [one for one in launched if one.split(":")[0].endswith(("_tree", "tree_conv"))]
    assert scans == WANTED[name]
