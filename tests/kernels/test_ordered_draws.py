"""Draws without replacement on the device, number by number equal to draws from the draft stream."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood import (
    CounterRandomness,
    InvalidDistribution,
    Randomness,
    TapeRandomness,
    TreePolicy,
    WithoutReplacement,
    draw_children,
)
from draftwood.kernels.ordered_draws import blocks, dispatch, reference
from draftwood.kernels.support import kernels_enabled
from draftwood.laws.ordered_draws import ChildDraws
from draftwood.laws.randomness import NodeStreams
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.trees.growth import by_distributions
from tests.kernels import frames

pytestmark = pytest.mark.triton

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


def agree(p: Tensor, limits: list[int], uniforms: Tensor, device: torch.device) -> reference.Draws:
    """The kernel's draws and those by blocks are the reference's; returns them."""
    wanted = reference.draw(probs=p, limits=np.array(limits), uniforms=uniforms.numpy())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "draw", None)
        launched = dispatch.draw(probs=p.to(device), limits=np.array(limits), uniforms=uniforms.numpy())
    with kernels_enabled(False):
        by_blocks = dispatch.draw(probs=p.to(device), limits=np.array(limits), uniforms=uniforms.numpy())
    for found in (launched, by_blocks):
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.chances.tolist() == wanted.chances.tolist()
        drawn = np.arange(found.left.shape[1]) <= (found.tokens >= 0).sum(1)[:, None]
        assert np.allclose(found.left[drawn], wanted.left[drawn], rtol=1e-6, atol=1e-30)
    return wanted


@settings(max_examples=15)
@given(
    vocab=st.sampled_from(VOCABULARIES),
    limits=st.lists(st.integers(-1, 7), min_size=1, max_size=4),
    alive=st.sampled_from([1.0, 0.5, 0.0]),
    sharpness=st.sampled_from([0.0, 1.0, 6.0]),
    seed=st.integers(0, 2**32),
)
def test_as_the_reference_draws(
    vocab: int, limits: list[int], alive: float, sharpness: float, seed: int, device: torch.device
) -> None:
    p = rows(len(limits), vocab, alive=alive, sharpness=sharpness, seed=seed)
    draws = agree(p, limits, tape_of(7 * len(limits), seed + 1).view(-1, 7), device)
    assert ((draws.tokens >= 0).sum(1) <= np.maximum(limits, 0)).all()


def test_a_node_stops_at_its_floor(device: torch.device) -> None:
    p = rows(5, 700, alive=0.5, sharpness=2.0, seed=8)
    arguments: dict[str, Any] = {
        "limits": np.array([6, 6, 6, -1, 6]),
        "uniforms": tape_of(30, 3).view(5, 6).numpy(),
        "floors": np.array([0.0, 0.99, 0.999, 0.5, 2.0]),
    }
    wanted = reference.draw(probs=p, **arguments)
    found = dispatch.draw_on_device(probs=p.to(device), **arguments)
    assert found.tokens.tolist() == wanted.tokens.tolist()
    counts = (found.tokens >= 0).sum(1).tolist()
    assert counts[0] == 6
    assert 0 < counts[2] <= counts[1]
    assert counts[2] < 6
    assert counts[3:] == [0, 0]


def test_a_vocabulary_of_many_blocks(device: torch.device) -> None:
    agree(rows(2, 5000, alive=0.9, sharpness=1.0, seed=3), [3, 3], tape_of(6, 4).view(2, 3), device)


@pytest.mark.parametrize("u", [0.0, 1.0])
def test_the_ends_of_the_unit_interval(u: float, device: torch.device) -> None:
    # 1 is what a product with the total may round to.
    p = rows(2, 700, alive=0.5, sharpness=3.0, seed=1)
    agree(p, [4, 4], torch.full((2, 4), u, dtype=torch.float64), device)


def test_the_end_of_the_unit_interval_before_blocks_of_nothing(device: torch.device) -> None:
    p = rows(2, 700, alive=1.0, sharpness=3.0, seed=1)
    p[:, 200:] = 0
    agree(p, [4, 4], torch.full((2, 4), 1.0, dtype=torch.float64), device)


@pytest.mark.parametrize("kernel", [True, False])
def test_padding_draws_nothing_and_is_not_looked_at(kernel: bool, device: torch.device) -> None:
    p = rows(4, 60, alive=1.0, sharpness=1.0, seed=3).view(2, 2, 60)
    p[1, 1] = torch.nan
    noise = NodeStreams([CounterRandomness.seeded(1), CounterRandomness.seeded(2)]).take([1, 1])
    with kernels_enabled(kernel):
        twice = attrs.evolve(noise, keys=noise.keys.repeat(2, 1), made=noise.made.repeat(2, 1))
        draws = ChildDraws(p.to(device), twice, np.array([[3, 3], [3, -1]]), most=3)
        tokens = draws.tokens
    assert draws.left[1, 1] == 0
    assert (tokens[1, 1] == -1).all()
    assert (np.delete(tokens.reshape(4, 3), 3, 0) >= 0).all()


def test_rows_that_hold_nothing_draw_nothing(device: torch.device) -> None:
    p = torch.full((3, 20), 0.05)
    p[0] = 0
    p[1, 7] = float("nan")  # of padding, which is not looked at
    draws = agree(p, [2, -1, 2], tape_of(6, 2).view(3, 2), device)
    assert (draws.tokens[:2] == -1).all()


def test_rows_of_a_wider_tensor(device: torch.device) -> None:
    wide = rows(3, 64, alive=1.0, sharpness=1.0, seed=5)
    agree(wide[:, :33], [3, 3, 3], tape_of(9, 6).view(3, 3), device)


@pytest.mark.parametrize("wrong", [float("inf"), float("nan")])
@pytest.mark.parametrize("kernel", [True, False])
def test_what_cannot_be_drawn_from_is_refused(wrong: float, kernel: bool, device: torch.device) -> None:
    p = torch.ones(2, 5)
    p[1, 2] = wrong
    with kernels_enabled(kernel):
        with pytest.raises(ValueError, match="check the logits for NaN or infinity"):
            dispatch.draw(
                probs=p.to(device), limits=np.array([2, 2]), uniforms=tape_of(4, 1).view(2, 2).numpy()
            )
        with pytest.raises(InvalidDistribution, match=f"sums? to {wrong}"):
            draw_children(WithoutReplacement, p.to(device), count=1, rng=TapeRandomness(tape_of(2, 1)))


POLICIES = [
    Chain(4),
    FixedTree(3, 3, 20),
    FixedTree(3, (4, 2, 1), 256),
    StaticTree("stree-a"),
    Sequoia(12),
    DynaTree(depth=3, budget=15, law="without-replacement"),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: type(policy).__name__)
def test_a_policy_grows_its_tree_with_one_launch_a_request(
    policy: TreePolicy, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches: list[int] = []

    def counted(**given: Any) -> reference.Draws:
        launches.append(len(given["probs"]))
        return drawn(**given)

    drawn = dispatch.draw_on_device
    monkeypatch.setattr(dispatch, "draw_on_device", counted)
    for seed in range(3):
        launches.clear()
        trees, after, requests = [], [], []
        for kernel in (True, False):
            rng = CounterRandomness.seeded(seed)
            growing, asked = by_distributions(policy.grow(3, rng), rng), list[int]()
            request = next(growing)
            with kernels_enabled(kernel):
                try:
                    while True:
                        asked.append(len(request))
                        p = rows(len(request), 40, alive=0.2, sharpness=1.0, seed=len(asked))
                        request = growing.send(p.to(device))
                except StopIteration as finished:
                    trees.append(finished.value)
            requests.append(asked)
            after.append(rng.uniforms(2).tolist())
        first, second = trees
        assert first.tokens.tolist() == second.tokens.tolist()
        assert first.parents.tolist() == second.parents.tolist()
        assert first.proposals.keys() == second.proposals.keys()
        assert launches == requests[0]
        assert after[0] == after[1]


def test_a_stream_of_no_uniforms_draws_node_after_node() -> None:
    p = rows(3, 9, alive=1.0, sharpness=1.0, seed=4)
    rng = TapeRandomness(tape_of(6, 1))
    wanted = [rng.without_replacement(probs, 2) for probs in p]
    found = draw_children(WithoutReplacement, p, count=2, rng=Stream(tape_of(6, 1)))  # type: ignore[abstract]
    assert [one.tokens for one in found] == wanted


class Stream(Randomness):
    """Chance that is no stream of uniforms."""

    def __init__(self, tape: Tensor) -> None:
        self.rng = TapeRandomness(tape)

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        return self.rng.without_replacement(p, k)


@pytest.mark.parametrize(
    ("p", "reason"),
    [
        (torch.ones(1, 5, dtype=torch.float64), "its distributions are torch.float64"),
        (torch.ones(5, 2).T, "not contiguous along its last axis"),
        (torch.ones(1, 1).expand(1, 2**19 + 1), "its vocabulary has 524289 tokens"),
    ],
)
def test_blocks_take_the_rest(
    p: Tensor, reason: str, caplog: pytest.LogCaptureFixture, device: torch.device
) -> None:
    limits = np.ones(len(p), dtype=np.int64)
    with frames.reference_serves(reason, caplog):
        draws = dispatch.draw(probs=p.to(device), limits=limits, uniforms=np.zeros((len(p), 1)))
    assert (draws.tokens[0].tolist(), draws.chances[0].tolist()) == ([0], [1.0])
