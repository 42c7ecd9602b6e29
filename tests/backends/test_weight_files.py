"""An index only names weights of its folder, or the model is not loaded."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from draftwood import InvalidInput, UnsupportedModel, load

INDEX = "model.safetensors.index.json"


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A model in the shards that its index names."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    folder = tmp_path / "model"
    LlamaForCausalLM(config).save_pretrained(folder, max_shard_size="6KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    return folder


def renamed(folder: Path, name: str) -> None:
    """Let the index name the first shard otherwise."""
    index = json.loads((folder / INDEX).read_text())
    first = min(index["weight_map"].values())
    index["weight_map"] = {
        weight: name if file == first else file for weight, file in index["weight_map"].items()
    }
    (folder / INDEX).write_text(json.dumps(index))


def test_shards_of_the_folder_are_loaded(sharded: Path) -> None:
    assert load(sharded, device="cpu").vocab_size == 32


@pytest.mark.parametrize(
    "name", ["../away.safetensors", "{tmp}/away.safetensors", "sub/../../away.safetensors"]
)
def test_a_file_outside_is_refused(sharded: Path, tmp_path: Path, name: str) -> None:
    shard = min(sharded.glob("model-*.safetensors"))
    shutil.move(shard, tmp_path / "away.safetensors")
    renamed(sharded, name.format(tmp=tmp_path))
    with pytest.raises(UnsupportedModel, match=r"away\.safetensors', which lies outside its folder"):
        load(sharded, device="cpu")


@pytest.mark.posix
def test_a_link_that_leads_out_is_refused(sharded: Path, tmp_path: Path) -> None:
    shard = min(sharded.glob("model-*.safetensors"))
    shutil.move(shard, tmp_path / "away.safetensors")
    shard.symlink_to(tmp_path / "away.safetensors")
    with pytest.raises(UnsupportedModel, match="lies outside its folder"):
        load(sharded, device="cpu")


@pytest.mark.posix
def test_a_snapshot_of_the_hub_links_to_its_blobs(sharded: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234", tmp_path / "models--a--b" / "blobs"
    shutil.copytree(sharded, snapshot)
    blobs.mkdir()
    for number, file in enumerate(sorted(snapshot.iterdir())):
        shutil.move(file, blobs / str(number))
        file.symlink_to(Path("../../blobs") / str(number))
    assert load(snapshot, device="cpu").vocab_size == 32


@pytest.mark.posix
def test_a_folder_may_itself_be_a_link(sharded: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(sharded)
    assert load(tmp_path / "link", device="cpu").vocab_size == 32


@pytest.mark.parametrize(
    "content", [b"{", b"[" * 100_000, b"[]", b'{"weight_map": []}', b'{"weight_map": {"a": 1}}', b"\xff"]
)
def test_an_index_that_is_none_is_refused(sharded: Path, content: bytes) -> None:
    (sharded / INDEX).write_bytes(content)
    with pytest.raises(InvalidInput, match=r"index\.json .*download the model again"):
        load(sharded, device="cpu")


@pytest.mark.parametrize("name", ["\0", "x" * 5000, "\ud800"])
def test_a_name_that_is_none_is_refused(sharded: Path, name: str) -> None:
    renamed(sharded, name)
    with pytest.raises(InvalidInput):
        load(sharded, device="cpu")
