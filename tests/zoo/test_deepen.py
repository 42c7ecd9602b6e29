"""A deeper model computes the same until it is trained, and then all of it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.errors import InvalidInput
from draftwood.zoo.deepen import deepened
from draftwood.zoo.train import application


@pytest.mark.parametrize("layers", [2, 4])
def test_new_layers_add_nothing(layers: int) -> None:
    draft = zoo.load("llama-draft")
    deeper = deepened(draft, layers)
    tokens = torch.randint(0, 4096, (2, 30), generator=torch.Generator().manual_seed(0))
    assert deeper.config.num_hidden_layers == layers
    assert draft.config.num_hidden_layers == 1
    assert torch.equal(deeper(tokens).logits, draft(tokens).logits)


def test_training_reaches_the_new_layers() -> None:
    deeper = deepened(zoo.load("llama-draft"), 2)
    tokens = torch.randint(0, 4096, (2, 30), generator=torch.Generator().manual_seed(0))
    optimiser = torch.optim.SGD(deeper.parameters(), lr=0.1)
    for _ in range(2):
        optimiser.zero_grad()
        deeper(tokens, labels=tokens).loss.backward()
        optimiser.step()
    still = [
        name
        for name, weight in deeper.named_parameters()
        if name.startswith("model.layers.1.") and not weight.grad.any()
    ]
    assert not still


def test_the_same_seed_gives_the_same_layers_and_leaves_chance_alone() -> None:
    draft = zoo.load("llama-draft")
    state = torch.random.get_rng_state()
    first, again, other = (dict(deepened(draft, 2, seed=s).named_parameters()) for s in (0, 0, 1))
    assert torch.equal(torch.random.get_rng_state(), state)
    name = "model.layers.1.self_attn.q_proj.weight"
    assert torch.equal(first[name], again[name])
    assert not torch.equal(first[name], other[name])


def test_what_cannot_be_deepened_is_refused() -> None:
    with pytest.raises(InvalidInput, match="layers is 1 and the model has 1; give more"):
        deepened(zoo.load("llama-draft"), 1)
    with pytest.raises(InvalidInput, match=r"Mamba2ForCausalLM have no self_attn\.o_proj; give a Llama"):
        deepened(zoo.load("mamba2-draft"), 3)


def test_the_command_writes_what_distil_takes(tmp_path: Path) -> None:
    result = CliRunner().invoke(application(), ["deepen", "llama-draft", str(tmp_path), "--layers", "3"])
    assert result.exit_code == 0, result.output
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {one.name for one in tmp_path.iterdir()}
    assert '"num_hidden_layers": 3' in (tmp_path / "config.json").read_text()
