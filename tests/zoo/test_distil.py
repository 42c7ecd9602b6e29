"""The target's texts, the draft's training on them, and its measurement, on tiny models."""

from __future__ import annotations

import copy
import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from typer.testing import CliRunner

from draftwood import zoo
from draftwood.base.errors import InvalidInput
from draftwood.zoo.distil import losses
from draftwood.zoo.distil.fit import CHAIN, fit, round_starts
from draftwood.zoo.distil.losses import distances, distribution_loss, greedy_surprise
from draftwood.zoo.distil.rows import RowPlan, Rows, continued, ends_of_text, position_weights, written
from draftwood.zoo.distil.training import TrainingOptions, trained
from draftwood.zoo.pretrain import rate
from draftwood.zoo.text import documents, text_files, token_stream, windows
from draftwood.zoo.train import application

DOCUMENTS = [
    "".join(f"The King said {i} to him, and went home.\n" for i in range(60)),
    "".join(f"def f{i}(x):\n    return x + {i}\n" for i in range(60)),
]
VOCAB = 19


def tiny(seed: int, *, width: int = 16, end: int | None = None) -> Any:
    torch.manual_seed(seed)
    config = hf.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        intermediate_size=width,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=end,
    )
    model = hf.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight.normal_(0.0, 1.0)
        model.model.embed_tokens.weight.normal_()
    return model


@pytest.fixture(scope="module")
def large() -> Any:
    return tiny(0, width=32)


@pytest.fixture(scope="module")
def stream() -> torch.Tensor:
    return torch.randint(VOCAB, (3000,), generator=torch.Generator().manual_seed(1), dtype=torch.int32)


PLAN = RowPlan(shards=4, temperatures=(0.0, 0.6, 0.0, 1.0), prompts=(6,), new_tokens=18, seed=3)


@pytest.fixture(scope="module")
def shards(large: Any, stream: torch.Tensor, tmp_path_factory: pytest.TempPathFactory) -> list[Rows]:
    rows = written(large, {"text": stream}, tmp_path_factory.mktemp("rows"), plan=PLAN)
    return [attrs.evolve(shard, tokens=shard.tokens[:60]) for shard in rows]


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
    rows = continued(target, prompts, new_tokens=10, temperature=0.0, seed=0)
    assert (rows.tokens.shape, rows.prompt) == ((3, 30), 20)
    for row in rows.tokens:
        for place in range(20, 30):
            assert int(target(row[None, :place]).logits[0, -1].argmax()) == int(row[place])


@pytest.mark.parametrize("temperature", [0.6, 1.0])
def test_sampled_continuations_have_the_targets_law(large: Any, temperature: float) -> None:
    model = copy.deepcopy(large)
    model.generation_config = hf.GenerationConfig(top_k=1, temperature=3.0, repetition_penalty=2.0)
    prompts = torch.tensor([[3, 1, 4, 1, 5]]).expand(20_000, -1)
    state = torch.get_rng_state()
    rows = continued(model, prompts, new_tokens=1, temperature=temperature, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.generation_config.top_k == 1
    counted = rows.tokens[:, -1].bincount(minlength=VOCAB) / len(prompts)
    with torch.no_grad():
        law = (large(prompts[:1]).logits[0, -1] / temperature).softmax(-1)
    assert (counted - law).abs().max() < 4.5 * (law * (1 - law) / len(prompts)).sqrt().max()


def test_rows_that_end_are_filled_up() -> None:
    model = tiny(0)
    with torch.no_grad():
        model.lm_head.weight[7] = 0
        best = model(torch.tensor([[1, 2, 3]])).logits[0, -1].argmax()
    model.generation_config.eos_token_id = [int(best), 0]
    rows = continued(model, torch.tensor([[1, 2, 3]]), new_tokens=6, temperature=0.0, seed=0)
    assert rows.tokens.tolist() == [[1, 2, 3, *[int(best)] * 6]]
    assert ends_of_text(model) == (int(best), 0)


def test_positions_after_the_end_of_text_weigh_nothing() -> None:
    #                        prompt | continuation
    tokens = torch.tensor([[0, 5, 0, 6, 7, 0, 8, 0], [5, 5, 5, 2, 9, 9, 9, 9]])
    weights = position_weights(Rows(tokens, prompt=3, temperature=0.0), ends=(0, 2), real=0.25)
    assert weights.tolist() == [
        [0.25, 0.25, 1, 1, 1, 0, 0],
        [0.25, 0.25, 1, 0, 0, 0, 0],
    ]


def test_every_temperature_meets_every_prompt() -> None:
    plan = RowPlan(shards=12, temperatures=(0.0, 1.0), prompts=(10, 20, 1000))
    shapes = [plan.shape(index) for index in range(plan.shards)]
    assert {shape[1:] for shape in shapes} == {(p, t) for p in plan.prompts for t in plan.temperatures}
    for rows, prompt, _ in shapes:
        assert 15_000 < rows * (prompt + plan.new_tokens) <= 16_384


def test_written_rows_are_kept_and_missing_ones_are_the_same_again(
    large: Any, stream: torch.Tensor, tmp_path: Path
) -> None:
    def write() -> list[Rows]:
        return list(written(large, {"a": stream, "b": stream[:100]}, tmp_path, plan=PLAN, shares={"b": 0.0}))

    first = write()
    assert [rows.temperature for rows in first] == [0.0, 0.6, 0.0, 1.0]
    assert len({tuple(rows.tokens[0].tolist()) for rows in first}) == 4
    files = sorted(tmp_path.iterdir())
    bytes_before = files[0].read_bytes()
    files[2].unlink()
    (tmp_path / "00002.part").write_bytes(b"a shard that was broken off")
    again = write()
    assert files[0].read_bytes() == bytes_before
    assert all(torch.equal(one.tokens, other.tokens) for one, other in zip(first, again, strict=True))
    files[1].write_bytes(b"torn")
    with pytest.raises(InvalidInput, match=r"00001.pt' cannot be read; delete it"):
        write()


@pytest.mark.parametrize("temperature", [0.3, 1.0])
def test_distances_are_those_of_the_distributions(temperature: float) -> None:
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.randn(2, 3, 7, generator=generator) for _ in range(2))
    variation, divergence = distances(theirs, ours, temperature=temperature)
    for row in range(2):
        for place in range(3):
            p, q = ((logits[row, place] / temperature).softmax(0) for logits in (ours, theirs))
            assert float(variation[row, place]) == pytest.approx(float((p - q).abs().sum() / 2), abs=1e-6)
            assert float(divergence[row, place]) == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-5)
    assert all(float(one.abs().max()) < 1e-6 for one in distances(ours, ours, temperature=temperature))


def test_losses_of_distributions_and_of_the_greedy_token(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (torch.randn(2, 3, 7, generator=generator) for _ in range(2))
    theirs.requires_grad_()
    monkeypatch.setattr(losses, "_CPU_ENTRIES", 14)  # two positions at once
    found = distribution_loss(theirs, ours, temperatures=(0.5, 1.0), variation=3.0, divergence=0.25)
    both = [distances(theirs, ours, temperature=temperature) for temperature in (0.5, 1.0)]
    wanted = sum(3 * apart + 0.25 * nats for apart, nats in both) / 2
    torch.testing.assert_close(found, wanted)
    weights = torch.rand(2, 3, generator=generator)
    slopes = [torch.autograd.grad((weights * one).sum(), theirs)[0] for one in (found, wanted)]
    torch.testing.assert_close(*slopes)
    surprise = -theirs.log_softmax(-1).gather(-1, ours.argmax(-1, keepdim=True)).squeeze(-1)
    torch.testing.assert_close(greedy_surprise(theirs, ours), surprise)


def test_rounds_begin_behind_what_is_accepted() -> None:
    hits = torch.tensor([[1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 1.0]], dtype=torch.float64)
    # A chain of four: 1 1 x | 1 1 1 1 and the bonus token | x | x | 1
    assert round_starts(hits, length=4).tolist() == [[1, 0, 0, 1, 0, 0, 0, 0, 1, 1, 1]]


def test_rounds_of_a_constant_chance() -> None:
    chance = torch.full((1, 4000), 0.7, dtype=torch.float64)
    rounds = float(round_starts(chance, length=CHAIN).sum())
    assert 4000 / rounds == pytest.approx((1 - 0.7**5) / (1 - 0.7), rel=1e-3)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_model_follows_itself(large: Any, shards: list[Rows], temperature: float) -> None:
    found = fit(large, large, [shard for shard in shards if shard.temperature == temperature])
    assert found.overlap == pytest.approx(1.0)
    assert found.chain == pytest.approx(18 / 4)  # 18 tokens are four rounds of at most five
    assert all(one.accepted in (None, pytest.approx(1.0)) for one in found.calibration)
    assert sum(one.share for one in found.calibration) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@torch.no_grad()
def test_fit_is_what_a_walk_along_the_rows_gives(large: Any, shards: list[Rows], temperature: float) -> None:
    small = tiny(5)
    shard = next(shard for shard in shards if shard.temperature == temperature)
    rows = attrs.evolve(shard, tokens=shard.tokens[:3])
    overlaps, drawn, kept = [], [0.0] * 6, [0.0] * 6
    for row in rows.tokens:
        for place in range(rows.prompt, len(row)):
            ours, theirs = (model(row[None, :place]).logits[0, -1] for model in (large, small))
            if temperature == 0:
                q = theirs.softmax(-1)
                pairs = [(float(q.max()), 1.0, float(theirs.argmax() == ours.argmax()))]
            else:
                p, q = ((logits / temperature).softmax(-1) for logits in (ours, theirs))
                pairs = [(float(b), float(b), min(float(a), float(b))) for a, b in zip(p, q, strict=True)]
            overlaps.append(sum(accepted for *_, accepted in pairs))
            for sure, mass, accepted in pairs:
                which = next(i for i, edge in enumerate((0.1, 0.3, 0.5, 0.7, 0.9, 1.1)) if sure <= edge)
                drawn[which] += mass
                kept[which] += accepted
    found = fit(large, small, [rows])
    assert found.positions == len(overlaps)
    assert found.overlap == pytest.approx(sum(overlaps) / len(overlaps), abs=1e-5)
    for one, mass, hits in zip(found.calibration, drawn, kept, strict=True):
        assert one.share == pytest.approx(mass / sum(drawn), abs=1e-5)
        assert one.accepted == (pytest.approx(hits / mass, abs=1e-4) if mass else None)
    assert 1 < found.chain < 5


def test_rows_of_two_temperatures_are_not_measured_as_one(large: Any, shards: list[Rows]) -> None:
    with pytest.raises(InvalidInput, match=r"\[0.0, 0.6\]; give rows of one"):
        fit(large, large, shards[:2])
    with pytest.raises(InvalidInput, match="give rows of one"):
        fit(large, large, [])


RECIPE = TrainingOptions(steps=120, batch=400, learning_rate=2e-2, seed=4)


def test_training_makes_a_draft_follow(large: Any, shards: list[Rows], tmp_path: Path) -> None:
    before, small = copy.deepcopy(large.state_dict()), tiny(5)
    first = [fit(large, small, [shard]) for shard in shards]
    *_, last = trained(large, small, shards, options=RECIPE, checkpoint=tmp_path / "c.pt")
    assert (last.step, last.tokens) == (120, 120 * 16 * 24)
    assert not small.training
    for shard, earlier in zip(shards, first, strict=True):
        now = fit(large, small, [shard])
        assert now.overlap > earlier.overlap + 0.1
        assert now.chain > earlier.chain
    assert all(torch.equal(weight, before[name]) for name, weight in large.state_dict().items())


def test_a_run_that_was_broken_off_comes_to_the_same_weights(
    large: Any, shards: list[Rows], tmp_path: Path
) -> None:
    options = attrs.evolve(RECIPE, steps=12)
    whole, broken = tiny(5), tiny(5)
    *_, last = trained(large, whole, shards, options=options, checkpoint=tmp_path / "whole.pt")
    file = tmp_path / "broken.pt"
    # The step behind the checkpoint is lost.
    assert (
        len(list(islice(trained(large, broken, shards, options=options, checkpoint=file, every=5), 6))) == 6
    )
    again = tiny(6)  # all that counts is in the checkpoint
    steps = list(trained(large, again, shards, options=options, checkpoint=file, every=5))
    assert [one.step for one in steps] == list(range(5, 13))
    assert steps[-1] == last
    weights = again.state_dict()
    assert all(torch.equal(weight, weights[name]) for name, weight in whole.state_dict().items())
    over = list(trained(large, tiny(7), shards, options=options, checkpoint=file))
    assert over == [last]


def test_what_training_refuses(large: Any, shards: list[Rows], tmp_path: Path) -> None:
    file = tmp_path / "c.pt"
    with pytest.raises(InvalidInput, match="no row to learn from"):
        next(trained(large, tiny(5), [], options=RECIPE, checkpoint=file))
    options = attrs.evolve(RECIPE, steps=1)
    list(trained(large, tiny(5), shards, options=options, checkpoint=file))
    with pytest.raises(InvalidInput, match=r"c.pt' is of another draft"):
        next(trained(large, tiny(5, width=8), shards, options=options, checkpoint=file))


def test_the_installed_draft_follows_its_target(target: Any, draft: Any) -> None:
    prompts = ["Question: Ann has 5 cats and 2 dogs. How many pets has she?\nAnswer:", "def add("]
    rows = [torch.tensor([row]) for row in zoo.tokenizer()(prompts)["input_ids"]]
    for temperature, least in ((0.0, 0.6), (1.0, 0.4)):
        texts = [continued(target, row, new_tokens=40, temperature=temperature, seed=0) for row in rows]
        assert fit(target, draft, texts).overlap > least


def test_learning_rate() -> None:
    rates = [rate(step, steps=1000, peak=1.0) for step in range(1000)]
    assert rates[0] < 0.02
    assert rates[300] == 1.0
    assert rates[999] < 0.01


def test_command_line_pretrains(folder: Path) -> None:
    fresh = folder / "fresh"
    names = ["llama-draft", str(folder), str(fresh)]
    result = CliRunner().invoke(application(), ["pretrain", *names, "--steps", "2", "--length", "8"])
    assert result.exit_code == 0, result.output
    assert json.loads((fresh / "training.json").read_text())["steps"] == 2
    assert json.loads((fresh / "config.json").read_text())["dtype"] == "bfloat16"
