"""Heads that are broken in the ways in which files of heads are: each is told, with its cause."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftwood import InvalidInput, load, zoo
from draftwood.apps.models.prompts import PROMPTS
from draftwood.strategies.heads.formats import save_head
from draftwood.strategies.heads.peagle import save_peagle
from draftwood.zoo.distil.rows import Rows, continued
from draftwood.zoo.heads.eagle3 import HeadOptions, new_config, new_head, tokens_written, trained_head
from draftwood.zoo.heads.floors import Floors, floors_of
from draftwood.zoo.heads.known_text import known_text
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.parts import added_by_parts
from draftwood.zoo.heads.settings import compared, settings
from draftwood.zoo.heads.settings import judged as judged_texts
from draftwood.zoo.heads.verdict import Grade, Verdict, verdict_of
from tests.strategies import mtp_layers, test_p_eagle
from tests.strategies.test_mtp_speculators import as_theirs

Tensors = dict[str, torch.Tensor]
Break = Callable[[dict[str, Any], Tensors], Any]


@cache
def target(name: str = "llama-7m") -> Any:
    return zoo.load(name).float()


@cache
def backend(name: str = "llama-7m") -> Any:
    return load(target(name))


@cache
def texts(name: str = "llama-7m") -> list[Rows]:
    tokenizer = zoo.tokenizer()
    prompts = [text for group in PROMPTS.values() for text in group][:8]
    ids = [torch.tensor([tokenizer(text)["input_ids"][:64]]) for text in prompts]
    return [continued(target(name), prompt, new_tokens=32, temperature=0.0, seed=0) for prompt in ids]


def checked(folder: Path, depths: int = 2, of: str = "llama-7m") -> Verdict:
    """The verdict on the head in `folder` for the model `of` of the zoo."""
    model, rows = target(of), texts(of)
    head = load_for(folder, backend(of))
    found = compared(model, head, rows, depths=depths)
    added = added_by_parts(model, head, rows, depths=depths)
    return verdict_of(model, head, rows, found, floors_of(rows), added)


def noise(like: torch.Tensor) -> torch.Tensor:
    drawn = torch.randn(like.shape, generator=torch.Generator().manual_seed(1))
    return (drawn * like.float().std()).to(like.dtype)


def key(name: str, value: Any) -> Break:
    return lambda described, _: described.update({name: value})


def tapped(*taps: int) -> Break:
    ids = [tap - 1 for tap in taps]
    return lambda described, _: described["eagle_config"].update({"eagle_aux_hidden_state_layer_ids": ids})


def rotated(base: float) -> Break:
    return lambda described, _: described.update({"rope_theta": base})


def masked(token: int) -> Break:
    return lambda described, _: described["dflash_config"].update({"mask_token_id": token})


def random(*names: str) -> Break:
    return lambda _, stored: stored.update({name: noise(stored[name]) for name in names})


def fewer(described: dict[str, Any], stored: Tensors) -> torch.Tensor:
    """Leave three quarters of the tokens, with a map; returns the tokens."""
    ids = torch.cat([rows.tokens.flatten() for rows in texts()]).unique()
    others = torch.randperm(4096, generator=torch.Generator().manual_seed(0))
    ids = torch.cat([ids, others[~torch.isin(others, ids)]])[:3000].sort().values
    described["draft_vocab_size"] = 3000
    stored["lm_head.weight"] = stored["lm_head.weight"][ids]
    stored["d2t"] = ids - torch.arange(3000)
    return ids


def shuffled(described: dict[str, Any], stored: Tensors) -> None:
    ids = fewer(described, stored)
    order = torch.randperm(3000, generator=torch.Generator().manual_seed(0))
    stored["d2t"] = ids[order] - torch.arange(3000)


def as_ids(described: dict[str, Any], stored: Tensors) -> None:
    stored["d2t"] = fewer(described, stored)


def own_table(_: Any, stored: Tensors) -> None:
    stored["embed_tokens.weight"] = noise(target().get_input_embeddings().weight.detach())


def exchanged(_: Any, stored: Tensors) -> None:
    for name in "qkv":
        weight = stored[f"midlayer.self_attn.{name}_proj.weight"]
        stored[f"midlayer.self_attn.{name}_proj.weight"] = torch.cat(weight.chunk(2, 1)[::-1], 1)


def reversed_taps(_: Any, stored: Tensors) -> None:
    stored["fc.weight"] = torch.cat(stored["fc.weight"].chunk(3, 1)[::-1], 1)


def not_finite(_: Any, stored: Tensors) -> None:
    stored["norm.weight"][3] = torch.nan


EAGLE, SPARK = "llama-7m-eagle3", "llama-7m-dspark"
BROKEN: dict[str, tuple[str, Break, str]] = {
    "a shuffled map": (EAGLE, shuffled, "its map d2t names wrong tokens"),
    "random embeddings": (
        EAGLE,
        own_table,
        "the target's embeddings, .* embed_tokens.weight is no table",
    ),
    "a random output head": (
        EAGLE,
        random("lm_head.weight"),
        "target's output head, .*lm_head.weight is",
    ),
    "the first layers as taps": (EAGLE, tapped(1, 2, 3), "taps .* it reads other layers of the target"),
    "taps in another order": (EAGLE, reversed_taps, "taps in the opposite order"),
    "norm_before_residual": (
        EAGLE,
        key("norm_before_residual", True),
        "before_residual false, .*wrong",
    ),
    "norm_output": (EAGLE, key("norm_output", True), "norm_output false, .* its config has this norm wrong"),
    "another base of the rotation": (EAGLE, rotated(100.0), "rope_theta 10000, .*write rope_theta: 10000"),
    "another mask": (SPARK, masked(17), "mask_token_id is another token than in its training"),
    "exchanged halves": (EAGLE, exchanged, "embedding and state exchanged, .*exchange the halves"),
    "a random projection": (EAGLE, random("fc.weight"), "none of .* other settings mends it"),
    "a random layer": (
        EAGLE,
        random("midlayer.self_attn.v_proj.weight", "midlayer.mlp.down_proj.weight"),
        "without the (attention|MLP) of layer 0 its guesses are better",
    ),
    "a random correction": (
        SPARK,
        random("markov_head.markov_w2.weight"),
        "without the correction its guesses",
    ),
    "layers of a random block": (
        SPARK,
        random("fc.weight", "layers.0.mlp.up_proj.weight"),
        "without .* half of the target's states its guesses are better",
    ),
}
SHORT = ("a shuffled map", "norm_before_residual", "a random projection")


def broken(name: str, change: Break, folder: Path) -> Path:
    described = json.loads((zoo.path(name) / "config.json").read_text())
    stored = load_file(zoo.path(name) / "model.safetensors")
    change(described, stored)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    save_file({name: tensor.contiguous() for name, tensor in stored.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    "case",
    [case if case in SHORT else pytest.param(case, marks=pytest.mark.thorough) for case in BROKEN],
)
def test_a_broken_head_is_told_with_its_cause(case: str, tmp_path: Path) -> None:
    name, change, cause = BROKEN[case]
    # A wrong mask is seen by later slots.
    verdict = checked(broken(name, change, tmp_path), depths=4 if name == SPARK else 2)
    assert verdict.broken, verdict.sentence
    assert re.search(cause, verdict.sentence), verdict.sentence


def test_a_map_of_tokens_in_place_of_offsets_is_told_when_it_is_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="d2t in .* holds the tokens themselves, where offsets are wanted"):
        load_for(broken(EAGLE, as_ids, tmp_path), backend())


def test_weights_that_are_not_finite_are_told_when_they_are_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="norm.weight in .* holds values that are not finite"):
        load_for(broken(EAGLE, not_finite, tmp_path), backend())


@pytest.mark.parametrize("name", [EAGLE, pytest.param(SPARK, marks=pytest.mark.thorough)])
def test_a_head_of_the_zoo_is_not_broken(name: str) -> None:
    verdict = checked(zoo.path(name))
    assert not verdict.broken, verdict.sentence


@pytest.mark.thorough
def test_a_head_that_was_trained_for_a_minute_is_not_broken(tmp_path: Path) -> None:
    """On 16,000 tokens, each of them some six times; the zoo's head saw 3.4 million."""
    tokenizer = zoo.tokenizer()
    ids = [tokenizer(text)["input_ids"][:16] for group in PROMPTS.values() for text in group]
    prompts = torch.tensor([row for row in ids if len(row) == 16])
    shards = [continued(target(), prompts, new_tokens=96, temperature=1.0, seed=seed) for seed in range(24)]
    made = new_config(target(), taps=(3, 5, 7), intermediate=512)
    head = new_head(target(), made, tokens_written(shards, made.vocab_size), seed=0)
    options = HeadOptions(steps=100, batch=1024, learning_rate=2e-3, depths=3)
    for _ in trained_head(target(), head, shards, options=options, checkpoint=tmp_path / "run.pt"):
        pass
    save_head(head, tmp_path / "head", target="llama-7m")
    verdict = checked(tmp_path / "head")
    assert not verdict.broken, verdict.sentence


def test_floors_are_what_needs_no_head() -> None:
    rows = [
        Rows(tokens=torch.tensor([[1, 2, 3, 1, 2, 3, 1, 2]]), prompt=3, temperature=0.0),
        Rows(tokens=torch.tensor([[4, 5, 6, 2, 2, 7, 2, 9]]), prompt=3, temperature=0.0),
    ]
    # Each row is guessed by the other's most frequent token: 2 of the second row, 1 or 2 of the first.
    floors = floors_of(rows)
    assert floors.lookup == pytest.approx(4 / 10)
    assert floors.unigram == pytest.approx((2 + 0) / 10)
    assert Floors(unigram=0.0, lookup=0.0).least == 0.2
    assert Floors(unigram=0.3, lookup=0.0).least == pytest.approx(0.45)


@torch.no_grad()
def test_a_p_eagle_head_over_a_known_text_guesses_what_it_drafts() -> None:
    """At every depth, so that `check-head` compares what a drafter would propose."""
    model = test_p_eagle.target()
    head = test_p_eagle.random_head(test_p_eagle.KINDS["layers"])
    text = [3, 1, 4, 1, 5, 9, 2, 6]
    known = known_text(model, torch.tensor([text]), head.taps_in(4))
    for depth, logits in enumerate(known.guesses(model, head, depths=3)):
        for place in range(depth, len(text) - 2):
            begun = place - depth + 1
            # The tokens of the path count for nothing after the first.
            expected = test_p_eagle.depth_logits(head, text[:begun], text[begun : place + 2])
            torch.testing.assert_close(logits[0, place], expected, atol=1e-5, rtol=1e-5)


def test_the_settings_of_a_p_eagle_head(tmp_path: Path) -> None:
    head = test_p_eagle.random_head(test_p_eagle.KINDS["plain"])
    save_peagle(head, tmp_path, target="big")
    again: Any = load_for(tmp_path, load(test_p_eagle.target()))
    found: dict[str, Any] = {setting.name: setting.head for setting in settings(again, test_p_eagle.target())}
    assert found["as configured"] is again
    assert found["norm_before_residual true"].head.midlayer.norm_before_residual
    assert found["mask_token_id 22"].config.mask_token_id == 22
    assert found["the target's output head"].head.lm_head is not again.head.lm_head
    assert "norm_output true" not in found
    assert "mask_token_id 5" not in found  # as configured
    for name, other in found.items():
        for weight, same in zip(other.parameters(), again.parameters(), strict=True):
            assert weight.shape == same.shape, name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("parts", "cause"),
    [
        (("mtp.layers.0.mixer.", "mtp.layers.1.mixer."), "without block 1 its guesses are better"),
        (("mtp.layers.0.mixer.",), "without block 0 its guesses are"),
        ((), "the best of these"),
    ],
)
def test_a_random_decoder_layer_of_an_mtp_layer_is_told(
    parts: tuple[str, ...], cause: str, tmp_path: Path
) -> None:
    """Its guesses stay above every floor: 0.43 of first tokens for 0.59."""

    def change(_: dict[str, Any], stored: Tensors) -> None:
        hit = [name for name in stored if name.startswith(parts) and stored[name].dim() > 1] if parts else []
        stored.update({name: noise(stored[name]) for name in hit})

    verdict = checked(broken("bamba-6m-mtp", change, tmp_path), of="bamba-6m")
    assert re.search(cause, verdict.sentence), verdict.sentence
    assert (verdict.grade is Grade.right) == (not parts)


@pytest.mark.thorough
def test_another_heads_weights_in_half_of_the_mlp_of_an_mtp_layer_are_told(tmp_path: Path) -> None:
    """They leave it far above every floor, and the MLP helps."""

    def change(_: dict[str, Any], stored: Tensors) -> None:
        weight = stored["mtp.layers.1.mixer.down_proj.weight"]
        weight[128:] = noise(weight[128:])

    verdict = checked(broken("bamba-6m-mtp", change, tmp_path), of="bamba-6m")
    assert verdict.grade is not Grade.right
    assert "second half of block 1" in verdict.sentence


@torch.no_grad()
def test_the_use_of_a_part_is_a_difference_of_likelihoods() -> None:
    """Of an MLP whose last product is zero, computed without any of what leaves parts out."""
    rows = texts()[:2]
    head: Any = load_for(zoo.path(EAGLE), backend())
    without: Any = load_for(zoo.path(EAGLE), backend())
    without.midlayer.mlp.down_proj.weight.zero_()
    taps = head.taps_in(int(target().config.num_hidden_layers))
    likely = []
    for one in (head, without):
        chosen = []
        for row in rows:
            text = known_text(target(), row.tokens, taps)
            guess = next(text.guesses(target(), one, depths=1, first=row.prompt - 2))[0].log_softmax(-1)
            chosen.append(guess.gather(-1, row.tokens[0, row.prompt :, None]).clamp(min=-20).mean())
        likely.append(torch.stack(chosen))
    gains = likely[0] - likely[1]
    added = {part.name: part for part in added_by_parts(target(), head, rows, depths=1)}
    assert {name for name, part in added.items() if not part.piece} == {
        "embeddings",
        "the target's states",
        "the attention of layer 0",
        "the MLP of layer 0",
    }
    found = added["the MLP of layer 0"]
    assert found.gain == pytest.approx(float(gains.mean()), abs=1e-4)
    assert found.error == pytest.approx(float(gains.std() / 2**0.5), abs=1e-4)
    assert not found.idle


@torch.no_grad()
def test_a_head_that_is_clearly_worse_is_compared_on_the_first_texts() -> None:
    head: Any = load_for(zoo.path(EAGLE), backend())
    taps = head.taps_in(int(target().config.num_hidden_layers))
    read = [known_text(target(), rows.tokens, taps) for rows in texts()]

    def of(known: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        return judged_texts(target(), head, texts(), read, depths=1, known=known)

    sums = of(None)
    own = sums[1].sum(1) / sums[3].sum(1)
    assert len(own) == 6
    assert len(of(own + 0.2)[0]) == 6
    # As much worse on the whole, and not on every text.
    assert len(of(own + torch.tensor([3.0, -1.0]).repeat(3))[0]) == 6
    some = of(own + 1)
    assert [len(one) for one in some] == [4] * 4
    for one, whole in zip(some, sums, strict=True):
        assert torch.equal(one, whole[:4])


def test_an_mtp_layer_of_speculators_is_checked(tmp_path: Path) -> None:
    kind = mtp_layers.KINDS["qwen3.5"]
    folder = as_theirs(mtp_layers.checkpoint(kind, tmp_path / "model"), tmp_path / "theirs")
    model = mtp_layers.model_of(kind)
    head: Any = load_for(folder, load(model))
    assert head.layout.family.title == "Qwen3.5"
    assert {setting.name for setting in settings(head, model)} >= {
        "as configured",
        "embedding and state exchanged",
    }
