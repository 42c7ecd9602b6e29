"""A deeper model computes the same until it is trained, and then all of it learns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Gemma2Config, LlamaConfig, Qwen2Config
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.base.errors import InvalidInput
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


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (LlamaConfig, {"attention_bias": True, "mlp_bias": True}),
        (Qwen2Config, {}),
        (Gemma2Config, {"head_dim": 8}),  # sliding and full attention in turns, norms behind the projections
    ],
)
def test_other_models_are_deepened_as_well(kind: type, more: dict[str, object]) -> None:
    sizes = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 3}
    model = AutoModelForCausalLM.from_config(
        kind(**sizes, num_attention_heads=2, num_key_value_heads=1, **more)
    ).eval()
    tokens = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(0))
    assert torch.equal(deepened(model, 5)(tokens).logits, model(tokens).logits)


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


def test_a_folder_keeps_its_tokenizer_and_its_precision(tmp_path: Path) -> None:
    folder, out = tmp_path / "mine", tmp_path / "deeper"
    zoo.load("llama-draft").float().save_pretrained(folder)
    mine = zoo.tokenizer()
    mine.add_tokens(["a token of mine"])
    mine.save_pretrained(folder)
    result = CliRunner().invoke(application(), ["deepen", str(folder), str(out)])
    assert result.exit_code == 0, result.output
    assert "a token of mine" in AutoTokenizer.from_pretrained(out).get_vocab()
    assert AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype == torch.float32
