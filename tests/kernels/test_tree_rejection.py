"""Recursive rejection on the device, number by number that of the verification stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.kernels.host_rule import host_walk
from draftwood import (
    CounterRandomness,
    InvalidDistribution,
    InvalidInput,
    Outcome,
    PerChild,
    Proposal,
    Randomness,
    SamplingParams,
    TapeRandomness,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk
from draftwood.kernels.tree_rejection import dispatch
from draftwood.laws.randomness import UniformRandomness
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.batched.on_device import tree_case
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyBackend
from draftwood.testing.checks.strategy_checks import checks_for
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder
from tests.kernels import frames
from tests.kernels.judged_trees import DRAFTS, LAWS, TARGETS, distributions, grown, placed, tape_of
from tests.kernels.tree_cases import case_of
from tests.strategies import plain

pytestmark = pytest.mark.triton


def judged(
    tree: TokenTree, targets: Tensor, uniforms: Tensor, *, kernel: bool, device: torch.device
) -> tuple[Outcome, int]:
    """The outcome, and how many uniforms it took."""
    rng = TapeRandomness(uniforms)
    with kernels_enabled(kernel), pytest.MonkeyPatch.context() as patch:
        if kernel:  # from here on the plain verifier is a mistake
            patch.setattr(TreeWalk, "verify", None)
            tree, targets = placed(tree, device), targets.to(device)
        return RecursiveRejection().verify_rows([tree], [targets], [rng])[0], rng.used


def agree(tree: TokenTree, targets: Tensor, uniforms: Tensor, device: torch.device) -> Walk:
    """The kernel does what the host rule and the textbook do, draw by draw, but for ties; what it does."""
    found, used = judged(tree, targets, uniforms, kernel=True, device=device)
    walk = Walk(tuple(found.path), found.extra, found.bonus, used)
    coins = plain.Coins(uniforms.tolist())
    exact = plain.recursive_rejection(tree, targets, coins), coins.used
    production = judged(tree, targets, uniforms, kernel=False, device=device)
    in_float64 = host_walk(RecursiveRejection(), case_of(tree, targets, uniforms))
    # A residual that has lost most of its mass carries 1e-7 of rounding to about 1e-5 of a probability.
    assert coins.near <= 1e-5 or (exact == production == (found, used) and in_float64 == walk)
    return walk


@settings(max_examples=40)
@given(
    nodes=st.integers(1, 64),
    vocab=st.sampled_from([2, 3, 7, 50, 1023, 1025, 3000]),
    laws=st.sampled_from([*([law] for law in LAWS), LAWS]),
    draft=st.sampled_from(DRAFTS),
    target=st.sampled_from(TARGETS),
    seed=st.integers(0, 2**32),
)
def test_as_the_plain_verifier_judges(
    nodes: int,
    vocab: int,
    laws: list[type[Proposal]],
    draft: str,
    target: str,
    seed: int,
    device: torch.device,
) -> None:
    tree, targets = grown(nodes, vocab, laws=laws, draft=draft, target=target, seed=seed)
    agree(tree, targets, tape_of(len(tree), seed + 1), device)


def test_a_large_vocabulary(device: torch.device) -> None:
    tree, targets = grown(20, 5000, laws=LAWS, draft="smooth", target="far", seed=4)
    agree(tree, targets, tape_of(20, 2), device)


@pytest.mark.parametrize("law", LAWS)
def test_the_ends_of_the_unit_interval(law: type[Proposal], device: torch.device) -> None:
    # 1 is what a product with the total may round to.
    tree, targets = grown(15, 40, laws=[law], draft="sharp", target="near", seed=8)
    for u in (0.0, 1.0):
        agree(tree, targets, torch.full((15,), u, dtype=torch.float64), device)


def one_node(tokens: list[int], proposal: Proposal) -> TokenTree:
    tree = TreeBuilder(0)
    tree.add_children(0, tokens, proposal)
    return tree.finish()


@pytest.mark.parametrize(
    ("target", "uniforms", "walk"),
    [
        ([0.25, 0.25, 0.5], [0.5, 0.25], Walk((0,), 2, False, 2)),
        ([0.5, 0.25, 0.25], [0.5, 0.5], Walk((0, 1), 1, True, 2)),
    ],
)
def test_a_uniform_on_a_border_belongs_to_what_follows(
    target: list[float], uniforms: list[float], walk: Walk, device: torch.device
) -> None:
    tree = one_node([0], WithReplacement(torch.tensor([0.5, 0.25, 0.25])))
    targets = torch.tensor(target).repeat(2, 1)
    found, used = judged(tree, targets, torch.tensor(uniforms).double(), kernel=True, device=device)
    assert (found.path, found.extra, found.bonus, used) == (walk.path, walk.extra, walk.bonus, walk.used)


@pytest.mark.parametrize("law", LAWS)
def test_many_siblings_fail(law: type[Proposal], device: torch.device) -> None:
    for seed in range(4):
        chance, rng = torch.Generator().manual_seed(seed), CounterRandomness.seeded(seed)
        p = distributions("smooth", 7, 12, chance)
        (drawn,) = draw_children(law, p[None] if law is PerChild else p[:1], count=7, rng=rng)
        targets = distributions("smooth", 8, 12, chance)
        # High enough to reject a child unless its chance is 1 or near it.
        agree(one_node(drawn.tokens, drawn.proposal), targets, 0.8 + tape_of(8, seed) / 5, device)


@pytest.mark.parametrize("law", [WithoutReplacement, WithReplacement])
def test_what_is_left_stays_when_nothing_would_be(law: Any, device: torch.device) -> None:
    # The target is the draft, and the children are tokens that neither has: every residual vanishes.
    p = torch.tensor([0.5, 0.0, 0.25, 0.0, 0.0, 0.25])
    found = agree(one_node([1, 3, 4], law(p)), p.repeat(4, 1), torch.tensor([0.6, 0.9, 0.9]).double(), device)
    assert found == Walk((0,), 2, False, 1)


def test_what_a_child_left_stays_when_the_next_leaves_nothing(device: torch.device) -> None:
    p = torch.tensor([0.5, 0.0, 0.5, 0.0, 0.0])
    other = torch.tensor([0.0, 1.0, 0.0, 0.0, 0.0])
    tree = one_node([1, 3, 4], PerChild((other, p, p)))
    found = agree(tree, p.repeat(4, 1), torch.tensor([0.6]).double(), device)
    assert found == Walk((0,), 2, False, 1)


def test_rows_in_one_launch(device: torch.device) -> None:
    rows = []
    for seed, nodes in enumerate([5, 1, 40, 13]):
        tree, targets = grown(nodes, 33, laws=LAWS, draft="smooth", target="near", seed=seed)
        row = tree_case(tree, targets, tape_of(nodes, seed))
        assert row is not None
        rows.append(row)
    wanted = [host_walk(RecursiveRejection(), row) for row in rows]
    assert None not in wanted
    # A tape that ends, and a target that is none, leave the other rows as they are.
    rows.append(replace(rows[2], uniforms=rows[2].uniforms[:1]))
    rows.append(replace(rows[0], targets=torch.full_like(rows[0].targets, float("nan"))))
    wanted += [None, None]
    assert [host_walk(RecursiveRejection(), row) for row in rows[4:]] == [None, None]
    placed = [
        replace(
            row,
            targets=row.targets.to(device),
            laws=[None if law is None else law.to(device) for law in row.laws],
        )
        for row in rows
    ]
    assert dispatch.walk(TreeArrays.of(placed)) == wanted


def counted_launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every launch from here on."""
    launches: list[int] = []
    walk = dispatch.walk

    def counted(trees: TreeArrays) -> list[Walk | None]:
        launches.append(len(trees.counts))
        return walk(trees)

    monkeypatch.setattr(dispatch, "walk", counted)
    return launches


def test_a_rounds_rows_are_judged_in_one_launch_as_each_alone(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    launches = counted_launches(monkeypatch)
    verifier, trees, targets = RecursiveRejection(), [], []
    # One launch takes one vocabulary.
    for seed, (nodes, vocab) in enumerate([(5, 33), (1, 33), (40, 33), (13, 33), (22, 33), (8, 34)]):
        tree, rows = grown(nodes, vocab, laws=LAWS, draft="smooth", target="near", seed=seed)
        trees.append(placed(tree, device))
        targets.append(rows.to(device))
    # No kernel takes rows of this dtype; its neighbours go to the device all the same.
    targets[3] = targets[3].double()

    def streams() -> list[UniformRandomness]:
        return [CounterRandomness.seeded(9), *(TapeRandomness(tape_of(40, seed)) for seed in range(1, 6))]

    wanted_streams, streams_after = streams(), streams()
    with kernels_enabled(False):
        wanted = verifier.verify_rows(trees, targets, wanted_streams)
    found = verifier.verify_rows(trees, targets, streams_after)
    assert found == wanted == [verifier.verify(*row) for row in zip(trees, targets, streams(), strict=True)]
    assert launches == [4]
    assert [s.uniforms(3).tolist() for s in streams_after] == [s.uniforms(3).tolist() for s in wanted_streams]


class Single(ToyBackend):
    """Its logits are as kernels take them, and where they run."""

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        logits = super().extend(tokens, parents, counts).float()
        return logits.to("cuda" if torch.cuda.is_available() else "cpu")


def test_a_decoder_has_one_launch_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    one = decoder(FixedTree(2, 2), draft=ModelDrafter(Single(DRAFT)), target=Single(TARGET))
    decode = partial(
        one.generate,
        PROMPTS,
        max_new_tokens=8,
        sampling=SamplingParams(temperature=1.0),
        seed=[5, 6, 7],
        return_dict_in_generate=True,
    )
    with kernels_enabled(False):
        wanted = decode()
    launches = counted_launches(monkeypatch)
    monkeypatch.setattr(TreeWalk, "verify", None)  # from here on the plain verifier is a mistake
    found = decode()
    assert found.tokens == wanted.tokens
    assert launches == [len(one.rows) for one in found.statistics.rounds]
    assert launches[0] == len(PROMPTS)


def test_rows_with_one_stream_are_judged_one_after_another(device: torch.device) -> None:
    tree, targets = grown(30, 20, laws=LAWS, draft="smooth", target="far", seed=3)
    trees, rows = [placed(tree, device)] * 2, [targets.to(device)] * 2
    shared, other = TapeRandomness(tape_of(60, 1)), TapeRandomness(tape_of(60, 1))
    wanted = [RecursiveRejection().verify(trees[0], rows[0], other) for _ in range(2)]
    assert RecursiveRejection().verify_rows(trees, rows, [shared] * 2) == wanted
    assert shared.used == other.used


def test_a_row_that_cannot_be_judged_is_complained_of(device: torch.device) -> None:
    tree, targets = grown(9, 12, laws=[WithoutReplacement], draft="smooth", target="near", seed=2)
    rows = [targets.to(device), torch.full_like(targets, torch.nan).to(device)]
    with pytest.raises(InvalidDistribution):
        RecursiveRejection().verify_rows(
            [placed(tree, device)] * 2, rows, [CounterRandomness.seeded(row) for row in range(2)]
        )


def test_the_harness_proves_rows_judged_together() -> None:
    dict(checks_for(RecursiveRejection(), models=15))["together"]()


def test_the_stream_goes_on_where_the_plain_verifier_would(device: torch.device) -> None:
    tree, targets = grown(30, 20, laws=LAWS, draft="smooth", target="near", seed=6)
    after = []
    for kernel in (True, False):
        rng = CounterRandomness.seeded(5)
        with kernels_enabled(kernel):
            outcome = RecursiveRejection().verify_rows([tree], [targets], [rng])
        after.append((outcome, rng.uniforms(3).tolist()))
    assert after[0] == after[1]


@pytest.mark.parametrize(
    ("draft", "target", "uniforms", "error"),
    [
        ([0.5, 0.6], [0.5, 0.5], 9, "The draft distribution of WithoutReplacement sums to 1.1"),
        ([1.5, -0.5], [0.5, 0.5], 9, "holds -0.5"),
        ([0.5, float("nan")], [0.5, 0.5], 9, "sums to nan"),
        ([0.5, 0.5], [0.0, 0.0], 9, "Cannot draw from weights that sum to 0"),
        ([0.5, 0.5], [0.5, float("inf")], 9, "Cannot draw from weights that sum to inf"),
        ([0.5, 0.5], [0.5, 0.5], 1, "The tape of 1 uniforms is used up at 1"),
    ],
)
def test_errors_are_those_of_the_plain_verifier(
    draft: list[float], target: list[float], uniforms: int, error: str
) -> None:
    tree = one_node([0], WithoutReplacement(torch.tensor(draft)))
    rng = TapeRandomness(torch.full((uniforms,), 0.9, dtype=torch.float64))
    with pytest.raises((InvalidDistribution, InvalidInput), match=error):
        RecursiveRejection().verify_rows([tree], [torch.tensor([target, target])], [rng])


def test_the_plain_verifier_takes_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "walk", None)
    tree, targets = grown(9, 12, laws=[WithoutReplacement], draft="smooth", target="near", seed=2)
    uniforms = tape_of(9, 1)
    wanted = plain.recursive_rejection(tree, targets, plain.Coins(uniforms.tolist()))
    laws: Mapping[int, Any] = tree.proposals
    double = attrs.evolve(
        tree, proposals={node: WithoutReplacement(law.p.double()) for node, law in laws.items()}
    )
    reason = "tree_rejection: runs the reference, because its distributions are torch.float64"

    def judge(tree: TokenTree, targets: Tensor, rng: Randomness) -> Outcome:
        return RecursiveRejection().verify_rows([tree], [targets], [rng])[0]

    with frames.reference_serves(reason, caplog):
        assert judge(double, targets.double(), TapeRandomness(uniforms)) == wanted
    assert judge(double, targets, TapeRandomness(uniforms)) == wanted
    coin = Coin(TapeRandomness(uniforms))  # type: ignore[abstract]
    assert judge(tree, targets, coin) == wanted


@attrs.frozen
class Coin(Randomness):
    """Chance that is no stream of uniforms."""

    rng: TapeRandomness

    def accept(self, p: float) -> bool:
        return self.rng.accept(p)

    def choose(self, p: Tensor) -> int:
        return self.rng.choose(p)


def test_rows_that_do_not_fit(device: torch.device) -> None:
    tree, targets = grown(9, 12, laws=[WithoutReplacement], draft="smooth", target="near", seed=2)
    row = tree_case(tree, targets.to(device), tape_of(9, 1))
    assert row is not None
    for wrong, message in (
        (replace(row, parents=row.parents[1:]), "9 tokens, 8 parents"),
        (replace(row, targets=row.targets.double()), "is torch.float64 on"),
        (replace(row, targets=row.targets[:, :11].clone()), "of 12 tokens is torch.float32"),
        (replace(row, targets=row.targets.T.contiguous().T), "has stride 9; make it contiguous"),
    ):
        with pytest.raises(ValueError, match=message):
            TreeArrays.of([wrong])
