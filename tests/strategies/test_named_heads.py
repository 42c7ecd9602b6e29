"""A head by folder, hub name and object, wherever a draft is named; and models and heads told apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch

from draftwood import InvalidInput, SpeculativeDecoder, create, custom_generate, load
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.peagle import load_peagle
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
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def place(name: str) -> Path:
        there = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        (there / "refs").mkdir(parents=True)
        (there / "refs" / "main").write_text("a" * 40)
        return there / "snapshots" / ("a" * 40)

    return place


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
