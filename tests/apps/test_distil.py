"""`draftwood distil` on tiny models: a report, a run that goes on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood.apps.distil import command, target_text
from draftwood.zoo.distil.training import trained

SMALL = ("--tokens", 16_384, "--new-tokens", 8, "--longest", 56, "--steps", 6, "--batch", 300)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "letters.txt"
    file.write_text("".join(f"The King said {i} to him, and went home.\n" for i in range(200)))
    return file


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.zoo.distil.rows.SHARD_TOKENS", 2000)


@pytest.fixture
def pair(tiny: Any) -> tuple[Path, Path]:
    """A target with opinions, and a draft."""
    from transformers import LlamaForCausalLM

    large, small = tiny("large", hidden_size=32), tiny("small")
    model = LlamaForCausalLM.from_pretrained(large)
    with torch.no_grad():
        model.lm_head.weight.mul_(60)
        model.lm_head.weight[100:] = 0
    model.save_pretrained(large)
    return large, small


def weights(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model.safetensors")


def same(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return all(torch.equal(weight, second[name]) for name, weight in first.items())


def test_a_draft_learns_and_is_reported(draftwood, pair, text, tmp_path):
    large, small = pair
    out, fast = tmp_path / "out", ("--steps", 60, "--learning-rate", 0.01)
    result = draftwood("distil", large, small, text, "-o", out, *SMALL, *fast)
    assert result.exit_code == 0, result.output
    report = json.loads((out / "training.json").read_text())
    assert [(one["temperature"], one["prompt"]) for one in report["after"]] == [(0, 32), (0.6, 32), (1, 32)]
    for before, after in zip(report["before"], report["after"], strict=True):
        assert after["overlap"] > before["overlap"] + 0.02, (before, after)
        assert f"{before['overlap']:.3f} -> {after['overlap']:.3f}" in result.stdout
        assert f"{before['chain']:.2f} -> {after['chain']:.2f}" in result.stdout
    assert report["recipe"]["learning_rate"] == 0.01
    assert "training: 60 of 60, loss " in result.stderr
    assert not same(out, small)
    written = draftwood(
        *("generate", "--target", large, "--drafter", out, "--prompt", "The King", "--max-new-tokens", 4)
    )
    assert written.exit_code == 0, written.output
    again = draftwood("distil", large, small, text, "-o", out, *SMALL, *fast)
    assert again.stdout == result.stdout
    assert "is finished" in again.stderr


def test_a_run_that_was_broken_off_goes_on_to_the_same_draft(draftwood, monkeypatch, pair, text, tmp_path):
    def call(out: Path) -> Any:
        return draftwood("distil", *pair, text, "-o", out, "--rows", tmp_path / "rows", *SMALL)

    assert call(tmp_path / "whole").exit_code == 0
    shards = {file: file.stat().st_mtime_ns for file in (tmp_path / "rows").rglob("*.pt")}

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for state in trained(*arguments, **options):
            yield state
            if state.step == 4:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(command, "trained", interrupted)
        stopped = call(tmp_path / "broken")
    assert stopped.exit_code == 130
    assert "continues from the files in" in stopped.stderr
    assert not (tmp_path / "broken" / "model.safetensors").exists()
    steps: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        for state in trained(*arguments, **options):
            steps.append(state.step)
            yield state

    monkeypatch.setattr(command, "trained", counted)
    assert call(tmp_path / "broken").exit_code == 0
    assert steps == [4, 5, 6]
    assert same(tmp_path / "whole", tmp_path / "broken")
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "rows").rglob("*.pt")} == shards


@pytest.mark.parametrize(
    ("longest", "prompts"), [(200, (32,)), (300, (32, 96, 160)), (1500, (32, 1000, 96, 1372, 160))]
)
def test_lengths_of_prompts(longest, prompts):
    assert target_text.prompt_lengths(longest, 128, 2048) == prompts


@pytest.mark.parametrize(
    ("served", "turns"),
    [((0, 0.6, 1), (0, 0.6, 0, 1)), ((1, 0.6), (0.6, 1)), ((0,), (0,)), ((0.7, 0, 0.7), (0, 0.7))],
)
def test_temperatures_of_rows(served, turns):
    assert command._turns(served) == turns


def test_a_draft_for_sampling_alone(draftwood, pair, text, tmp_path):
    chosen = ("--temperature", 0.6, "--temperature", 1)
    result = draftwood("distil", *pair, text, "-o", tmp_path / "out", *SMALL, *chosen)
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out/training.json").read_text())
    assert {one["temperature"] for one in report["after"]} == {0.6, 1}
    assert report["recipe"]["temperatures"] == [0.6, 1]


def test_the_longest_rows_are_those_that_the_models_can():
    assert max(target_text.prompt_lengths(None, 128, 1024)) == 1024 - 128
    assert max(target_text.prompt_lengths(None, 128, None)) == 1500 - 128


def test_a_draft_keeps_its_precision(draftwood, pair, text, tmp_path):
    from transformers import LlamaForCausalLM

    large, small = pair
    LlamaForCausalLM.from_pretrained(small, dtype=torch.bfloat16).save_pretrained(small)
    assert draftwood("distil", large, small, text, "-o", tmp_path / "out", *SMALL).exit_code == 0
    assert {weight.dtype for weight in weights(tmp_path / "out").values()} == {torch.bfloat16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


class TestRefused:
    def test_another_tokenizer(self, refused, tiny, text, tmp_path):
        large, small = tiny("large", hidden_size=32), tiny("small")
        file = small / "tokenizer.json"
        content = json.loads(file.read_text())
        vocab = content["model"]["vocab"]
        first, second = list(vocab)[300:302]
        vocab[first], vocab[second] = vocab[second], vocab[first]
        file.write_text(json.dumps(content))
        sentence = refused("distil", large, small, text, "-o", tmp_path / "out")
        assert "tokenizers of target and draft differ in 2 tokens" in sentence
        assert (
            "a draft that is distilled must share the target's tokenizer, so give one that does" in sentence
        )
        assert not (tmp_path / "out").exists()

    def test_a_draft_larger_than_the_target(self, refused, pair, text, tmp_path):
        large, small = pair
        sentence = refused("distil", small, large, text, "-o", tmp_path / "out")
        assert "give the larger model first" in sentence
        assert not (tmp_path / "out").exists()

    def test_too_little_text(self, refused, pair, tmp_path):
        for content, reason in (("", "holds no text; give"), ("A word.", "1 that are held out")):
            (tmp_path / "few.txt").write_text(content)
            sentence = refused("distil", *pair, tmp_path / "few.txt", "-o", tmp_path / "out", *SMALL)
            assert reason in sentence

    def test_texts_that_are_none(self, refused, pair, text, tmp_path):
        (tmp_path / "empty").mkdir()
        where = ("-o", tmp_path / "out")
        assert "holds no .txt" in refused("distil", *pair, tmp_path / "empty", *where)
        assert "does not exist" in refused("distil", *pair, tmp_path / "none.txt", *where)
        assert "given twice" in refused("distil", *pair, text, text, *where)
        (tmp_path / "picture.png").write_bytes(b"\x89PNG")
        assert "none of .txt" in refused("distil", *pair, tmp_path / "picture.png", *where)

    def test_a_temperature_without_end(self, refused, pair, text, tmp_path):
        message = refused("distil", *pair, text, "-o", tmp_path / "out", "--temperature", "inf")
        assert "temperature is inf" in message

    def test_lengths_that_do_not_fit(self, refused, pair, text, tmp_path):
        where = ("-o", tmp_path / "out")
        assert "made for 64 tokens" in refused("distil", *pair, text, *where, "--longest", 65)
        assert "no room for a prompt of 32" in refused("distil", *pair, text, *where)

    def test_a_folder_of_another_run(self, refused, draftwood, pair, text, tmp_path):
        out, rows = tmp_path / "out", tmp_path / "rows"
        call = ("distil", *pair, text, "-o", out, "--rows", rows, *SMALL)
        assert draftwood(*call).exit_code == 0
        assert "recipe.steps was 6 and is 7" in refused(*call, "--steps", 7)
        other = ("distil", *pair, text, "--rows", rows, *SMALL)
        assert "rows.seed was 0 and is 1" in refused(*other, "-o", tmp_path / "other", "--seed", 1)
        text.write_text(text.read_text() + "And more.\n")
        assert f"texts.{text}.letters.txt was" in refused(*call)
        taken = tmp_path / "taken"
        taken.mkdir()
        (taken / "letter.txt").write_text("Dear Sir")
        assert "holds other files" in refused(*other, "-o", taken)
        assert [file.name for file in taken.iterdir()] == ["letter.txt"]

    def test_a_run_file_that_is_none(self, refused, pair, text, tmp_path):
        out = tmp_path / "out"
        out.mkdir()
        version = '{"format": "draftwood-distil", "version": %d}\n'
        for content, reason in (
            ("{", "is no file of draftwood distil or train and is left as it is"),
            ("[]\n", "is no file of draftwood distil or train and is left as it is"),
            (version % 99, "is of version 99, which"),
            (version % 1, "is of version 1, which does not say what weights it is made of"),
            (version % 2, "is damaged: its first line has no configuration"),
        ):
            (out / "run.json").write_text(content)
            assert f"run.json' {reason}" in refused("distil", *pair, text, "-o", out, *SMALL)
            assert (out / "run.json").read_text() == content
