"""A head by folder, hub name and object, wherever a draft is named; and models and heads told apart."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch

from draftwood import InvalidInput, SpeculativeDecoder, create, custom_generate, load
from draftwood.protocols.named_heads import named_head
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.peagle import load_peagle
from tests.fake_hub import empty_hub
from tests.strategies import block_heads, feature_heads

NAME = "org/tiny-head"
Made = tuple[str, Any, Callable[[Path], None]]


def strategies() -> tuple[Any, Any]:
    return create("policies", "chain", {"length": 3, "law": "top-k"}), create("verifiers", "greedy")


KINDS: dict[str, tuple[str, Any, Callable[[Path], Any], Any]] = {
    "eagle3": (
        "eagle3",
        feature_heads.target,
        lambda folder: save_head(feature_heads.random_head(), folder, target="big"),
        feature_heads.random_head,
    ),
    "blocks": (
        "block-heads",
        lambda: block_heads.MODEL,
        lambda folder: save_block(block_heads.random_head(block_heads.config()), folder),
        lambda: block_heads.random_head(block_heads.config()),
    ),
}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the place of a repository's files where the hub's cache has them; nothing can be fetched."""
    return empty_hub(tmp_path / "hub", monkeypatch)


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_drafts_by_every_name(kind: str, tmp_path: Path, hub: Callable[[str], Path]) -> None:
    drafter, target, save, make = KINDS[kind]
    model = target()
    save(tmp_path / "head")
    save(hub(NAME))
    prompt = torch.tensor([[3, 5, 7, 2]])
    plain = model.generate(prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
    for head in (str(tmp_path / "head"), tmp_path / "head", NAME, make()):
        decoder = SpeculativeDecoder(model, head, *strategies())
        assert type(decoder.drafter).__name__ == type(create_drafter(drafter, decoder.target, head)).__name__
        drafted = decoder.generate(prompt, max_new_tokens=6)
        assert isinstance(drafted, torch.Tensor)
        assert drafted.tolist() == plain.tolist()
        policy, verifier = strategies()
        loop = custom_generate(drafter=head, policy=policy, verifier=verifier)
        written = loop.generate(model, prompt, max_new_tokens=6, do_sample=False, pad_token_id=0)
        assert written.tolist() == plain.tolist()


def create_drafter(name: str, target: Any, head: Any) -> Any:
    return create("drafters", name, {"target": target, "head": head})


def test_a_hub_name_without_files_is_told(hub: Callable[[str], Path]) -> None:
    with pytest.raises(InvalidInput, match="'org/nothing' is no folder, and its files cannot be fetched"):
        create_drafter("eagle3", load(feature_heads.target()), "org/nothing")


def test_a_head_is_no_model_and_a_model_no_head(tmp_path: Path, hub: Callable[[str], Path]) -> None:
    save_head(feature_heads.random_head(), hub(NAME), target="big")
    with pytest.raises(InvalidInput, match=f"'{NAME}' holds a head that the drafter 'eagle3' reads, and no"):
        SpeculativeDecoder(NAME, NAME, *strategies())
    feature_heads.target().save_pretrained(tmp_path)
    for read in (load_head, load_block, load_peagle):
        with pytest.raises(InvalidInput, match="holds a language model, and no head; name it as"):
            read(tmp_path)


ONE_LAYER = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
LAYER = ("layers.0.self_attn.q_proj.weight", "layers.0.mlp.up_proj.weight")
EAGLE_1 = ("fc.weight", *LAYER)
REPOSITORIES: dict[str, tuple[list[str], tuple[str, ...], bool]] = {
    "a head": (["config.json", "model.safetensors"], EAGLE_1, True),
    "a head without a prefix of its layers": (
        ["model.safetensors"],
        tuple(f"model.{n}" for n in EAGLE_1),
        True,
    ),
    "a pickled head": (["config.json", "pytorch_model.bin"], (), True),
    "a pickled model": (["config.json", "pytorch_model.bin", "tokenizer.json"], (), False),
    "a model": (["model.safetensors", "tokenizer.json"], tuple(f"model.{n}" for n in LAYER), False),
    "a model without its tokenizer": (["model.safetensors"], tuple(f"model.{n}" for n in LAYER), False),
}


@pytest.fixture
def described(hub: Callable[[str], Path]) -> Path:
    """A repository of which only the description of one layer is here."""
    folder = hub(NAME)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(ONE_LAYER))
    return folder


@pytest.mark.parametrize("case", REPOSITORIES)
def test_a_repository_of_one_layer_is_looked_up_on_the_hub(
    case: str, described: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, tensors, is_head = REPOSITORIES[case]
    asked: list[str] = []

    def listed(_: Any, name: str) -> list[str]:
        asked.append(name)
        return files

    headers = SimpleNamespace(weight_map=dict.fromkeys(tensors, "model.safetensors"))
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", listed)
    monkeypatch.setattr(huggingface_hub.HfApi, "get_safetensors_metadata", lambda *_: headers)
    found = named_head(NAME)
    assert asked[0] == NAME
    assert (found is not None) == is_head
    if found is not None:
        # The weights are not fetched for this.
        with pytest.raises(InvalidInput, match="describes a head of EAGLE-1 or EAGLE-2, which reads"):
            found.drafter_for(load(feature_heads.target()))


def test_a_repository_that_cannot_be_looked_up_is_told(described: Path) -> None:
    with pytest.raises(
        InvalidInput, match=f"'{NAME}' describes one layer, .* looked up on the hub .*download it"
    ):
        named_head(NAME)
    with pytest.raises(InvalidInput, match="download it first") as error:
        SpeculativeDecoder(feature_heads.target(), NAME, *strategies())
    assert "\n" not in str(error.value)


def test_a_head_of_eagle_3_that_calls_itself_a_llama_is_told_by_its_tensors(tmp_path: Path) -> None:
    save_head(feature_heads.random_head(), tmp_path, target="big")
    told = json.loads((tmp_path / "config.json").read_text())
    plain = {key: told[key] for key in told if key not in ("draft_vocab_size", "eagle_config")}
    (tmp_path / "config.json").write_text(json.dumps({**plain, "architectures": ["LlamaForCausalLM"]}))
    found = named_head(tmp_path)
    assert found is not None
    assert found.drafter == "eagle3"
