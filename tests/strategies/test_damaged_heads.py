"""Files of every kind of head with one thing changed: read as the same head, or refused in one sentence.

The sentence names the tensor, file or key. Nothing is ignored in silence, and nothing else is raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import DraftwoodError, InvalidInput, load
from draftwood.drafters import BlockDrafter, Eagle3, Hydra, MedusaHeads, Mtp, PEagle
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.drafters.medusa import load_heads
from draftwood.strategies.heads.formats import load_head, save_head
from draftwood.strategies.heads.hydra_files import load_hydra
from draftwood.strategies.heads.peagle import load_peagle, save_peagle
from draftwood.strategies.mtp.checkpoint import load_layer, save_layer
from tests.strategies import block_heads, mtp_layers, test_hydra, test_medusa_files, test_p_eagle
from tests.strategies.feature_heads import config, random_head, target

Tensors = dict[str, torch.Tensor]
Described = dict[str, Any]
DRAFTERS = (Eagle3, PEagle, BlockDrafter, Mtp, MedusaHeads, Hydra)


def eagle3(folder: Path, form: Any, **changes: Any) -> None:
    save_head(random_head(config(**changes)), folder, target="big", format=form)


def p_eagle(folder: Path) -> None:
    save_peagle(test_p_eagle.random_head(test_p_eagle.KINDS["table"]), folder, target="big")


def block(folder: Path, form: Any) -> None:
    head = block_heads.random_head(
        block_heads.config(markov_rank=3, root_guesses=True, own_embedding=True, own_head=True)
    )
    save_block(head, folder, target="big", format=form)


def mtp(folder: Path, kind: str) -> None:
    whole = mtp_layers.checkpoint(mtp_layers.KINDS[kind], folder / "whole")
    save_layer(load_layer(whole), folder, target="big")


def medusa(folder: Path) -> None:
    test_medusa_files.written(folder, test_medusa_files.VICUNA, test_medusa_files.tensors(2, 1))


def hydra(folder: Path) -> None:
    test_hydra.written(folder, test_hydra.PREFIX, test_hydra.tensors(test_hydra.PREFIX))


def read_hydra(folder: Path) -> Any:
    return load_hydra(folder, target().config.to_dict())


KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Any]]] = {
    "eagle3": (lambda folder: eagle3(folder, "safeailab", draft_vocab_size=11), load_head),
    "eagle3 of speculators": (
        lambda folder: eagle3(folder, "speculators", draft_vocab_size=11, own_embedding=True),
        load_head,
    ),
    "p-eagle": (p_eagle, load_peagle),
    "block": (lambda folder: block(folder, "zlab"), load_block),
    "block of speculators": (lambda folder: block(folder, "speculators"), load_block),
    "mtp of deepseek": (lambda folder: mtp(folder, "deepseek"), load_layer),
    "mtp of nemotron": (lambda folder: mtp(folder, "nemotron"), load_layer),
    "medusa": (medusa, load_heads),
    "hydra": (hydra, read_hydra),
}


@pytest.fixture(params=KINDS)
def kind(request: Any) -> str:
    return str(request.param)


def files(kind: str, folder: Path) -> tuple[Described, Tensors, str]:
    """The description and tensors of a head of this kind, and the name of its file of weights."""
    KINDS[kind][0](folder)
    (weights,) = folder.glob("*.safetensors")
    return json.loads((folder / "config.json").read_text()), load_file(weights), weights.name


def read(kind: str, folder: Path, described: Described, stored: Tensors, name: str) -> Tensors | str:
    """The weights of the head in these files, or the sentence that refuses it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    save_file({key: some.contiguous() for key, some in stored.items()}, folder / name)
    return outcome(kind, folder)


def outcome(kind: str, folder: Path) -> Tensors | str:
    try:
        return dict(KINDS[kind][1](folder).state_dict())
    except DraftwoodError as error:
        sentence = str(error)
        assert "\n" not in sentence
        assert "; " in sentence or ", " in sentence, f"without a remedy: {sentence}"
        return sentence


def same(read: Tensors | str, as_before: Tensors | str) -> bool:
    assert not isinstance(as_before, str), as_before
    return (
        not isinstance(read, str)
        and read.keys() == as_before.keys()
        and all(torch.equal(read[name].double(), as_before[name].double()) for name in read)
    )


def bad_tensors(stored: Tensors) -> Iterator[tuple[str, str, Tensors]]:
    """Each tensor missing, of another shape, of another kind of numbers, and with one that is none."""
    for name, some in stored.items():
        yield "missing", name, {key: one for key, one in stored.items() if key != name}
        yield "shape", name, {**stored, name: torch.cat([some, some[:1]]) if some.dim() else some[None]}
        yield "flat", name, {**stored, name: some.flatten() if some.dim() > 1 else some[None]}
        yield "kind", name, {**stored, name: some.to(torch.int8)}
        if some.is_floating_point():
            spoilt = some.clone()
            spoilt.view(-1)[-1] = torch.nan
            yield "no number", name, {**stored, name: spoilt}
            yield "infinite", name, {**stored, name: torch.full_like(some, torch.inf)}


# A map's numbers fit into fewer bits, and one of the two maps tells all.
SAME = {("kind", "d2t"), ("kind", "t2d"), ("missing", "t2d")}
# Without its own table a head takes the target's.
BORROWED = ("embed_tokens.weight", "lm_head.weight", "shared_head.head.weight")
NOT_READ = ("input_embed_fn.", "prefix_embeding_layer.embed_tokens.", "inv_freq")


def test_a_damaged_tensor_is_named(kind: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    right = read(kind, tmp_path / "again", described, stored, name)
    told = []
    for number, (damage, tensor, changed) in enumerate(bad_tensors(stored)):
        found = read(kind, tmp_path / str(number), described, changed, name)
        if ((damage, tensor) in SAME or any(part in tensor for part in NOT_READ)) and same(found, right):
            continue
        if damage == "missing" and tensor.endswith(BORROWED) and not isinstance(found, str):
            assert tensor not in found
            continue
        if not isinstance(found, str) or not (tensor in found or tensor.split(".")[-1] in found):
            told.append((damage, tensor, found if isinstance(found, str) else "read"))
    assert not told, told[:8]


def test_a_tensor_too_many_is_named(kind: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    some = next(key for key in stored if stored[key].dim() == 2)
    for extra in ("extra.weight", some.replace(".weight", ".bias"), f"{some}_scale"):
        if extra in stored:
            continue
        found = read(kind, tmp_path / "more", described, {**stored, extra: torch.zeros(3)}, name)
        if kind.startswith("mtp") and extra == "extra.weight":
            assert not isinstance(found, str)  # of a checkpoint nothing but the layer is read
            continue
        assert isinstance(found, str), extra
        assert extra in found, found


@pytest.mark.parametrize("prefix", ["model.", "language_model.", "module."])
def test_names_with_a_prefix_are_refused_or_the_same_head(kind: str, prefix: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    right = read(kind, tmp_path / "again", described, stored, name)
    renamed = {prefix + key: some for key, some in stored.items()}
    found = read(kind, tmp_path / "renamed", described, renamed, name)
    assert same(found, right) or (isinstance(found, str) and "no head" not in found), found


def test_weights_in_another_dtype_are_the_same_head(kind: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    halves = {key: some.half() if some.is_floating_point() else some for key, some in stored.items()}
    wider = {key: some.double() if some.is_floating_point() else some for key, some in halves.items()}
    expected = read(kind, tmp_path / "wider", described, wider, name)
    assert same(read(kind, tmp_path / "halves", described, halves, name), expected)


def test_a_missing_shard_is_named(kind: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    right = read(kind, tmp_path / "again", described, stored, name)
    folder = tmp_path / "shards"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(described))
    places = dict[str, str]()
    for number, part in enumerate((list(stored)[::2], list(stored)[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({key: stored[key].contiguous() for key in part}, folder / file)
        places |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    whole = outcome(kind, folder)
    assert same(whole, right) or (isinstance(whole, str) and name in whole), whole
    (folder / file).unlink()
    found = outcome(kind, folder)
    assert isinstance(found, str)
    assert file in found or name in found, found


# Words of sentences that name a head's kind, its layer or its experts, where a key of them is missing.
NAMED = ("architectures", "model_type", "no tensor begins with", "mixer.experts.")


def test_a_renamed_key_is_named_or_changes_nothing(kind: str, tmp_path: Path) -> None:
    described, stored, name = files(kind, tmp_path / "right")
    right = read(kind, tmp_path / "again", described, stored, name)
    for number, key in enumerate(described):
        renamed = {f"{key}_x" if one == key else one: value for one, value in described.items()}
        found = read(kind, tmp_path / str(number), renamed, stored, name)
        if isinstance(found, str):
            # Without a size, the class's default is taken, and a tensor is of another shape.
            assert any(one in found for one in (key, *NAMED, *stored)), (key, found)
        else:
            assert same(found, right), key


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n",
            "a pointer of Git LFS; .*`git lfs",
        ),
        ("<!DOCTYPE html><html></html>", "a web page; download the file again"),
    ],
)
def test_files_that_were_not_fetched_are_told(content: str, sentence: str, tmp_path: Path) -> None:
    eagle3(tmp_path, "safeailab", draft_vocab_size=11)
    (tmp_path / "model.safetensors").write_text(content)
    with pytest.raises(InvalidInput, match=f"model.safetensors in .* is {sentence}"):
        load_head(tmp_path)
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(InvalidInput, match=f"config.json in .* is {sentence}"):
        load_head(tmp_path)
    # What names it as a draft is told the same.
    with pytest.raises(InvalidInput, match=f"config.json in .* is {sentence}"):
        load(tmp_path)


def test_weights_without_their_index_are_named(tmp_path: Path) -> None:
    eagle3(tmp_path, "safeailab", draft_vocab_size=11)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00002.safetensors")
    with pytest.raises(InvalidInput, match=r"but model-00001-of-00002\.safetensors; copy the index too"):
        load_head(tmp_path)
