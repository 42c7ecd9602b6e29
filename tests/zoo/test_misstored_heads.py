"""Heads whose weights are stored under other names, in another layout or at another size, and features of
another token: each is told with its cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from benchmarks.research.head_faults import FAULTS
from draftwood import zoo
from draftwood.strategies.heads.config import Latent
from draftwood.zoo.heads.known_text import ReadText
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.misstored import restored, with_weights
from draftwood.zoo.heads.settings import compared, settings
from draftwood.zoo.heads.variants import weight_variants
from tests.strategies import block_heads, feature_heads, test_p_eagle
from tests.zoo.test_broken_heads import EAGLE, SPARK, backend, broken, checked, target, texts

CAUSES = {
    "keys and values exchanged": "k_proj and v_proj exchanged, .*exchange their names",
    "gate and up exchanged": "gate_proj and up_proj exchanged, .*exchange their names",
    "rotation of neighbours": "rotation of neighbours, .* its q_proj and k_proj",
    "attention four times as strong": "with less of the attention of layer 0 its guesses are better",
    "attention of zeros": "o_proj.weight holds nothing but zeros",
}
SHORT = "gate and up exchanged"
# Faults that other parts make up for, so that the share of right tokens stays far above chance.
HIDDEN = {
    "random keys": "without the keys of attention 0 its guesses are better",
    "half of the MLP another head's": "without the second half of the MLP of layer 0 its guesses are better",
    "taps one layer higher": r"taps one layer lower \(3, 6, 7\), .*it reads other layers",
}


@pytest.mark.thorough
@pytest.mark.parametrize("fault", HIDDEN)
def test_damage_that_other_parts_make_up_for_is_told(fault: str, tmp_path: Path) -> None:
    verdict = checked(broken(SPARK, FAULTS[fault], tmp_path), depths=4)
    assert verdict.broken, verdict.sentence
    assert re.search(HIDDEN[fault], verdict.sentence), verdict.sentence


def test_the_output_of_the_last_layer_is_one_of_the_taps_that_are_tried() -> None:
    """Layers 0 to 4; 6 is the last one's output, for which a configuration says 5."""
    for taps, words, other in (
        ((2, 4), "taps one layer higher", (3, 6)),
        ((3, 5), "taps one layer lower", (2, 4)),
    ):
        head = block_heads.random_head(block_heads.config(taps=taps))
        found = {setting.name: setting.taps for setting in settings(head, block_heads.MODEL)}
        assert found[f"{words} ({other[0]}, {other[1]})"] == other


@pytest.mark.parametrize(
    "fault", [one if one == SHORT else pytest.param(one, marks=pytest.mark.thorough) for one in CAUSES]
)
def test_weights_in_wrong_places_are_told(fault: str, tmp_path: Path) -> None:
    verdict = checked(broken(EAGLE, FAULTS[fault], tmp_path))
    assert verdict.broken, verdict.sentence
    assert re.search(CAUSES[fault], verdict.sentence), verdict.sentence


def test_features_of_another_token_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are handed over one token too late, as a head would read them that was trained so."""
    at = ReadText.at

    def late(text: ReadText, taps: Any) -> Any:
        known = at(text, taps)
        return attrs.evolve(known, features=known.features.roll(-1, 1))

    monkeypatch.setattr(ReadText, "at", late)
    head: Any = load_for(zoo.path(EAGLE), backend())
    found = compared(target(), head, texts(), depths=1)
    best = max((one for one in found if one.clear), key=lambda one: one.likelier)
    assert best.name == "features of one token earlier"


def test_what_is_exchanged_twice_is_as_it_was() -> None:
    """So each setting undoes the fault that it is named for."""
    pairs = test_p_eagle.random_head(test_p_eagle.KINDS["layers"])
    block = block_heads.random_head(block_heads.config())
    for head, dim in ((pairs, pairs.head.config.head_dim), (block, block.config.head_dim)):
        stored = dict(head.named_parameters())
        ways = {one.name: one.weights for one in restored(head, head_dim=dim, rotated=dim)}
        assert ways.keys() >= {
            "gate_proj and up_proj exchanged",
            "rotation of neighbours",
            "rotation of halves",
        }
        undone = {"rotation of neighbours": "rotation of halves"}
        for name, weights in ways.items():
            other = with_weights(head, weights)
            changed = [key for key, one in other.named_parameters() if not torch.equal(one, stored[key])]
            assert changed, name
            again = {one.name: one.weights for one in restored(other, head_dim=dim, rotated=dim)}
            back = undone.get(name, next((one for one, two in undone.items() if two == name), name))
            twice = dict(with_weights(other, again[back]).named_parameters())
            assert all(torch.equal(twice[key], one) for key, one in stored.items()), name
        assert all(one is stored[key] for key, one in head.named_parameters())


@pytest.mark.parametrize("query_rank", [8, None])
@torch.no_grad()
def test_latent_attention_is_tried_with_its_halves_exchanged_and_otherwise_rotated(
    query_rank: int | None,
) -> None:
    sizes = Latent(query_rank=query_rank, rank=6, plain_dim=4, rope_dim=6, value_dim=5)
    head = feature_heads.random_head(feature_heads.config(latent=sizes))
    embeddings, states = torch.randn(2, 1, 5, feature_heads.WIDTH, dtype=torch.float64)
    layer, config = head.midlayer, head.config
    made: dict[str, Any] = {one.name: one.head for one in weight_variants(head, feature_heads.target())}
    assert made["rotation of halves"].config == attrs.evolve(
        config, latent=attrs.evolve(sizes, interleaved=False)
    )
    read = torch.cat([embeddings, states], -1)
    other = made["embedding and state exchanged"].midlayer.self_attn
    for mine, theirs in zip(
        layer.self_attn.keys_values(read, lambda one: one),
        other.keys_values(torch.cat([states, embeddings], -1), lambda one: one),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs)
    names = [
        name for name, weight in layer.self_attn.named_parameters() if weight.shape[1:] == read.shape[-1:]
    ]
    assert len(names) == 2
    assert not any(
        torch.equal(layer.self_attn.get_parameter(name), other.get_parameter(name)) for name in names
    )
