"""Training Medusa heads: the loss, the held-out accuracy, the command."""

from __future__ import annotations

import copy
import gzip
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from typer.testing import CliRunner

from draftwood import SpeculativeDecoder
from draftwood.backends.loading.loader import load
from draftwood.base.errors import InvalidInput
from draftwood.strategies.drafters.medusa import MedusaHeads, load_heads
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.zoo.distil.rows import RowPlan, Rows, written
from draftwood.zoo.medusa import MedusaOptions, heads_loss, new_heads, states, top1, train_heads
from draftwood.zoo.train import application


def tiny(vocab: int = 23) -> Any:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=vocab,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=0,
    )
    model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0.0, 0.3)
        model.model.embed_tokens.weight.normal_()
    return model


@pytest.fixture(scope="module")
def target() -> Any:
    return tiny()


@pytest.fixture(scope="module")
def rows(target: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Rows]:
    """Three shards of the target's text, so that two are for training."""
    stream = torch.randint(1, 23, (4000,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)
    plan = RowPlan(shards=3, temperatures=(0.0,), prompts=(32, 96, 160), new_tokens=24)
    return list(written(target, {"text": stream}, tmp_path_factory.mktemp("rows"), plan=plan, shares={}))


@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_head_k_is_judged_by_the_token_k_plus_2_places_on(decay: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, 2, 9, 5, generator=generator, dtype=torch.float64)
    tokens = torch.randint(5, (2, 9), generator=generator)
    weights = torch.rand(2, 8, generator=generator, dtype=torch.float64)
    wanted = 0.0
    for k in range(3):
        loss = weight = 0.0
        for row in range(2):
            for place in range(9 - k - 2):
                following = place + k + 2
                # `weights[:, i]` is that of the prediction of token i + 1.
                w = float(weights[row, following - 1])
                loss -= w * float(logits[k, row, place].log_softmax(-1)[tokens[row, following]])
                weight += w
        wanted += decay**k * loss / weight
    assert float(heads_loss(logits, tokens, weights, decay=decay)) == pytest.approx(wanted)


def test_states_are_what_the_head_reads(target: Any) -> None:
    tokens = torch.randint(1, 23, (2, 7))
    read = states(target, tokens)
    assert torch.equal(read @ target.lm_head.weight.T, target(tokens).logits)
    assert not target.lm_head._forward_pre_hooks


def test_new_heads_begin_as_the_lm_head(target: Any) -> None:
    heads = new_heads(target, 2)
    hidden = torch.randn(3, 32)
    for logits in heads(hidden):
        torch.testing.assert_close(logits, hidden @ target.lm_head.weight.T)
    assert heads.output.data_ptr() != target.lm_head.weight.data_ptr()


def test_training_teaches_the_heads_and_not_the_target(target: Any, rows: list[Rows]) -> None:
    before = copy.deepcopy(target.state_dict())
    heads, record = train_heads(target, rows, options=MedusaOptions(heads=2, steps=60, learning_rate=1e-2))
    assert all(torch.equal(weight, before[name]) for name, weight in target.state_dict().items())
    assert all(weight.grad is None for weight in target.parameters())
    assert record["rows"] == sum(len(shard.tokens) for shard in rows[:2])
    assert record["top1"] == top1(target, heads, rows[-1])
    untrained = top1(target, new_heads(target, 2), rows[-1])
    # This target soon repeats every second token, which its LM head's copies guess for the second head.
    assert record["top1"][0] > 0.5 + untrained[0]
    assert record["top1"][1] > untrained[1]


def test_top1_counts_right_guesses_in_the_continuation(target: Any, rows: list[Rows]) -> None:
    heads = new_heads(target, 2)
    shard = attrs.evolve(rows[0], tokens=rows[0].tokens[:5])
    right, total = [0, 0], [0, 0]
    for row in shard.tokens:
        ends = (row[shard.prompt :] == 0).nonzero()
        stop = shard.prompt + int(ends[0]) + 1 if len(ends) else len(row)
        with torch.no_grad():
            guesses = heads(target.model(row[None]).last_hidden_state[0]).argmax(-1)
        for k in range(2):
            for place in range(shard.prompt, stop):
                right[k] += int(guesses[k, place - k - 2] == row[place])
                total[k] += 1
    found = top1(target, heads, shard)
    assert found == pytest.approx([r / t for r, t in zip(right, total, strict=True)])


def test_too_little_to_train_on(target: Any, rows: list[Rows]) -> None:
    with pytest.raises(InvalidInput, match=r"are 1 shards.*at least 2"):
        train_heads(target, rows[:1], options=MedusaOptions())
    with pytest.raises(InvalidInput, match="heads is 0"):
        train_heads(target, rows, options=MedusaOptions(heads=0))


def test_the_command_writes_what_the_drafter_takes(tmp_path: Path) -> None:
    text, model, out = tmp_path / "text", tmp_path / "model", tmp_path / "out"
    text.mkdir()
    lines = "".join(f"The King said {i} to him, and went home.\n" for i in range(400))
    (text / "code.txt.gz").write_bytes(gzip.compress(lines.encode()))
    tiny(4096).save_pretrained(model)
    command = ["medusa", str(model), str(text), str(out), "--tokens", "20000", "--new-tokens", "4"]
    result = CliRunner().invoke(application(), [*command, "--steps", "2", "--heads", "2"])
    assert result.exit_code == 0, result.output
    record = json.loads((out / "training.json").read_text())
    assert record["steps"] == 2
    assert len(record["top1"]) == 2
    assert load_heads(out).output.dtype == torch.bfloat16
    target = load(tiny(4096))
    decoder = SpeculativeDecoder(target, MedusaHeads(target, out), Chain(2, "top-k"), Greedy())
    plain = tiny(4096).generate(torch.tensor([[5, 6, 7]]), max_new_tokens=8, do_sample=False)
    found: Any = decoder.generate([[5, 6, 7]], max_new_tokens=8)
    assert found.tolist() == plain.tolist()
