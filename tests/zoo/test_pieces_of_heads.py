"""Halves of parts of a head, and its keys: what leaving one out tells."""

from __future__ import annotations

import re
from typing import Any

import attrs
import pytest
import torch

from draftwood.zoo.heads.parts import Added, parts_of, scaled
from draftwood.zoo.heads.verdict import Grade
from tests.strategies import block_heads, test_p_eagle
from tests.zoo.test_head_verdicts import with_parts


@pytest.mark.parametrize(
    ("gain", "better", "grade", "sentence"),
    [
        (0.0, 0.0, Grade.right, "above what needs no head"),
        (-0.1, 0.03, Grade.broken, "without the piece its guesses are better, by 0.100 nats"),
        # A head that is too sure of itself is likelier to be right without it, and guesses the same tokens.
        (-0.1, 0.01, Grade.weak, "without the piece its guesses are likelier, by 0.100 nats"),
        (-0.03, 0.03, Grade.weak, "without the piece its guesses are likelier"),
        (-0.01, 0.03, Grade.right, "above what needs no head"),
    ],
)
def test_a_piece_of_a_part_that_harms(gain: float, better: float, grade: Grade, sentence: str) -> None:
    pieces = [Added(name="the piece", by_depth=(0.1, 0.1), gain=gain, error=0.005, better=better, piece=True)]
    verdict = with_parts(0.5, 0.3, pieces=pieces)
    assert verdict.grade is grade, verdict.sentence
    assert re.search(sentence, verdict.sentence), verdict.sentence


ADDED = Added(name="the second half of it", by_depth=(0.1,), gain=0.0, error=0.005, piece=True)


@pytest.mark.parametrize(
    ("gain", "error", "other", "grade"),
    [
        (0.01, 0.002, 0.5, Grade.weak),
        (-0.01, 0.02, 0.5, Grade.weak),
        # By chance; by a trained head; by one whose other half adds little too.
        (0.01, 0.03, 0.5, Grade.right),
        (0.1, 0.005, 0.4, Grade.right),
        (0.001, 0.0, 0.05, Grade.right),
    ],
)
def test_a_half_that_adds_nothing_where_the_other_adds_much(
    gain: float, error: float, other: float, grade: Grade
) -> None:
    half = attrs.evolve(ADDED, gain=gain, error=error, other_half=other, other_error=0.01)
    verdict = with_parts(0.5, 0.3, pieces=[half])
    assert verdict.grade is grade, verdict.sentence
    told = f"the second half of it adds {gain:.3f} nats per token, where the other half adds 0.500"
    assert (told in verdict.sentence) == (grade is Grade.weak)


@torch.no_grad()
def test_pieces_of_parts_make_up_the_whole() -> None:
    """Two halves of an MLP add together what all of it adds, by its outputs and by its inner units."""
    head = block_heads.random_head(block_heads.config(taps=(1, 3)))
    named = {part.name: part for part in parts_of(head, 3)}
    layers: list[Any] = list(head.layers)
    layer = layers[1].mlp
    states = torch.randn(3, block_heads.WIDTH, dtype=layer.down_proj.weight.dtype)
    whole = layer(states)

    def without(name: str) -> torch.Tensor:
        with scaled(named[name], 0):
            found: torch.Tensor = layer(states)
        return found

    assert not without("the MLP of layer 1").any()
    for words in ("", "the inner units of "):
        halves = [
            without(f"the {number} half of {words}the MLP of layer 1") for number in ("first", "second")
        ]
        torch.testing.assert_close(sum(halves), whole)
        assert not torch.equal(halves[0], whole)
    middle = block_heads.WIDTH // 2
    assert not without("the second half of the MLP of layer 1")[:, middle:].any()
    assert "the MLP of all layers" in named
    attention = layers[0].self_attn.o_proj
    inputs = torch.randn(3, attention.in_features, dtype=attention.weight.dtype)
    without_heads = inputs.clone()
    without_heads[:, attention.in_features // 2 :] = 0
    with scaled(named["the second half of the heads of the attention of layer 0"], 0):
        torch.testing.assert_close(attention(inputs), attention(without_heads))
    with scaled(named["the keys of attention 0"], 0):
        assert not layers[0].self_attn.k_proj(states).any()
        assert layers[1].self_attn.k_proj(states).any()


def test_halves_of_a_correction_may_differ() -> None:
    """They are the frequent and the rare tokens; the halves of all other parts are compared."""
    head = block_heads.random_head(block_heads.config(markov_rank=3))
    alone = [part.name for part in parts_of(head, 3) if part.piece and not part.half_of]
    halves = [f"the {words} half of the correction" for words in ("first", "second")]
    assert [name for name in alone if "keys" not in name] == halves


@pytest.mark.parametrize("half", [slice(8), slice(8, None)])
@torch.no_grad()
def test_a_matrix_of_zeros_in_half_of_its_rows_is_told(half: slice) -> None:
    head = test_p_eagle.random_head(test_p_eagle.KINDS["plain"])
    weight = head.head.midlayer.mlp.down_proj.weight
    assert len(weight) == 16
    assert with_parts(0.5, 0.3, head=head).grade is Grade.right
    weight[half] = 0
    verdict = with_parts(0.5, 0.3, head=head)
    assert verdict.broken
    assert (
        "mlp.down_proj.weight holds nothing but zeros in half of its rows; copy it again" in verdict.sentence
    )
