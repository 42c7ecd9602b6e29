"""The models load by name, and a wrong name is answered with the right one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from draftwood import zoo
from draftwood.backends.loading.loader import load
from draftwood.base.errors import InvalidInput
from draftwood.zoo.distil.rows import continued
from draftwood.zoo.heads.agreement import agreement
from draftwood.zoo.heads.loading import load_for

MEGABYTE = 10**6


@pytest.mark.parametrize("name", zoo.names())
def test_every_model_predicts_real_text(name: str, text: torch.Tensor) -> None:
    model = zoo.load(name)
    assert not model.training
    assert model.dtype == torch.float32
    with torch.inference_mode():
        loss = model(text, labels=text).loss
    assert loss < 4.5, "far from real text; a uniform guess has 8.3"
    record = json.loads((zoo.path(name) / "training.json").read_text())
    assert record["params"] == sum(weight.numel() for weight in model.parameters())
    assert (zoo.path(name) / "README.md").stat().st_size > 500


@pytest.mark.parametrize("name", zoo.head_names())
def test_every_head_follows_its_target(name: str, text: torch.Tensor) -> None:
    target = zoo.load(name.rpartition("-")[0])
    head = load_for(zoo.path(name), load(target))
    record = json.loads((zoo.path(name) / "training.json").read_text())
    assert record["params"] == sum(weight.numel() for weight in head.parameters())
    vocabulary = target.config.vocab_size
    own = sum(weight.numel() for weight in head.parameters() if vocabulary not in weight.shape)
    assert own <= MEGABYTE
    assert (zoo.path(name) / "README.md").stat().st_size > 500
    rows = continued(target, text[:, :48], new_tokens=48, temperature=0.0, seed=0)
    found = agreement(target, head, [rows])
    assert found.by_depth[0] > 0.4, found
    with pytest.raises(InvalidInput, match="is a head, which draws on its target"):
        zoo.load(name)


def test_dtype_is_the_callers() -> None:
    assert zoo.load("llama-draft", dtype=torch.bfloat16).dtype == torch.bfloat16


def test_one_tokenizer_for_all_models() -> None:
    shared = zoo.tokenizer()
    assert len(shared) == 4096
    assert (shared.eos_token_id, shared.pad_token_id) == (0, 1)
    code = "def f(x: int) -> int:\n    return x + 1  # naïve\n"
    assert shared.decode(shared(code)["input_ids"]) == code
    for name in zoo.names():
        config = json.loads((zoo.path(name) / "config.json").read_text())
        assert config["vocab_size"] == 4096


@pytest.mark.parametrize(
    ("wrong", "near"), [("llama7m", "llama-7m"), ("bamba", "bamba-6m"), ("tokeniser", "tokenizer")]
)
def test_unknown_name_is_answered_with_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(InvalidInput, match=f"no model '{wrong}'; did you mean '{near}'"):
        zoo.path(wrong)


def test_model_outside_the_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(zoo, "_ROOT", tmp_path)
    with pytest.raises(FileNotFoundError, match="clone the repository"):
        zoo.path("mamba2-5m")


def test_the_zoo_is_small() -> None:
    folders = [zoo.path(name) for name in (*zoo.names(), *zoo.head_names(), "tokenizer")]
    size = sum(file.stat().st_size for folder in folders for file in folder.iterdir())
    assert size < 80 * MEGABYTE
