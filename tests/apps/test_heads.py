"""Heads on the command line: trained, named as drafters, checked and converted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import SamplingParams, SpeculativeDecoder, create, zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.train import command, kinds
from draftwood.apps.train.contest import contest
from draftwood.apps.train.report import contest_line
from draftwood.strategies.blocks.files import load_block
from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.heads.eagle3 import trained_head
from draftwood.zoo.heads.loops import loop_start

SMALL = ("--tokens", 4_000, "--new-tokens", 8, "--longest", 56, "--steps", 4, "--batch", 200)
HEAD = ("--taps", "0,1,1", "--depths", 2, "--intermediate", 8, "--draft-vocabulary", 40)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "letters.txt"
    file.write_text("".join(f"The King said {i} to him, and went home.\n" for i in range(200)))
    return file


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("draftwood.zoo.distil.rows.SHARD_TOKENS", 1000)
    monkeypatch.setattr(command, "SHARD_TOKENS", 1000)


@pytest.fixture
def target(tiny: Any) -> Path:
    return tiny("big", num_hidden_layers=2)


def test_a_trained_head_contests_generate_on_what_does_not_loop() -> None:
    """The tokens of a round equal a decoder's that is called directly; a row that loops is left out."""
    loaded = models.load(
        "llama-7m", None, tokenizer=None, dtype=models.Dtype.float32, device="cpu", trust_remote_code=False
    )
    model: Any = loaded.target.model
    texts = ("Question: There are 30 students in a class. 40% of them are boys.", "It was a cold morning in")
    prompts = [loaded.tokenizer(text)["input_ids"][:6] for text in texts]
    rows = model.generate(
        torch.tensor(prompts),
        max_new_tokens=20,
        do_sample=False,
        pad_token_id=0,
        attention_mask=torch.ones(2, 6),
    )
    looping = torch.full((1, rows.shape[1]), 7)
    tests = [Rows(rows, 6, 0.0), Rows(looping, 6, 0.0), Rows(rows, 6, 1.0)]
    found = contest(loaded, zoo.path("llama-7m-eagle3"), tests)
    assert found is not None
    assert found["prompts"] == 2
    assert found["speed_up"] > 0
    decoder = SpeculativeDecoder(
        loaded.target,
        create("drafters", "eagle3", {"target": loaded.target, "head": zoo.path("llama-7m-eagle3")}),
        create("policies", "layered-dyspec", {"budget": 16, "law": "top-k"}),
        create("verifiers", "greedy"),
    )
    rounds = given = 0
    for prompt, row in zip(prompts, rows.tolist(), strict=True):
        length = loop_start(row) - 6
        written: Any = decoder.generate(
            [prompt],
            max_new_tokens=length,
            sampling=SamplingParams(temperature=0),
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        rounds += written.statistics.target_calls
        given += length - int(written.statistics.sums["prefill_tokens"])
    assert found["tokens_per_round"] == pytest.approx(given / rounds)
    assert contest(loaded, zoo.path("llama-7m-eagle3"), tests[1:]) is None


def test_a_head_is_trained_reported_used_and_checked(draftwood, monkeypatch, target, text, tmp_path):
    def call(out: Path) -> Any:
        return draftwood("train", "eagle3", target, text, out, "--rows", tmp_path / "rows", *SMALL, *HEAD)

    head = tmp_path / "head"
    result = call(head)
    assert result.exit_code == 0, result.output
    report = json.loads((head / "training.json").read_text())
    assert [(one["temperature"], one["prompt"]) for one in report["agreement"]] == [
        (0, 32),
        (0.6, 32),
        (1, 32),
    ]
    for one in report["agreement"]:
        assert all(f"{share:.3f}" in result.stdout for share in one["by_depth"])
    assert report["recipe"]["depths"] == 2
    assert contest_line(report["contest"]) in " ".join(result.stdout.split())
    weights = load_file(head / "model.safetensors")
    assert weights["lm_head.weight"].shape == (40, 16)
    assert weights["fc.weight"].dtype == torch.bfloat16
    assert call(head).stdout == result.stdout

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for state in trained_head(*arguments, **options):
            yield state
            if state.step == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kinds, "trained_head", interrupted)
        stopped = call(tmp_path / "broken")
    assert stopped.exit_code == 130
    assert "continues from the files in" in stopped.stderr
    assert not (tmp_path / "broken" / "model.safetensors").exists()
    assert call(tmp_path / "broken").exit_code == 0
    mended = load_file(tmp_path / "broken" / "model.safetensors")
    assert all(torch.equal(weight, mended[name]) for name, weight in weights.items())

    prompt = ("--prompt", "The King said", "--max-new-tokens", 6, "--target", target)
    plain = draftwood("generate", *prompt)
    assert plain.exit_code == 0, plain.output
    copying = "lookup-first", "-o", f"drafter={head}", "-o", "least=2"
    for drafter in ((head,), ("eagle3", "-o", f"head={head}"), (head, "-o", "taps=0,1,1"), copying):
        drafted = draftwood("generate", *prompt, "--drafter", *drafter)
        assert drafted.stdout == plain.stdout, drafted.output
    several = draftwood(
        *("generate", *prompt, "--drafter", "several", "-o", f"members={head},prompt-lookup"),
        *("--policy", "fixed-tree", "-o", "law=per-drafter", "-o", "depth=2", "-o", "branching=2"),
        *("--verifier", "recursive-rejection"),
    )
    assert several.stdout == plain.stdout, several.output

    checked = draftwood("check-head", target, head, "--prompts", 4, "--tokens", 12, "--depths", 2)
    assert checked.exit_code in (0, 1), checked.output
    assert "as configured" in checked.stdout
    assert "norm_before_residual true" in checked.stdout
    assert "It was made for 40 tokens" in " ".join(checked.stdout.split())


@pytest.mark.parametrize("rank", [0, 4])
def test_a_block_drafter_is_trained_reported_and_used(draftwood, refused, target, text, tmp_path, rank):
    def call(out: Path, *more: Any) -> Any:
        return draftwood("train", "block", target, text, out, "--rows", tmp_path / "rows", *SMALL, *more)

    block = ("--taps", "1", "--depths", 3, "--intermediate", 8, "--markov-rank", rank, "--layers", 2)
    head = tmp_path / "head"
    result = call(head, *block)
    assert result.exit_code == 0, result.output
    report = json.loads((head / "training.json").read_text())
    assert [len(one["by_depth"]) for one in report["agreement"]] == [3, 3, 3]
    for one in report["agreement"]:
        assert all(f"{share:.3f}" in result.stdout for share in one["by_depth"])
    weights = load_file(head / "model.safetensors")
    assert ("markov_head.markov_w1.weight" in weights) == (rank > 0)
    assert {tensor.dtype for tensor in weights.values()} == {torch.bfloat16}
    assert load_block(head).config.depths == 3
    assert call(head, *block).stdout == result.stdout

    prompt = ("--prompt", "The King said", "--max-new-tokens", 6, "--target", target)
    plain = draftwood("generate", *prompt)
    drafted = draftwood("generate", *prompt, "--drafter", head)
    assert drafted.stdout == plain.stdout, drafted.output
    assert drafters.drafter_of(str(head)) == ("block-heads", {"head": str(head)})
    checked = draftwood("check-head", target, head, "--prompts", 4, "--tokens", 12, "--depths", 2)
    assert checked.exit_code in (0, 1), checked.output
    for words in ("as configured", "causal true", "the root's slot guesses", "taps one layer lower (0)"):
        assert words in checked.stdout
    assert "can name 1 to 1 of this target" in refused(
        *("train", "block", target, text, tmp_path / "out", *SMALL, "--taps", "0")
    )
    assert "--draft-vocabulary is 9, but it is an option for eagle3, not for block" in refused(
        *("train", "block", target, text, tmp_path / "out", *SMALL, "--draft-vocabulary", 9)
    )
    assert "--layers is 2, but it is an option for block, not for eagle3" in refused(
        *("train", "eagle3", target, text, tmp_path / "out", *SMALL, "--layers", 2)
    )


def test_an_mtp_layer_is_trained_used_and_checked(draftwood, refused, target, text, tmp_path, monkeypatch):
    layer, call = tmp_path / "layer", ("train", "mtp", target, text)
    sizes = (*SMALL, "--rows", tmp_path / "rows", "--depths", 2, "--intermediate", 12)
    result = draftwood(*call, layer, *sizes)
    assert result.exit_code == 0, result.output
    weights = load_file(layer / "model.safetensors")
    assert weights["mtp.layers.0.eh_proj.weight"].shape == (16, 32)
    assert weights["mtp.layers.1.mixer.up_proj.weight"].shape == (12, 16)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    report = json.loads((layer / "training.json").read_text())
    assert [len(one["by_depth"]) for one in report["agreement"]] == [4, 4, 4]

    def interrupted(*arguments: Any, **options: Any) -> Any:
        for state in trained_head(*arguments, **options):
            yield state
            if state.step == 3:
                raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(kinds, "trained_head", interrupted)
        assert draftwood(*call, tmp_path / "broken", *sizes).exit_code == 130
    assert draftwood(*call, tmp_path / "broken", *sizes).exit_code == 0
    mended = load_file(tmp_path / "broken" / "model.safetensors")
    assert all(torch.equal(weight, mended[name]) for name, weight in weights.items())

    prompt = ("--prompt", "The King said", "--max-new-tokens", 6, "--target", target)
    plain = draftwood("generate", *prompt)
    for drafter in ((layer,), ("mtp", "-o", f"head={layer}")):
        drafted = draftwood("generate", *prompt, "--drafter", *drafter)
        assert drafted.stdout == plain.stdout, drafted.output
    checked = draftwood("check-head", target, layer, "--prompts", 4, "--tokens", 12, "--depths", 2)
    assert checked.exit_code in (0, 1), checked.output
    assert "embedding and state exchanged" in checked.stdout
    assert "model_type is 'llama'" in refused("generate", *prompt[:4], "--target", target, "--drafter", "mtp")
    for option, value in (("--draft-vocabulary", 9), ("--layers", 2)):
        said = refused(*call, tmp_path / "other", option, value)
        assert f"{option} is {value}, but it is an option for" in said
        assert ", not for mtp" in said


def test_a_head_is_refused_in_a_sentence(refused, target, text, tmp_path):
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"draft_vocab_size": 7}))
    call = ("generate", "--prompt", "Hi", "--target", target)
    assert "no model.safetensors" in refused(*call, "--drafter", folder)
    save_file({"fc.weight": torch.ones(2, 2)}, folder / "model.safetensors")
    assert "hidden_size is None" in refused(*call, "--drafter", folder)
    assert "no config.json" in refused("check-head", target, tmp_path)
    train = ("train", "eagle3", target, text, tmp_path / "out", *SMALL)
    assert "taps the layers -1, 1, 2 of its target" in refused(*train)
    assert "taps is 'two'; give layers separated by commas" in refused(*train, "--taps", "two")
    assert "of its target, as inputs counted from 0, but this target has 2, 0 to 2" in refused(
        *train, "--taps", "0,1,3"
    )


def test_a_pickle_is_converted(draftwood, refused, target, tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (old / "config.json").write_text(json.dumps({"draft_vocab_size": 7}))
    torch.save({"fc.weight": torch.ones(2, 2)}, old / "pytorch_model.bin")
    call = ("generate", "--prompt", "Hi", "--target", target, "--drafter")
    assert f"`draftwood convert-head {old} OUT`" in refused(*call, old)
    result = draftwood("convert-head", old, new)
    assert result.exit_code == 0, result.output
    assert "1 tensors of" in result.stderr
    assert "without running code" in result.stderr
    assert "does not look like" not in result.stderr
    assert torch.equal(load_file(new / "model.safetensors")["fc.weight"], torch.ones(2, 2))
    assert "holds something" in refused("convert-head", old, new)
    assert "there is nothing to convert; use it as it is" in refused("convert-head", new, tmp_path / "more")
    # A head and its target in each other's places.
    assert f"draftwood check-head {target} {new}" in refused("check-head", new, target)
    assert "reads, and no language model; name its target" in refused(*call[:4], new, "--drafter", new)


def test_a_folder_with_a_model_is_a_model(tiny):
    assert drafters.drafter_of(str(tiny())) is None
    assert drafters.drafter_of("llama-draft") is None
    assert drafters.drafter_of("prompt-lookup") == ("prompt-lookup", {})
    assert drafters.drafter_of("eagle3") == ("eagle3", {})


def test_the_zoos_heads_are_named_like_models():
    for head, drafter in (("llama-7m-eagle3", "eagle3"), ("llama-7m-dspark", "block-heads")):
        name, options = drafters.drafter_of(head) or ("", {})
        assert name == drafter
        assert Path(options["head"]) == zoo.path(head)
