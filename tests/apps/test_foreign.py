"""The command line on a trained model in the layout of `mamba_ssm`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftwood import zoo

PROMPT = "Question: Tom has 3 boxes with 12 apples each. How many apples are there?\nAnswer:"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The zoo's Mamba-2 as that package saves it."""
    model = zoo.load("mamba2-5m")
    config = model.config
    layer = {"d_state": config.state_size, "d_conv": config.conv_kernel, "expand": config.expand}
    layer |= {"headdim": config.head_dim, "ngroups": config.n_groups, "layer": "Mamba2"}
    settings = {"d_model": config.hidden_size, "n_layer": config.num_hidden_layers, "ssm_cfg": layer}
    settings |= {"vocab_size": config.vocab_size - 3, "tie_embeddings": config.tie_word_embeddings}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    names = {"backbone.embeddings.weight": "backbone.embedding.weight"}
    tensors = {names.get(name, name): tensor for name, tensor in model.state_dict().items()}
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    return tmp_path


def test_a_checkpoint_as_target(draftwood, folder: Path):
    texts = [
        draftwood(
            *["generate", "--target", target, "--tokenizer", "tokenizer", "--drafter", "llama-draft"],
            *["--prompt", PROMPT, "--max-new-tokens", 24],
        )
        for target in ("mamba2-5m", folder)
    ]
    for result in texts:
        assert result.exit_code == 0, result.output
    assert texts[0].stdout == texts[1].stdout


def test_a_tokenizer_must_be_named(refused, folder: Path):
    words = refused("generate", "--target", folder, "--prompt", PROMPT)
    assert "There is no tokenizer in" in words
    (folder / "pytorch_model.bin").unlink()
    words = refused("generate", "--target", folder, "--tokenizer", "tokenizer", "--prompt", PROMPT)
    assert "has no weights, neither model.safetensors nor pytorch_model.bin" in words
