"""MTP layers in speculators' files equal the checkpoint's from which they were taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import InvalidInput, SpeculativeDecoder, UnsupportedModel, create
from draftwood.drafters import BlockDrafter, Eagle3, Mtp, PEagle
from draftwood.strategies.mtp.checkpoint import load_layer, save_layer
from tests.strategies.mtp_layers import KINDS, checkpoint, model_of

RENAMED = {
    "mtp.fc.": "mtp_layers.0.input_proj.",
    "mtp.norm.": "mtp_layers.0.final_layernorm.",
    "mtp.pre_fc_norm_hidden.": "mtp_layers.0.hidden_layernorm.",
    "mtp.pre_fc_norm_embedding.": "mtp_layers.0.token_layernorm.",
    "mtp.layers.0.": "mtp_layers.0.",
}
ABOUT = {
    "algorithm": "mtp",
    "default_proposal_method": "greedy",
    "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
    "verifier": {
        "architectures": ["Qwen3NextForCausalLM"],
        "name_or_path": "Qwen/Qwen3-Next-80B-A3B-Instruct",
    },
}


def as_theirs(native: Path, folder: Path, **changes: Any) -> Path:
    """The layer of a checkpoint, under the names and keys that speculators gives it."""
    folder.mkdir()
    layer = json.loads((native / "config.json").read_text())
    described = {
        "architectures": ["MTPDraftModel"],
        "num_nextn_predict_layers": 1,
        "speculators_config": ABOUT,
        "speculators_model_type": "mtp",
        "speculators_version": "0.9.0",
        "transformer_layer_config": layer,
        **changes,
    }
    (folder / "config.json").write_text(json.dumps(described))
    stored = load_file(native / "model-00002-of-00002.safetensors")
    theirs = {}
    for name, tensor in stored.items():
        begin = next(begin for begin in RENAMED if name.startswith(begin))
        theirs[RENAMED[begin] + name.removeprefix(begin)] = tensor
    save_file(theirs, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("name", ["qwen3-next", "qwen3.5", "qwen3.5-moe"])
def test_a_layer_of_speculators_is_that_of_its_model(name: str, tmp_path: Path) -> None:
    native = checkpoint(KINDS[name], tmp_path / "model")
    folder = as_theirs(native, tmp_path / "theirs")
    assert [one for one in (Eagle3, PEagle, BlockDrafter, Mtp) if one.reads(folder)] == [Mtp]
    ours, theirs = load_layer(native), load_layer(folder)
    assert theirs.layout.trained_depths == 3
    read = theirs.state_dict()
    assert ours.state_dict().keys() == read.keys()
    for key, weight in ours.state_dict().items():
        assert torch.equal(weight, read[key]), key
    # It is written with its family's names.
    save_layer(theirs, tmp_path / "saved", target="big")
    again = load_layer(tmp_path / "saved")
    assert again.layout.trained_depths == 3
    assert torch.equal(again.projection.weight, ours.projection.weight)
    assert "mtp.fc.weight" in load_file(tmp_path / "saved" / "model.safetensors")


def test_it_drafts_and_the_text_is_the_targets(tmp_path: Path) -> None:
    folder = as_theirs(checkpoint(KINDS["qwen3.5"], tmp_path / "model"), tmp_path / "theirs")
    model = model_of(KINDS["qwen3.5"])
    policy = create("policies", "chain", {"length": 3, "law": "top-k"})
    decoder = SpeculativeDecoder(model, str(folder), policy, create("verifiers", "greedy"))
    prompt = torch.tensor([[3, 5, 7, 2]])
    text: Any = decoder.generate(prompt, max_new_tokens=8)
    assert torch.equal(text, model.generate(prompt, max_new_tokens=8, do_sample=False))


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        ({"num_nextn_predict_layers": 2}, UnsupportedModel, "num_nextn_predict_layers is 2"),
        ({"transformer_layer_config": None}, InvalidInput, "transformer_layer_config is None"),
        ({"norm_output": True}, InvalidInput, "'norm_output', which belongs to EAGLE-3 heads"),
        ({"transformer_config": {}}, InvalidInput, "the key 'transformer_config', which is not known"),
        ({"transformer_layer_config": {"model_type": "qwen2"}}, UnsupportedModel, "model_type is 'qwen2'"),
    ],
)
def test_a_layer_that_is_refused(
    changes: dict[str, Any], error: type[Exception], sentence: str, tmp_path: Path
) -> None:
    folder = as_theirs(checkpoint(KINDS["qwen3-next"], tmp_path / "model"), tmp_path / "theirs", **changes)
    with pytest.raises(error, match=sentence) as found:
        load_layer(folder)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("deepseek_v4", "have sparse attention over compressed keys"),
        ("mimo_v2_flash", "are several and attend in a window"),
        ("exaone4_5", "attend in a window"),
    ],
)
def test_models_whose_layers_compute_something_else(kind: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind, "num_nextn_predict_layers": 1}))
    with pytest.raises(UnsupportedModel, match=reason):
        load_layer(tmp_path)
