"""Heads: made for a target, trained on its text, measured by depth, and tried under other settings."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

from draftwood.backends.loading.loader import load
from draftwood.base.errors import IncompatibleModels, InvalidInput, UnsupportedModel
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.formats import load_head
from draftwood.strategies.heads.formats import save_head as write
from draftwood.testing import ToyBackend, ToyModel
from draftwood.zoo.distil.rows import Rows, continued
from draftwood.zoo.heads.agreement import agreement, agreement_of_rows
from draftwood.zoo.heads.convert import converted
from draftwood.zoo.heads.eagle3 import (
    HeadOptions,
    new_config,
    new_head,
    save_head,
    tokens_written,
    trained_head,
)
from draftwood.zoo.heads.known_text import known_text
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.settings import AS_CONFIGURED, compared, settings
from tests.backends.recurrent_models import build

TAPS = (1, 2, 3)


@functools.cache
def target() -> Any:
    """With opinions, which hang on its last token most."""
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        vocab_size=31,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=4,
        num_attention_heads=2,
        max_position_embeddings=256,
        eos_token_id=0,
        bos_token_id=0,
    )
    model = hf.LlamaForCausalLM(config).eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            weight.normal_(0.0, 1.0 if "embed" in name else 0.6 if "lm_head" in name else 0.1)
    return model


@functools.cache
def rows(temperature: float = 0.0, seed: int = 0) -> Rows:
    prompts = torch.randint(1, 31, (24, 8), generator=torch.Generator().manual_seed(seed))
    return continued(target(), prompts, new_tokens=16, temperature=temperature, seed=seed)


@functools.cache
def trained(folder: Path, steps: int = 60) -> Eagle3Head:
    shards = [rows(1.0), rows(1.0, 1)]
    head = new_head(target(), new_config(target(), taps=TAPS), tokens_written(shards, 31), seed=0)
    options = HeadOptions(steps=steps, batch=300, learning_rate=2e-2, depths=3)
    for _ in trained_head(target(), head, shards, options=options, checkpoint=folder / "checkpoint.pt"):
        pass
    return head


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Eagle3Head:
    return trained(tmp_path_factory.mktemp("head"))


def test_a_head_begins_as_the_targets_last_layer_and_output_head() -> None:
    counts = torch.arange(31)
    head = new_head(target(), new_config(target(), taps=TAPS, draft_vocabulary=5), counts, seed=0)
    assert head.target_ids.tolist() == [26, 27, 28, 29, 30]
    assert head.lm_head is not None
    assert torch.equal(head.lm_head.weight, target().lm_head.weight[26:])
    last: Any = target().model.layers[-1]
    own: Any = head.midlayer
    assert torch.equal(
        own.self_attn.v_proj.weight[:, head.config.hidden_size :], last.self_attn.v_proj.weight
    )
    assert torch.equal(own.self_attn.o_proj.weight, last.self_attn.o_proj.weight)
    torch.testing.assert_close(own.hidden_norm.weight, last.input_layernorm.weight)
    sizes = new_config(target(), taps=TAPS, intermediate=20)
    assert (sizes.intermediate_size, sizes.head_dim, sizes.key_value_heads) == (20, 16, 2)
    inner = new_config(target(), taps=TAPS, intermediate=10)
    narrow = new_head(target(), inner, counts, seed=0).midlayer.mlp
    chosen = (last.mlp.gate_proj.weight[:, None] == narrow.gate_proj.weight).all(-1).any(1)
    assert int(chosen.sum()) == 10
    assert set(narrow.down_proj.weight[0].tolist()) == set(last.mlp.down_proj.weight[0, chosen].tolist())
    with pytest.raises(InvalidInput, match="taps the layers 1, 2, 5"):
        new_config(target(), taps=(1, 2, 5))


def test_training_teaches_every_depth(head: Eagle3Head) -> None:
    untrained = new_head(target(), head.config, torch.ones(31), seed=0)
    for temperature in (0.0, 1.0):
        before, after = (agreement(target(), one, [rows(temperature, 7)]) for one in (untrained, head))
        assert after.temperature == temperature
        for old, new in zip(before.by_depth, after.by_depth, strict=True):
            assert new > old + 0.1, (before, after)


def test_a_run_goes_on_to_the_very_same_head(tmp_path: Path) -> None:
    shards = [rows(), rows(1.0)]
    options = HeadOptions(steps=6, batch=200, learning_rate=5e-3, depths=2)

    def run(checkpoint: Path, stop: int) -> tuple[Eagle3Head, list[int]]:
        head = new_head(target(), new_config(target(), taps=TAPS), tokens_written(shards, 31), seed=0)
        seen = []
        states = trained_head(target(), head, shards, options=options, checkpoint=checkpoint, every=2)
        for state in states:
            seen.append(state.step)
            if state.step == stop:
                break
        return head, seen

    whole, _ = run(tmp_path / "whole", 6)
    run(tmp_path / "broken", 5)
    mended, steps = run(tmp_path / "broken", 6)
    assert steps == [4, 5, 6]
    assert all(torch.equal(weight, mended.state_dict()[name]) for name, weight in whole.state_dict().items())
    with pytest.raises(InvalidInput, match="no row to learn from"):
        next(trained_head(target(), whole, [], options=options, checkpoint=tmp_path / "none"))


def test_agreement_counts_the_tokens_that_were_guessed(head: Eagle3Head) -> None:
    """By hand at the first depth: the head's most likely token, compared with the target's text."""
    some = rows(0.0, 3)
    some = attrs.evolve(some, tokens=some.tokens[:4])
    text = known_text(target(), some.tokens, TAPS)
    with torch.no_grad():
        guesses = head.target_logits(next(iter(text.drafted(head, depths=1)))).argmax(-1)
    right = total = 0
    for row, tokens in enumerate(some.tokens.tolist()):
        for place in range(some.prompt - 2, len(tokens) - 2):
            right += guesses[row, place] == tokens[place + 2]
            total += 1
            if tokens[place + 2] == 0:
                break
    found = agreement(target(), head, [some], depths=1)
    assert found.positions == total
    assert found.by_depth[0] == pytest.approx(float(right) / total)
    with pytest.raises(InvalidInput, match=r"have the temperatures \[0.0, 1.0\]"):
        agreement(target(), head, [rows(), rows(1.0)])


@pytest.mark.parametrize("name", ["bamba", "mamba", "mamba2", "falcon_mamba"])
def test_a_recurrent_targets_known_text_is_what_its_backend_keeps(name: str) -> None:
    """Mamba's models count their hidden states in another way than others do."""
    model, tokens = build(name), torch.tensor([[5, 9, 2, 40, 17, 8, 8]])
    backend = load(model)
    backend.keep_features((0, 1))
    backend.prefill([tokens[0, :-2]])
    (features,) = backend.take_features()
    torch.testing.assert_close(known_text(model, tokens, (0, 1)).features[0], features, atol=1e-4, rtol=1e-4)


def test_tokens_outside_the_heads_vocabulary_teach_nothing(tmp_path: Path) -> None:
    shards = [rows()]
    sizes = new_config(target(), taps=TAPS, draft_vocabulary=3)
    head = new_head(target(), sizes, tokens_written(shards, 31), seed=0)
    options = HeadOptions(steps=2, batch=200, depths=2)
    for state in trained_head(target(), head, shards, options=options, checkpoint=tmp_path / "c"):
        assert state.loss == state.loss  # no nan: places are left out, and none may be left
    chances, _ = agreement_of_rows(target(), head, rows(1.0), taps=TAPS)
    assert 0 < chances.mean() < 1


def random_head() -> Eagle3Head:
    head = Eagle3Head(new_config(target(), taps=TAPS)).requires_grad_(False)
    generator = torch.Generator().manual_seed(4)
    for weight in head.parameters():
        weight.normal_(generator=generator).mul_(0.3)
        if weight.dim() == 1:
            weight.add_(1)
    return head


def guessed(head: Eagle3Head, prompt: list[int], new: int) -> Rows:
    """A text whose tokens are the head's own guesses, of the first and of the second depth in turn."""
    tokens = list(prompt)
    while len(tokens) < len(prompt) + new:
        # The last token is not read.
        text = known_text(target(), torch.tensor([[*tokens, 0]]), TAPS)
        logits = [head.logits(out[:, -1]) for out in text.drafted(head, depths=2)]
        tokens.append(int(logits[len(tokens) % 2][0, 1:].argmax()) + 1)  # never the end of a text
    return Rows(torch.tensor([tokens]), len(prompt), 0.0)


@functools.cache
def texts() -> tuple[Rows, ...]:
    prompts = torch.randint(1, 31, (8, 5), generator=torch.Generator().manual_seed(6)).tolist()
    return tuple(guessed(random_head(), prompt, 12) for prompt in prompts)


@pytest.mark.parametrize("wrong", ["taps", "norm_before_residual", "norm_output", "none"])
def test_the_right_setting_is_found(wrong: str) -> None:
    head = random_head()
    made = head.config
    if wrong == "taps":
        made = attrs.evolve(made, taps=(0, 1, 2))
    elif wrong != "none":
        change: dict[str, Any] = {wrong: True}
        made = attrs.evolve(made, **change)
    other = Eagle3Head(made)
    other.load_state_dict(head.state_dict())
    found = list(compared(target(), other, texts(), depths=2))
    assert found[0].name == AS_CONFIGURED
    assert found[0].gain == 0
    best = max(found, key=lambda one: one.gain)
    assert best.clear == (wrong != "none")
    assert best.name.startswith(
        {"taps": "taps one layer higher (1, 2, 3)", "none": AS_CONFIGURED}.get(wrong, f"{wrong} false")
    )
    moved = next(one for one in found if one.name == "positions of drafted tokens +1")
    assert moved.by_depth[0] == found[0].by_depth[0]  # nothing is drafted above the first token
    assert wrong != "none" or moved.by_depth[1] < found[0].by_depth[1]
    with pytest.raises(InvalidInput, match="four tokens or more"):
        list(compared(target(), other, [], depths=3))


def test_what_is_tried_of_a_head() -> None:
    plain = [one.name for one in settings(Eagle3Head(new_config(target(), taps=(0, 1, 3))), target())]
    # No layer is below the embedding, and the last one's output has the number 5.
    for name in (
        "taps in the opposite order (3, 1, 0)",
        "the last layers as taps (1, 2, 3)",
        "taps one layer higher (1, 2, 5)",
        "positions of drafted tokens -1",
        "positions of drafted tokens +1",
        "its map read as token ids",
        "the target's output head",
        "rope_theta 500000",
        "embedding and state exchanged",
        "norm_before_residual true",
        "norm_output true",
    ):
        assert (name in plain) == (name != "its map read as token ids"), name
    assert plain[0] == AS_CONFIGURED
    assert not [name for name in plain if "layer lower" in name]
    sizes = attrs.evolve(new_config(target(), taps=(1, 1, 2)), norm_before_fc=True)
    normed = [one.name for one in settings(Eagle3Head(sizes), target())]
    assert {"taps one layer lower (0, 0, 1)", "taps one layer higher (2, 2, 3)"} < {*normed}
    assert {"features of one token earlier", "features of one token later"} < {*normed}
    assert normed[-1] == "norm_before_fc false"


def test_heads_are_saved_in_half_precision_and_loaded_for_a_target(head: Eagle3Head, tmp_path: Path) -> None:
    copy = Eagle3Head(head.config)
    copy.load_state_dict(head.state_dict())
    save_head(copy, tmp_path, target="big")
    assert {tensor.dtype for tensor in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    loaded = load_for(tmp_path, load(target()))
    assert isinstance(loaded, Eagle3Head)
    assert loaded.fc.weight.dtype == torch.float32
    assert torch.equal(loaded.fc.weight, head.fc.weight.bfloat16().float())
    with pytest.raises(UnsupportedModel, match="declares no features"):
        load_for(tmp_path, ToyBackend(ToyModel(31)))
    small = Eagle3Head(attrs.evolve(head.config, target_hidden_size=16, own_embedding=True))
    write(small, tmp_path / "small", target="big")
    with pytest.raises(IncompatibleModels, match="width 16, but the target's is 32"):
        load_for(tmp_path / "small", load(target()))


class Runs:
    """A class that runs code when its pickle is read."""

    def __reduce__(self) -> Any:
        return (print, ("this must not be run",))


def test_pickles_become_safetensors_without_running_code(
    head: Eagle3Head, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(head, tmp_path / "old", target="big")
    tensors = load_file(tmp_path / "old" / "model.safetensors")
    (tmp_path / "old" / "model.safetensors").unlink()
    file = tmp_path / "old" / "pytorch_model.bin"
    torch.save(tensors, file)
    assert converted(tmp_path / "old", tmp_path / "new") == len(tensors)
    read = load_head(tmp_path / "new")
    assert all(torch.equal(weight, read.state_dict()[name]) for name, weight in head.state_dict().items())
    with pytest.raises(InvalidInput, match="holds something; name a new folder"):
        converted(tmp_path / "old", tmp_path / "new")
    torch.save({**tensors, "extra": Runs()}, file)
    with pytest.raises(InvalidInput, match="cannot be read without running code"):
        converted(tmp_path / "old", tmp_path / "other")
    assert "must not be run" not in capsys.readouterr().out
    torch.save({"weights": tensors}, file)
    with pytest.raises(InvalidInput, match="does not hold tensors by name"):
        converted(tmp_path / "old", tmp_path / "other")
    file.unlink()
    with pytest.raises(InvalidInput, match=r"no pytorch_model.bin"):
        converted(tmp_path / "old", tmp_path / "other")
