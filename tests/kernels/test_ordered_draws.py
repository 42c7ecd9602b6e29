"""Draws without replacement on the device, number by number those of the draft stream."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood import (
    InvalidDistribution,
    InvalidInput,
    Randomness,
    TapeRandomness,
    CounterRandomness,
    TreePolicy,
    WithoutReplacement,
    draw_children,
)
from draftwood.kernels.ordered_draws import dispatch, reference
from draftwood.kernels.support import kernels_enabled
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.static_tree import StaticTree
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


def agree(
    p: Tensor, count: int | list[int], uniforms: Tensor, device: torch.device, total: int | None = None
) -> None:
    """The plain draws, the kernel's and the reference's are the same, and take the same uniforms."""
    plain, rng = TapeRandomness(uniforms), TapeRandomness(uniforms)
    with kernels_enabled(False):
        drawn = draw_children(WithoutReplacement, p, count=count, rng=plain, total=total)
    wanted = [(one.tokens, one.chances) for one in drawn]
    left_out: list[reference.Draws] = [([], [])] * (len(p) - len(wanted))
    assert reference.draw(probs=p, count=count, uniforms=uniforms, total=total) == wanted + left_out
    assert plain.used == sum(len(tokens) for tokens, _ in wanted)
    with pytest.MonkeyPatch.context() as patch, frames.kernel_alone(dispatch, "draw"):
        patch.setattr(TapeRandomness, "without_replacement", None)
        found = draw_children(WithoutReplacement, p.to(device), count=count, rng=rng, total=total)
    assert [(one.tokens, one.chances) for one in found] == wanted
    assert rng.used == plain.used
    for one, row in zip(found, p, strict=False):
        assert isinstance(one.proposal, WithoutReplacement)
        assert one.proposal.p.data_ptr() == row.data_ptr() or device.type != "cpu"


@settings(max_examples=15)
@given(
    nodes=st.integers(1, 4),
    vocab=st.sampled_from(VOCABULARIES),
    counts=st.integers(1, 7) | st.lists(st.integers(0, 5), min_size=4, max_size=4),
    total=st.none() | st.integers(0, 12),
    alive=st.sampled_from([1.0, 0.5, 0.0]),
    sharpness=st.sampled_from([0.0, 1.0, 6.0]),
    seed=st.integers(0, 2**32),
)
def test_as_the_plain_path_draws(
    nodes: int,
    vocab: int,
    counts: int | list[int],
    total: int | None,
    alive: float,
    sharpness: float,
    seed: int,
    device: torch.device,
) -> None:
    count = counts if isinstance(counts, int) else counts[:nodes]
    p = rows(nodes, vocab, alive=alive, sharpness=sharpness, seed=seed)
    agree(p, count, tape_of(28, seed + 1), device, total)


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

    def counted(**given: Any) -> list[reference.Draws]:
        launches.append(len(given["probs"]))
        return drawn(**given)

    drawn = dispatch.draw
    monkeypatch.setattr(dispatch, "draw", counted)
    for seed in range(3):
        launches.clear()
        trees, after, requests = [], [], []
        for kernel in (True, False):
            rng = CounterRandomness.seeded(seed)
            growing, asked = policy.grow(3, rng), list[int]()
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


@pytest.mark.parametrize(("nodes", "tape"), [(1, 2), (2, 3)])
def test_a_tape_serves_as_far_as_it_reaches(nodes: int, tape: int, device: torch.device) -> None:
    # Two tokens a node: the plain path takes fewer uniforms than the most there may be.
    p = torch.tensor([[0.5, 0.0, 0.5]]).repeat(nodes, 1).to(device)
    rng = TapeRandomness(tape_of(tape, 1))
    with pytest.raises(InvalidInput, match="used up") if nodes == 2 else nullcontext():
        (drawn,) = draw_children(WithoutReplacement, p, count=3, rng=rng)
        assert sorted(drawn.tokens) == [0, 2]


def test_what_cannot_be_drawn_from_is_complained_of(device: torch.device) -> None:
    p = torch.tensor([[0.5, 0.5], [torch.inf, 0.5]]).to(device)
    with pytest.raises(InvalidDistribution, match="weights that sum to inf"):
        draw_children(WithoutReplacement, p, count=1, rng=TapeRandomness(tape_of(2, 1)))


def test_the_plain_path_serves_where_no_kernel_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(**_: object) -> None:
        raise AssertionError("The kernel draws.")

    monkeypatch.setattr(dispatch, "draw", forbidden)
    p = rows(3, 9, alive=1.0, sharpness=1.0, seed=4)
    with kernels_enabled(False):
        wanted = draw_children(WithoutReplacement, p, count=2, rng=TapeRandomness(tape_of(6, 1)))
    for probs, rng in (
        (p.double(), TapeRandomness(tape_of(6, 1))),
        (p, Stream(tape_of(6, 1))),  # type: ignore[abstract]
    ):
        found = draw_children(WithoutReplacement, probs, count=2, rng=rng)
        assert [one.tokens for one in found] == [one.tokens for one in wanted]


class Stream(Randomness):
    """Chance that is no stream of uniforms."""

    def __init__(self, tape: Tensor) -> None:
        self.rng = TapeRandomness(tape)

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        return self.rng.without_replacement(p, k)


def test_too_few_uniforms(device: torch.device) -> None:
    with pytest.raises(ValueError, match="3 uniforms for 4 draws of 2 nodes; give one a draw"):
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
    with frames.reference_serves(reason, caplog):
        (tokens, chances), *_ = dispatch.draw(probs=p.to(device), count=1, uniforms=torch.zeros(2).double())
    assert (tokens, chances) == ([0], [1.0])
