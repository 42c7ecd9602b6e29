"""Texts over GGUF files: greedy ones are llama.cpp's own, sampled ones have the target's law."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from typer.testing import CliRunner

pytest.importorskip("llama_cpp", reason="the extra `gguf` brings it")
pytest.importorskip("gguf", reason="the extra `gguf` brings it")

from draftwood import InvalidInput, SamplingParams, SpeculativeDecoder, UnsupportedModel, create, load, zoo
from draftwood.apps.cli import app
from draftwood.backends import load_gguf
from draftwood.backends.gguf.backend import GgufBackend
from draftwood.backends.gguf.library import library
from draftwood.backends.gguf.tokenizer import read_tokenizer
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain, DySpec
from draftwood.verifiers import RecursiveRejection, Traversal
from tests.framework.enumerated import error, sequential_law, written_law
from tests.gguf_models.files import FORMATS, greedy, random_file, zoo_file

pytestmark = pytest.mark.gguf

RECIPES = {"opt-tree": {"budget": 8, "depth": 4}, "eagle2": {}, "leviathan": {}}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf")


def prompts() -> list[list[int]]:
    texts = ["Question: Nina reads 18 pages a day.", "def parse_date(text):\n", "It was"]
    return [zoo.tokenizer()(text)["input_ids"] for text in texts]


def written(target: Any, draft: Any, recipe: str, count: int) -> list[list[int]]:
    policy = create("recipes", recipe, RECIPES[recipe]).policy
    drafter = create("drafters", "model", {"backend": draft})
    decoder = SpeculativeDecoder(target, drafter, policy, create("verifiers", "greedy"))
    out: Any = decoder.generate(
        prompts(), max_new_tokens=count, eos_token_id=[], return_dict_in_generate=True
    )
    return out.tokens


@pytest.mark.parametrize("kind", FORMATS)
def test_greedy_texts_are_those_of_llama_cpp(folder: Path, kind: str) -> None:
    target = load(zoo_file(folder, kind))
    draft = load(zoo_file(folder, "F32", "llama-draft"))
    assert isinstance(target, GgufBackend)
    own = [greedy(target.model, prompt, 32) for prompt in prompts()]
    for recipe in RECIPES:
        for ours, (theirs, gaps) in zip(written(target, draft, recipe, 32), own, strict=True):
            pairs = enumerate(zip(ours, theirs, strict=True))
            other = next((place for place, (one, two) in pairs if one != two), None)
            # Rounding may decide between tokens that are nearly as likely.
            assert other is None or (kind != "F32" and gaps[other] < 0.25), (recipe, ours, theirs)


def test_targets_and_drafts_of_either_kind_write_the_same(folder: Path) -> None:
    names = ("llama-7m", "llama-draft")
    files = [load(zoo_file(folder, "F32", name)) for name in names]
    models = [load(zoo.path(name), dtype="float32") for name in names]
    texts = [
        written(target, draft, "opt-tree", 24)
        for target in (files[0], models[0])
        for draft in (files[1], models[1])
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.parametrize(("policy", "verifier"), [(Chain(2), RecursiveRejection()), (DySpec(3), Traversal())])
def test_sampled_texts_have_the_law_of_the_target(folder: Path, policy: Any, verifier: Any) -> None:
    """By enumeration of all that chance may decide."""
    target = load_gguf(random_file(folder / "four.gguf", vocab=4, seed=1), threads=1)
    draft = load_gguf(random_file(folder / "small.gguf", vocab=4, layers=1, seed=2), threads=1)
    decoder = SpeculativeDecoder(target, ModelDrafter(draft), policy, verifier)
    sampling = SamplingParams(temperature=1.3, top_k=3)
    law = written_law(decoder, tokens=2, sampling=sampling)
    expected = sequential_law(
        cast(Any, target).model,
        lambda _, logits: sampling.distribution(logits.double()),
        tokens=2,
    )
    assert len(expected) > 4
    assert error(law, expected) < 1e-5


def test_the_tokenizer_is_that_of_the_folder(folder: Path) -> None:
    ours, theirs = read_tokenizer(zoo_file(folder, "F32")), zoo.tokenizer()
    assert ours is not None
    assert ours.get_vocab() == theirs.get_vocab()
    assert (ours.eos_token_id, ours.pad_token_id) == (theirs.eos_token_id, theirs.pad_token_id)
    for text in ("Hello world", "", "naïve 東京 \U0001f600 x", "  two  spaces\n\tx", "<|endoftext|> a"):
        numbers = ours(text)["input_ids"]
        assert numbers == theirs(text)["input_ids"]
        assert ours.decode(numbers) == text
        plain = [one.decode(numbers, skip_special_tokens=True) for one in (ours, theirs)]
        assert plain[0] == plain[1]
    assert ours(["a b", "c"])["input_ids"] == theirs(["a b", "c"])["input_ids"]
    assert read_tokenizer(random_file(folder / "wordless.gguf")) is None


def test_a_backend_that_misreads_trees_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = random_file(folder / "wrong.gguf")
    extend = GgufBackend.extend
    monkeypatch.setattr(GgufBackend, "extend", lambda self, *args: extend(self, *args) * 1.01)
    with pytest.raises(
        UnsupportedModel, match="do not give what llama.cpp's own decoding gives: logits differ by"
    ):
        load(file)


def test_files_that_no_backend_runs(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = tmp_path / "cut.gguf"
    whole = zoo_file(folder, "F32", "llama-draft").read_bytes()
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UnsupportedModel, match="llama.cpp does not read"):
        load(cut)
    fine = random_file(folder / "fine.gguf")
    with pytest.raises(InvalidInput, match="device is 'cuda', and llama-cpp-python was built without a GPU"):
        load(fine, device="cuda")
    lib = library()
    for name, message in (
        ("llama_model_is_recurrent", "keeps recurrent states, of which llama.cpp shares none"),
        ("llama_model_is_hybrid", "keeps recurrent states"),
        ("llama_model_has_encoder", "is no decoder-only language model"),
        ("llama_model_is_diffusion", "is no decoder-only language model"),
    ):
        monkeypatch.setattr(lib, name, lambda _: True)
        with pytest.raises(UnsupportedModel, match=message):
            load(fine)
        monkeypatch.undo()


def test_heads_and_layers_left_out_are_refused(folder: Path) -> None:
    target = load(zoo_file(folder, "F32"))
    with pytest.raises(UnsupportedModel, match="gives no features: its feature_layers is 0"):
        target.keep_features([1])
    with pytest.raises(UnsupportedModel, match="cannot leave out layers"):
        target.without_layers([1])
    with torch.no_grad(), pytest.raises(UnsupportedModel, match="only reads tokens"):
        target.read_prompt(None)  # type: ignore[arg-type]


def test_a_file_that_changed_is_refused_at_the_next_call(tmp_path: Path) -> None:
    file = random_file(tmp_path / "changes.gguf")
    target = load(file)
    assert len(one_text(target)) == 4
    os.utime(file, ns=(1, 1))
    with pytest.raises(InvalidInput, match="was changed since it was loaded; load it again"):
        one_text(target)
    file.unlink()
    assert len(one_text(target)) == 4


def one_text(target: Any) -> list[int]:
    drafter = create("drafters", "prompt-lookup", {"vocab_size": target.vocab_size})
    decoder = SpeculativeDecoder(target, drafter, Chain(2), create("verifiers", "greedy"))
    out: Any = decoder.generate([[1, 2, 3]], max_new_tokens=4, eos_token_id=[], return_dict_in_generate=True)
    return out.tokens[0]


def run(*words: Any) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


def test_the_command_line_takes_files(folder: Path, tmp_path: Path) -> None:
    target, draft = zoo_file(folder, "Q4_0"), zoo_file(folder, "F32", "llama-draft")
    few = ["--prompt", "The elephant is", "--max-new-tokens", 8]
    texts = [run("generate", "--target", target, "--drafter", one, *few) for one in (draft, "llama-draft")]
    assert [one.exit_code for one in texts] == [0, 0], texts[0].output + texts[1].output
    assert texts[0].stdout == texts[1].stdout != ""
    words = [
        "--strategy",
        "dyspec",
        "--strategy",
        "generate",
        "--strategy",
        "generate-assisted",
        "--budget",
        4,
    ]
    words += ["--prompts", 1, "--new-tokens", 8, "--to", tmp_path / "bench"]
    result = run("bench", "--pair", f"{target},{draft}", *words)
    assert result.exit_code == 0, result.output
    assert "transformers does not run GgufBackend" in result.output


def test_drafts_of_other_words_propose_what_both_have(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    load(zoo.path("llama-draft"), dtype="float32").model.save_pretrained(other)
    words = json.loads((zoo.path("tokenizer") / "tokenizer.json").read_text(encoding="utf-8"))
    vocabulary = words["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    zoo.tokenizer().save_pretrained(other)
    (other / "tokenizer.json").write_text(json.dumps(words), encoding="utf-8")
    few = ["--target", zoo_file(folder, "F32"), "--prompt", "The elephant is", "--max-new-tokens", 8]
    results = [run("generate", *few, "--drafter", drafter) for drafter in (other, "prompt-lookup")]
    assert [one.exit_code for one in results] == [0, 0], results[0].output
    assert results[0].stdout == results[1].stdout
    assert "tokens" in results[0].stderr
