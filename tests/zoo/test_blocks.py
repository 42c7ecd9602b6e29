"""Block drafters: made for a target, trained on its text, measured by depth, tried under other settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file

from draftwood import load
from draftwood.base.errors import IncompatibleModels, InvalidInput
from draftwood.strategies.blocks.files import load_block, save_block
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.heads.peagle import PEagleConfig, save_peagle
from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.heads.agreement import agreement
from draftwood.zoo.heads.blocks import (
    BlockOptions,
    new_block,
    new_block_config,
    save_block_head,
    trained_block,
)
from draftwood.zoo.heads.known_text import known_text
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.settings import AS_CONFIGURED, compared
from tests.strategies import test_p_eagle
from tests.strategies.block_heads import KINDS, MODEL, depth_logits, random_head
from tests.zoo.test_heads import rows, target


def run(folder: Path, rank: int, *, steps: int = 60, stop: int = 0) -> BlockHead:
    config = new_block_config(target(), taps=(1, 3), depths=3, markov_rank=rank)
    head = new_block(target(), config, seed=0)
    options = BlockOptions(steps=steps, batch=300, learning_rate=2e-2)
    states = trained_block(
        target(), head, [rows(1.0), rows(1.0, 1)], options=options, checkpoint=folder / "c.pt", every=2
    )
    for state in states:
        if state.step == stop:
            break
    return head


def test_a_block_drafter_begins_as_the_targets_last_layer() -> None:
    config = new_block_config(target(), intermediate=10)
    assert (config.taps, config.mask_token_id, config.depths) == ((1, 2, 3), 30, 5)
    head = new_block(target(), config, seed=0)
    mine: Any = head.layers[0]
    last = target().model.layers[-1]
    assert torch.equal(mine.self_attn.k_proj.weight, last.self_attn.k_proj.weight)
    assert torch.equal(mine.input_layernorm.weight, last.input_layernorm.weight)
    units = [row.tolist() for row in last.mlp.up_proj.weight]
    places = [units.index(row) for row in mine.mlp.up_proj.weight.tolist()]
    assert torch.equal(mine.mlp.down_proj.weight, last.mlp.down_proj.weight[:, places])
    with pytest.raises(InvalidInput, match=r"taps the layers 0, 2 of its target.*can name 1 to 3"):
        new_block_config(target(), taps=(2, 0))


def test_heads_of_keys_that_queries_share_become_one_for_each() -> None:
    import transformers as hf

    torch.manual_seed(1)
    sizes: Any = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 16, "num_hidden_layers": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2))
    head = new_block(model, new_block_config(model), seed=0)
    mine: Any = head.layers[0]
    theirs = model.model.layers[-1].self_attn.v_proj.weight.unflatten(0, (2, 8))
    ours = mine.self_attn.v_proj.weight.unflatten(0, (4, 8))
    assert torch.equal(ours, theirs[[0, 0, 1, 1]])


@pytest.mark.parametrize("rank", [0, 8])
def test_training_teaches_every_depth(rank: int, tmp_path: Path) -> None:
    head = run(tmp_path, rank, steps=150)
    untrained = new_block(target(), head.config, seed=0)
    for temperature in (0.0, 1.0):
        before, after = (
            agreement(target(), one, [rows(temperature, 7)], depths=3) for one in (untrained, head)
        )
        for old, new in zip(before.by_depth, after.by_depth, strict=True):
            assert new > old + 0.03, (before, after)
    # Only with a correction does a later slot know the token before it, on which this target hangs most.
    assert (after.by_depth[2] > 0.8 * after.by_depth[0]) == (rank > 0), after


def test_a_run_goes_on_to_the_very_same_drafter(tmp_path: Path) -> None:
    for folder in ("whole", "broken"):
        (tmp_path / folder).mkdir()
    whole = run(tmp_path / "whole", 8, steps=6)
    run(tmp_path / "broken", 8, steps=6, stop=3)
    mended = run(tmp_path / "broken", 8, steps=6)
    assert all(torch.equal(weight, mended.state_dict()[name]) for name, weight in whole.state_dict().items())
    with pytest.raises(InvalidInput, match="no row to learn from"):
        next(trained_block(target(), whole, [], options=BlockOptions(), checkpoint=tmp_path / "none"))


@pytest.mark.parametrize("kind", ["dflash", "sliding", "map", "dspark", "gated", "rnn"])
def test_a_known_text_is_read_as_drafting_does(kind: str) -> None:
    head = random_head(KINDS[kind])
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    text = known_text(MODEL, torch.tensor([tokens]), head.config.taps)
    with torch.no_grad():
        for depth, logits in enumerate(text.guesses(MODEL, head, depths=head.config.depths, first=1)):
            for place in range(max(depth, 1), len(tokens) - 2):
                begun = place - depth + 1
                expected = depth_logits(head, tokens[:begun], tokens[begun : place + 2])
                torch.testing.assert_close(logits[0, place - 1], expected, atol=1e-5, rtol=1e-5)


@functools.cache
def texts(kind: str) -> tuple[Rows, ...]:
    """Texts whose tokens are a random drafter's own guesses, of the first and of the second depth in turn."""
    head, made = random_head(KINDS[kind]), []
    for seed in range(6):
        tokens = torch.randint(1, 23, (5,), generator=torch.Generator().manual_seed(seed)).tolist()
        while len(tokens) < 17:
            text = known_text(MODEL, torch.tensor([[*tokens, 0]]), head.config.taps)
            with torch.no_grad():
                logits = list(text.guesses(MODEL, head, depths=2))[len(tokens) % 2]
            tokens.append(int(logits[0, -1, 1:].argmax()) + 1)  # never the end of a text
        made.append(Rows(torch.tensor([tokens]), 5, 0.0))
    return tuple(made)


@pytest.mark.parametrize(
    ("kind", "wrong", "found"),
    [
        ("dflash", {}, AS_CONFIGURED),
        ("dflash", {"taps": (0, 2)}, "taps one layer higher (1, 3)"),
        ("dflash", {"causal": (True, True)}, "causal false"),
        ("dspark", {"root_guesses": False}, "the root's slot guesses"),
    ],
)
def test_the_right_setting_is_found(kind: str, wrong: dict[str, Any], found: str) -> None:
    head = random_head(KINDS[kind])
    other = BlockHead(attrs.evolve(head.config, **wrong)).double()
    other.load_state_dict(head.state_dict())
    seen = list(compared(MODEL, other, texts(kind), depths=4))
    assert seen[0].name == AS_CONFIGURED
    assert len(seen[0].by_depth) == 3
    best = max(seen, key=lambda one: one.gain)
    assert best.name == found, seen
    assert best.clear == bool(wrong)


def test_drafters_are_saved_in_half_precision_and_loaded_for_a_target(tmp_path: Path) -> None:
    head = new_block(target(), new_block_config(target(), markov_rank=4), seed=0)
    save_block_head(head, tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    loaded: Any = load_for(tmp_path, load(target()))
    assert loaded.fc.weight.dtype == torch.float32
    assert loaded.config == load_block(tmp_path).config == head.config
    with pytest.raises(IncompatibleModels, match="made for states of width 32, but the target's is 16"):
        load_for(tmp_path, load(MODEL))
    save_block(random_head(KINDS["rnn behind the root"]), tmp_path / "rnn", format="speculators")
    with pytest.raises(InvalidInput, match="from a slot that guesses nothing; such drafters can be used"):
        load_for(tmp_path / "rnn", load(MODEL))
    made: PEagleConfig = test_p_eagle.KINDS["plain"]
    save_peagle(test_p_eagle.random_head(made), tmp_path / "p", target="big")
    assert load_for(tmp_path / "p", load(MODEL)).config == made
