"""The pieces of the recipes, on real models and a little text."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.errors import InvalidInput
from draftwood.zoo.distil import (
    Recipe,
    agreement,
    continuations,
    distillation_loss,
    position_weights,
    write_rows,
)
from draftwood.zoo.pretrain import rate
from draftwood.zoo.text import documents, text_files, token_stream, windows
from draftwood.zoo.train import application

DOCUMENTS = [
    "".join(f"The King said {i} to him, and went home.\n" for i in range(60)),
    "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    joined = "".join(f"{document}\n<|endoftext|>\n" for document in DOCUMENTS)
    (tmp_path / "code.txt.gz").write_bytes(gzip.compress(joined.encode()))
    return tmp_path


def test_text(folder: Path) -> None:
    (file,) = text_files(folder)
    assert documents(file) == DOCUMENTS
    shared = zoo.tokenizer()
    stream = token_stream(shared, file)
    assert int((stream == shared.eos_token_id).sum()) == len(DOCUMENTS)
    drawn = windows(stream, rows=5, length=7, generator=torch.Generator().manual_seed(0))
    contiguous = {tuple(row) for row in stream.unfold(0, 7, 1).tolist()}
    assert all(tuple(row) in contiguous for row in drawn.tolist())
    with pytest.raises(InvalidInput, match=r"windows of 100000 were asked for"):
        windows(stream, rows=1, length=100_000, generator=torch.Generator())


@torch.inference_mode()
def test_greedy_continuations_are_those_of_plain_passes(target: Any, text: torch.Tensor) -> None:
    prompts = torch.cat([text[:, :20], text[:, 20:40], text[:, 10:30]])
    mixed = continuations(
        target,
        prompts,
        new_tokens=10,
        temperature=torch.tensor([0.0, 1.0, 0.0]),
        generator=torch.Generator().manual_seed(0),
    )
    assert mixed.shape == (3, 30)
    for row in (0, 2):
        for place in range(20, 30):
            scores = target(mixed[row : row + 1, :place]).logits[0, -1]
            assert int(scores.argmax()) == int(mixed[row, place])


def test_positions_after_the_end_of_text_weigh_nothing() -> None:
    #                        prompt | continuation
    tokens = torch.tensor([[0, 5, 0, 6, 7, 0, 8, 0], [5, 5, 5, 0, 9, 9, 9, 9]])
    weights = position_weights(tokens, prompt=3, end=0, real=0.25)
    assert weights.tolist() == [
        [0.25, 0.25, 1, 1, 1, 0, 0],
        [0.25, 0.25, 1, 0, 0, 0, 0],
    ]


@pytest.mark.parametrize("seed", range(4))
def test_loss_is_least_at_the_target(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(2, 5, 11, generator=generator)
    weights = torch.rand(2, 5, generator=generator)
    soft = distillation_loss(target, target, weights, hard=0.0)
    torch.testing.assert_close(soft, torch.zeros(()), atol=1e-6, rtol=0)
    other = target + torch.randn(2, 5, 11, generator=generator)
    assert distillation_loss(other, target, weights, hard=0.0) > 1e-3
    sharper = target.scatter_add(-1, target.argmax(-1, keepdim=True), torch.full((2, 5, 1), 30.0))
    assert distillation_loss(sharper, target, weights, hard=1.0) < 1e-5


def test_agreement_of_a_model_with_itself_is_whole(draft: Any, text: torch.Tensor) -> None:
    whole = agreement(draft, draft, [text[0, :20], text[0, :30]], new_tokens=15)
    assert (whole.top1, whole.top4) == (1.0, 1.0)
    assert whole.chain4 == 5.0


def test_the_installed_draft_agrees_with_its_target(target: Any, draft: Any) -> None:
    prompts = ["Question: Ann has 5 cats and 2 dogs. How many pets has she?\nAnswer:", "def add("]
    rows = [torch.tensor(row) for row in zoo.tokenizer()(prompts)["input_ids"]]
    found = agreement(target, draft, rows, new_tokens=40)
    assert found.top1 > 0.4
    assert found.top4 > 0.6


def test_written_rows_are_kept(draft: Any, folder: Path) -> None:
    stream = token_stream(zoo.tokenizer(), folder / "code.txt.gz")
    recipe = Recipe(rows=200, new_tokens=3, seed=1)
    rows = folder / "rows"
    write_rows(draft, [stream], rows, recipe=recipe, shares=[1.0])
    files = sorted(rows.iterdir())
    assert len(files) == 2
    shard = torch.load(files[0])
    assert shard["tokens"].shape == (128, shard["prompt"] + 3)
    written = files[0].read_bytes()
    files[1].unlink()
    files[0].write_bytes(written[:10])
    write_rows(draft, [stream], rows, recipe=recipe, shares=[1.0])
    assert files[0].read_bytes() == written[:10]
    assert files[1].exists()


def test_learning_rate() -> None:
    rates = [rate(step, steps=1000, peak=1.0) for step in range(1000)]
    assert rates[0] < 0.02
    assert rates[300] == 1.0
    assert rates[999] < 0.01


def test_command_line_distils_and_pretrains(folder: Path) -> None:
    run = CliRunner().invoke
    out = folder / "draft"
    options = ["--rows", "128", "--new-tokens", "4", "--steps", "2", "--layers", "2"]
    names = ["llama-draft", "llama-draft", str(folder), str(out)]
    result = run(application(), ["distil", *names, *options])
    assert result.exit_code == 0, result.output
    record = json.loads((out / "training.json").read_text())
    assert record["distilled_from"] == "llama-draft"
    assert record["steps"] == 2
    assert (out / "model.safetensors").exists()
    assert json.loads((out / "config.json").read_text())["dtype"] == "bfloat16"

    fresh = folder / "fresh"
    names = ["llama-draft", str(folder), str(fresh)]
    result = run(application(), ["pretrain", *names, "--steps", "2", "--length", "8"])
    assert result.exit_code == 0, result.output
    assert json.loads((fresh / "training.json").read_text())["steps"] == 2
