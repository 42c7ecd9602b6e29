"""Draws without replacement on the device, number by number those of the draft stream."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood import TapeRandomness, WithoutReplacement
from draftwood.drawing import draw_children
from draftwood.kernels.ordered_draws import dispatch, reference

VOCABULARIES = [2, 3, 11, 511, 513, 1500, 3000]


def rows(nodes: int, vocab: int, *, alive: float, sharpness: float, seed: int) -> Tensor:
    """Distributions of which about `alive` of the tokens have any weight, one token at least."""
    chance = torch.Generator().manual_seed(seed)
    p = torch.randn(nodes, vocab, generator=chance).mul(sharpness).exp()
    dead = torch.rand(nodes, vocab, generator=chance) > alive
    dead[torch.arange(nodes), torch.randint(vocab, (nodes,), generator=chance)] = False
    p = p.masked_fill(dead, 0)
    return p / p.sum(-1, keepdim=True)


def tape_of(numbers: int, seed: int) -> Tensor:
    return torch.rand(numbers, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def agree(p: Tensor, count: int, uniforms: Tensor, device: torch.device) -> None:
    """The production's draws, the reference's and the kernel's are the same, and use the same uniforms."""
    rng = TapeRandomness(uniforms)
    drawn = [(one.tokens, one.chances) for one in draw_children(WithoutReplacement, p, count=count, rng=rng)]
    assert reference.draw(probs=p, count=count, uniforms=uniforms) == drawn
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch.reference, "draw", None)
        assert dispatch.draw(probs=p.to(device), count=count, uniforms=uniforms) == drawn
    assert rng.used == sum(len(tokens) for tokens, _ in drawn)


@settings(max_examples=15)
@given(
    nodes=st.integers(1, 4),
    vocab=st.sampled_from(VOCABULARIES),
    count=st.integers(1, 7),
    alive=st.sampled_from([1.0, 0.5, 0.0]),
    sharpness=st.sampled_from([0.0, 1.0, 6.0]),
    seed=st.integers(0, 2**32),
)
def test_as_production_draws(
    nodes: int, vocab: int, count: int, alive: float, sharpness: float, seed: int, device: torch.device
) -> None:
    p = rows(nodes, vocab, alive=alive, sharpness=sharpness, seed=seed)
    agree(p, count, tape_of(nodes * count, seed + 1), device)


def test_a_vocabulary_of_many_blocks(device: torch.device) -> None:
    agree(rows(2, 5000, alive=0.9, sharpness=1.0, seed=3), 3, tape_of(6, 4), device)


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_the_ends_of_the_unit_interval(u: float, device: torch.device) -> None:
    # 1 is what a product with the total may round to.
    p = rows(2, 700, alive=0.5, sharpness=3.0, seed=1)
    agree(p, 4, torch.full((8,), u, dtype=torch.float64), device)


def test_rows_that_hold_nothing_draw_nothing(device: torch.device) -> None:
    p = torch.full((3, 20), 0.05)
    p[0] = 0
    p[1, 7] = float("nan")
    agree(p, 2, tape_of(6, 2), device)


def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    wide = rows(3, 64, alive=1.0, sharpness=1.0, seed=5)
    agree(wide[:, :33], 3, tape_of(9, 6), device)


def test_infinity_is_refused(device: torch.device) -> None:
    p = torch.ones(2, 5)
    p[1, 2] = float("inf")
    with pytest.raises(ValueError, match="check the logits for infinity"):
        dispatch.draw(probs=p.to(device), count=2, uniforms=tape_of(4, 1))
    with pytest.raises(ValueError, match="check the logits for infinity"):
        reference.draw(probs=p, count=2, uniforms=tape_of(4, 1))


def test_too_few_uniforms(device: torch.device) -> None:
    with pytest.raises(ValueError, match="3 uniforms for 2 draws of 2 nodes; give 4"):
        dispatch.draw(probs=torch.ones(2, 5, device=device), count=2, uniforms=tape_of(3, 1))


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        (torch.ones(1, 5, dtype=torch.float64), "its distributions are torch.float64"),
        (torch.ones(5, 2).T, "not contiguous along its last axis"),
        (torch.ones(1, 1).expand(1, 2**19 + 1), "its vocabulary has 524289 tokens"),
    ],
)
def test_the_reference_takes_the_rest(
    p: Tensor, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    caplog.set_level("INFO", logger="draftwood.kernels.switch")
    dispatch.switch._logged.clear()
    (tokens, chances), *_ = dispatch.draw(probs=p.to(device), count=1, uniforms=torch.zeros(2).double())
    assert reason in caplog.text
    assert (tokens, chances) == ([0], [1.0])
