"""Heads on a target that was rotated after their training, as QuaRot and SpinQuant rotate models."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import InvalidInput, Request, SpeculativeDecoder, UnsupportedModel, create, load, zoo
from draftwood.apps.models.prompts import PROMPTS
from draftwood.strategies.drafters.medusa import Heads
from draftwood.strategies.drafters.rotated_target import check_not_rotated, undo_rotation
from draftwood.strategies.heads.formats import load_head
from draftwood.strategies.heads.peagle import PEagleConfig, PEagleHead
from draftwood.strategies.heads.rotation import rotation_in
from draftwood.zoo.distil.rows import continued
from draftwood.zoo.heads.floors import floors_of
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.parts import added_by_parts
from draftwood.zoo.heads.settings import compared
from draftwood.zoo.heads.verdict import verdict_of
from tests.fake_hub import COMMIT, empty_hub

Tensors = dict[str, torch.Tensor]


@cache
def matrix() -> torch.Tensor:
    drawn = torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    return torch.linalg.qr(drawn).Q.contiguous()


@cache
def rotated() -> Any:
    """llama-7m with another basis of its hidden states, its norms' weights merged into what reads them."""
    model, turn = deepcopy(zoo.load("llama-7m").float()), matrix()
    head = torch.nn.Linear(256, len(model.lm_head.weight), bias=False)
    with torch.no_grad():
        head.weight.copy_(model.lm_head.weight)  # llama-7m may tie it to the embeddings
        model.lm_head = head
        body = model.model
        readers = [(body.norm, [head])]
        for layer in body.layers:
            attention, feed = layer.self_attn, layer.mlp
            readers.append((layer.input_layernorm, [attention.q_proj, attention.k_proj, attention.v_proj]))
            readers.append((layer.post_attention_layernorm, [feed.gate_proj, feed.up_proj]))
            for writer in (attention.o_proj, feed.down_proj):
                writer.weight.copy_(turn.T @ writer.weight)
        for norm, linears in readers:
            for linear in linears:
                linear.weight.copy_(linear.weight * norm.weight @ turn)
            norm.weight.fill_(1)
        body.embed_tokens.weight.copy_(body.embed_tokens.weight @ turn)
    model.config.tie_word_embeddings = False
    return model


def saved(folder: Path, *, told: bool = True) -> Path:
    """Returns the folder with the rotated target, which says so or does not."""
    rotated().save_pretrained(folder)
    (folder / "optional").mkdir()
    save_file({"global_rotation": matrix()}, folder / "optional" / "quarot.safetensors")
    if told:
        names = {"global_rotation": "optional/quarot.safetensors"}
        content = {"optional": {"quarot": {"rotation_map": names}}}
        (folder / "quant_model_description.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rotated target, whose files say so."""
    return saved(tmp_path_factory.mktemp("rotated") / "told")


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rotated target, whose files do not say so."""
    return saved(tmp_path_factory.mktemp("rotated") / "silent", told=False)


def changed(name: str, folder: Path, change: Callable[[Tensors], Any]) -> Path:
    stored = load_file(zoo.path(name) / "model.safetensors")
    change(stored)
    folder.mkdir()
    (folder / "config.json").write_text((zoo.path(name) / "config.json").read_text())
    save_file({key: tensor.contiguous() for key, tensor in stored.items()}, folder / "model.safetensors")
    return folder


def words_of(model: Any) -> torch.Tensor:
    table: torch.Tensor = model.get_input_embeddings().weight
    return table


def trained_later(stored: Tensors) -> None:
    """The head in the basis of the rotated target, as one that is trained on it would be."""
    parts = stored["fc.weight"].float().chunk(3, 1)
    stored["fc.weight"] = torch.cat([part @ matrix() for part in parts], 1)
    scale = stored["midlayer.input_layernorm.weight"].float()
    for name in "qkv":
        key = f"midlayer.self_attn.{name}_proj.weight"
        words, states = stored[key].float().chunk(2, 1)
        stored[key] = torch.cat([(words * scale) @ matrix(), states], 1)
    stored["midlayer.input_layernorm.weight"] = torch.ones(256)


def own_words(stored: Tensors) -> None:
    stored["embed_tokens.weight"] = words_of(zoo.load("llama-7m")).detach().clone()


def rotated_words(stored: Tensors) -> None:
    stored["embed_tokens.weight"] = words_of(rotated()).detach().clone()


def own_tables(stored: Tensors) -> None:
    """The tables of words and of the output head that the target had before its rotation."""
    table = words_of(zoo.load("llama-7m")).detach().clone()
    stored |= {"embed_tokens.weight": table, "lm_head.weight": table.clone()}


def drafted(model: Any, drafter: str, head: Any, **options: Any) -> tuple[Any, float]:
    """Returns a text and the tokens per round of a chain."""
    target = load(model)
    made = create("drafters", drafter, {"target": target, "head": head, **options})
    policy, verifier = (
        create("policies", "chain", {"length": 3, "law": "top-k"}),
        create("verifiers", "greedy"),
    )
    prompt = torch.tensor([zoo.tokenizer()("She looked at the sea and")["input_ids"]])
    found: Any = SpeculativeDecoder(target, made, policy, verifier).generate(
        prompt, max_new_tokens=48, return_dict_in_generate=True
    )
    return found.sequences.tolist(), found.statistics.tokens_per_round


def test_the_rotated_target_is_the_same_model() -> None:
    tokens, plain = torch.tensor([[3, 700, 41, 9, 1200]]), zoo.load("llama-7m").float()
    torch.testing.assert_close(rotated()(tokens).logits, plain(tokens).logits, atol=2e-3, rtol=1e-3)
    assert not torch.allclose(words_of(rotated()), words_of(plain), atol=0.1)


@pytest.mark.parametrize("own", [False, True], ids=["the target's words", "its own words"])
def test_a_head_drafts_for_the_rotated_target_as_for_the_original(
    own: bool, folder: Path, silent: Path, tmp_path: Path
) -> None:
    head = zoo.path("llama-7m-eagle3")
    plain = drafted(zoo.load("llama-7m").float(), "eagle3", head)
    if own:
        head = changed("llama-7m-eagle3", tmp_path / "head", own_words)
    assert drafted(folder, "eagle3", head) == plain
    # A wrong basis costs tokens, or this test would show nothing.
    assert drafted(folder, "eagle3", head, rotation="none")[1] < plain[1] - 0.3
    file = silent / "optional" / "quarot.safetensors"
    assert drafted(silent, "eagle3", head, rotation=str(file)) == plain


def test_a_head_that_was_trained_on_the_rotated_target_is_left(folder: Path, tmp_path: Path) -> None:
    plain = drafted(zoo.load("llama-7m").float(), "eagle3", zoo.path("llama-7m-eagle3"))

    def change(stored: Tensors) -> None:
        trained_later(stored)
        rotated_words(stored)

    head = changed("llama-7m-eagle3", tmp_path / "head", change)
    assert drafted(folder, "eagle3", head) == plain


def test_a_block_drafter_needs_its_own_output_head(folder: Path, tmp_path: Path) -> None:
    spark = zoo.path("llama-7m-dspark")
    with pytest.raises(UnsupportedModel, match="merged the weights of the last norm .* own lm_head"):
        drafted(folder, "block-heads", spark)
    whole = changed("llama-7m-dspark", tmp_path / "head", own_tables)
    plain = drafted(zoo.load("llama-7m").float(), "block-heads", spark)
    assert drafted(folder, "block-heads", whole) == plain


def test_a_p_eagle_head_reads_the_target_before_its_rotation(folder: Path) -> None:
    head = PEagleHead(PEagleConfig(head=load_head(zoo.path("llama-7m-eagle3")).config, mask_token_id=1))
    torch.manual_seed(0)
    for parameter in head.parameters():
        parameter.data.normal_(0, 0.1)
    plain = zoo.load("llama-7m").float()
    texts = []
    for model in (plain, folder):
        target = load(model)
        drafter = create("drafters", "p-eagle", {"target": target, "head": head})
        row = torch.tensor([3, 5, 700, 41, 9])
        target.prefill([row])
        drafter.prefill([row])
        texts.append(drafter.distributions([Request(tokens=torch.tensor([2]), parents=torch.tensor([-1]))]))
    torch.testing.assert_close(*texts, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("kind", ["Medusa heads", "MTP layers"])
def test_heads_after_the_last_norm_are_refused(kind: str, folder: Path) -> None:
    target = load(folder)
    with pytest.raises(
        UnsupportedModel, match=f"The target is rotated, and {kind} read its states after the"
    ):
        check_not_rotated(target, None, kind=kind)
    check_not_rotated(target, "none", kind=kind)
    with pytest.raises(InvalidInput, match="rotation is 'yes'; .* take only 'none' there"):
        check_not_rotated(target, "yes", kind=kind)


def test_medusa_heads_on_a_rotated_target(folder: Path) -> None:
    target, heads = load(folder), Heads(2, 256, 4096)
    with pytest.raises(UnsupportedModel, match="The target is rotated, and Medusa heads read"):
        create("drafters", "medusa", {"target": target, "heads": heads})
    create("drafters", "medusa", {"target": target, "heads": heads, "rotation": "none"})


WRONG: dict[str, tuple[Any, str]] = {
    "a missing file": (None, "There is no file .* with the rotation of the target"),
    "another name": ({"q": torch.eye(2), "r": torch.eye(2)}, "holds no tensor global_rotation"),
    "no square": ({"global_rotation": torch.ones(2, 3)}, r"has the shape \(2, 3\)"),
    "no rotation": ({"global_rotation": torch.ones(256, 256)}, "is not orthogonal"),
    "whole numbers": ({"global_rotation": torch.ones(2, 2).long()}, "is int64; heads in float16"),
    "another width": ({"global_rotation": torch.eye(8)}, "is 8 wide, but its hidden states are 256 wide"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_files_of_a_rotation_are_refused(case: str, folder: Path, tmp_path: Path) -> None:
    content, sentence = WRONG[case]
    file = tmp_path / "rotation.safetensors"
    if content is not None:
        save_file(content, file)
    with pytest.raises(InvalidInput, match=sentence):
        drafted(folder, "eagle3", zoo.path("llama-7m-eagle3"), rotation=str(file))


def test_a_rotation_whose_matrix_is_in_no_file_is_refused(tmp_path: Path) -> None:
    """As compressed-tensors describes what SpinQuant merges into weights."""
    (tmp_path / "config.json").write_text(rotated().config.to_json_string())
    described = json.loads((tmp_path / "config.json").read_text())
    merged = {"type": "hadamard", "apply": [{"targets": ["re:.*embed_tokens$"], "location": "weight_output"}]}
    local = {"type": "hadamard", "apply": [{"targets": ["re:.*o_proj$"], "location": "weight_input"}]}
    for scheme, told in ((merged, True), (local, False)):
        transforms = {"transform_config": {"config_groups": {"R1": scheme}}}
        (tmp_path / "config.json").write_text(json.dumps({**described, "quantization_config": transforms}))
        if told:
            with pytest.raises(UnsupportedModel, match=r"are rotated \(transform 'R1'\), and no file of it"):
                rotation_in(tmp_path)
        else:
            assert rotation_in(tmp_path) is None


NAME = "org/rotated"


@pytest.mark.parametrize("there", ["all", "nothing", "unreachable"])
def test_a_rotation_is_fetched_beside_a_hub_name(
    there: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers fetches a model's own files, which the rotation's are none of."""
    cached = empty_hub(tmp_path / "hub", monkeypatch)(NAME)
    cached.mkdir(parents=True)
    shutil.copy(folder / "config.json", cached)
    asked: list[str] = []

    def fetched(repository: str, file: str, *, revision: str) -> str:
        assert (repository, revision) == (NAME, COMMIT)
        asked.append(file)
        if there == "unreachable":
            raise ConnectionError("no network")
        if there == "nothing":
            raise huggingface_hub.errors.EntryNotFoundError("404")
        (cached / file).parent.mkdir(exist_ok=True)
        return str(shutil.copy(folder / file, cached / file))

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fetched)
    model = rotated()
    model.config._name_or_path = NAME
    head = load_head(zoo.path("llama-7m-eagle3"))
    undo_rotation(head, load(model))
    if there == "all":
        assert head.rotation is not None
        assert torch.equal(head.rotation.matrix, matrix())
        undo_rotation(head, load(model))  # they are here now
        assert asked == ["quant_model_description.json", "optional/quarot.safetensors"]
    else:
        assert head.rotation is None
        assert asked == ["quant_model_description.json"]


def verdict(folder: Path, target: Any) -> Any:
    tokenizer, model = zoo.tokenizer(), target.model
    prompts = [text for group in PROMPTS.values() for text in group][:5]
    ids = [torch.tensor([tokenizer(text)["input_ids"][:48]]) for text in prompts]
    texts = [continued(model, prompt, new_tokens=24, temperature=0.0, seed=0) for prompt in ids]
    head, floors = load_for(folder, target), floors_of(texts)
    added = added_by_parts(model, head, texts, depths=2)
    return verdict_of(model, head, texts, compared(model, head, texts, depths=2), floors, added)


def test_a_check_tells_of_a_rotation(folder: Path, silent: Path, tmp_path: Path) -> None:
    told = load(folder)
    own = changed("llama-7m-eagle3", tmp_path / "own", own_words)
    assert not (found := verdict(own, told)).broken, found.sentence
    broken = verdict(own, load(silent))
    assert re.search("states rotated as its words are.* give it as -o rotation=FILE", broken.sentence)
    newer = changed("llama-7m-eagle3", tmp_path / "newer", trained_later)
    assert re.search("rotation not undone.* give -o rotation=none", verdict(newer, told).sentence)
