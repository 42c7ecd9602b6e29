"""Race verification on the device: its walks, number by number and by the target's law."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from benchmarks.kernels.host_rule import flows_of_the_device, host_walk
from draftwood import (
    CounterRandomness,
    Deterministic,
    InvalidDistribution,
    InvalidInput,
    Outcome,
    SamplingParams,
    TapeRandomness,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.kernels.race_flows import offered
from draftwood.kernels.race_flows import reference as race_flows
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, TreeCase, Walk
from draftwood.kernels.tree_race import dispatch
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.testing.models.proof_models import narrow_models
from draftwood.testing.models.tree_shapes import ShapeTrees
from draftwood.testing.proofs.round_proof import round_deviation
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder
from tests.kernels import frames
from tests.kernels.judged_trees import LAWS, distributions, grown, placed, tape_of
from tests.kernels.race_cases import small
from tests.kernels.test_tree_rejection import Single
from tests.kernels.test_tree_traversal import counted
from tests.kernels.tree_cases import case_of, on_device
from tests.thorough import every

pytestmark = pytest.mark.triton

LEAF = ()
MOST = dispatch.MOST


def arrays_of(cases: Sequence[TreeCase], seed: int, device: torch.device) -> tuple[TreeArrays, Any]:
    """Returns the arguments of `dispatch.walk`, with waits of `seed`."""
    trees = TreeArrays.of([on_device(case, device) for case in cases])
    return trees, np.random.default_rng(seed).exponential(size=(*trees.tokens.shape, MOST + 1))


def agree(cases: Sequence[TreeCase], seed: int, device: torch.device) -> list[Walk]:
    """The kernels do what the host rule does by the flows that the device settles, draw by draw."""
    trees, waits = arrays_of(cases, seed, device)
    expected = host_walks(cases, waits)
    assert len(expected) == len(cases)
    assert dispatch.walk(trees, waits) == expected
    return expected


def host_walks(cases: Sequence[TreeCase], waits: Any) -> list[Walk]:
    """Returns the walks of the cases that the host rule judges, by the flows of the device."""
    with flows_of_the_device():
        walks = [
            host_walk(RaceTraversal(), case, of_row)
            for case, of_row in zip(cases, torch.from_numpy(waits), strict=True)
        ]
    return [walk for walk in walks if walk is not None]


@settings(max_examples=8)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    vocab=st.sampled_from([3, 7, 16, 40, 50]),
    draft=st.sampled_from(["smooth", "sharp", "sparse", "one-hot"]),
    target=st.sampled_from(["the draft", "near", "far", "one-hot"]),
    seed=st.integers(0, 2**32),
)
def test_as_the_host_rule_judges(
    sizes: list[int], vocab: int, draft: str, target: str, seed: int, device: torch.device
) -> None:
    cases = []
    for row, nodes in enumerate(sizes):
        tree, targets = grown(
            nodes, vocab, laws=[WithoutReplacement], draft=draft, target=target, seed=seed + row
        )
        cases.append(case_of(tree, targets, tape_of(3 * nodes + 1, seed + row)))
    # Of the larger ones some tokens are offered alone, in several blocks.
    with small(16, whole=32):
        agree(cases, seed, device)


@contextmanager
def flows_once() -> Iterator[None]:
    """The reference of a node's flows works them out once for all drawn tokens: they do not look at those."""
    known: dict[Any, race_flows.Flows] = {}
    work_out = race_flows.flows_of

    def flows_of(draft: Tensor, target: Tensor, *, factor: Tensor, count: int, allowance: float) -> Any:
        key = (*draft.tolist(), *target.tolist(), f"{float(factor):.14e}", count, f"{allowance:.14e}")
        if key not in known:
            known[key] = work_out(draft, target, factor=factor, count=count, allowance=allowance)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race_flows, "flows_of", flows_of)
        yield


@pytest.mark.parametrize("whole", [16, 3], ids=["all offered", "three of four offered"])
@pytest.mark.parametrize(
    ("shape", "open_tokens", "support"),
    [
        (((LEAF,), LEAF), (4, 2), 4),
        (((LEAF, LEAF), (LEAF, LEAF)), (4, 2), 2),
        (((LEAF,), LEAF), (2, 2), 4),  # all that can be drawn
        (((LEAF,), LEAF, LEAF), (4, 1), 2),
        pytest.param((LEAF, LEAF, LEAF), (4, 1), 4, marks=pytest.mark.thorough),
    ],
)
def test_the_targets_law_comes_out(whole: int, shape: Any, open_tokens: Any, support: int) -> None:
    toys = narrow_models(3, open_tokens, vocab_size=4, target_support=support)
    trees = ShapeTrees(shape, WithoutReplacement, toys.drafts[:1])
    with small(1, whole=whole, heavy=1), flows_once(), flows_of_the_device():
        assert round_deviation(trees, RaceTraversal(), toys.target).error <= 1e-12


def judged_together(
    rows: Sequence[tuple[TokenTree, Tensor, Tensor]], device: torch.device
) -> tuple[list[Outcome], list[int]]:
    """The outcomes, and how many numbers each took; from here on the plain verifier is a mistake."""
    rngs = [TapeRandomness(tape) for *_, tape in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TreeWalk, "verify", None)
        trees = [placed(tree, device) for tree, *_ in rows]
        outcomes = RaceTraversal().verify_rows(trees, [targets.to(device) for _, targets, _ in rows], rngs)
    return outcomes, [rng.used for rng in rngs]


def assert_as_the_plain_verifier(
    rows: Sequence[tuple[TokenTree, Tensor, Tensor]], device: torch.device
) -> list[Outcome]:
    rngs = [TapeRandomness(tape) for *_, tape in rows]
    expected = [
        RaceTraversal().verify(tree, targets, rng) for (tree, targets, _), rng in zip(rows, rngs, strict=True)
    ]
    assert judged_together(rows, device) == (expected, [rng.used for rng in rngs])
    return expected


def row_of(
    nodes: int, *, draft: str, target: str, seed: int, vocab: int = 40
) -> tuple[TokenTree, Tensor, Tensor]:
    tree, targets = grown(nodes, vocab, laws=[WithoutReplacement], draft=draft, target=target, seed=seed)
    return tree, targets, tape_of(2 * nodes + 1, seed)


@pytest.mark.parametrize("seed", every(2, range(6)))
def test_as_the_plain_verifier_judges(seed: int, device: torch.device) -> None:
    chance = random.Random(seed)
    rows = [
        row_of(
            chance.randint(1, 20),
            draft=chance.choice(["smooth", "sharp", "sparse"]),
            target=chance.choice(["near", "far", "the draft"]),
            seed=seed + row,
        )
        for row in range(3)
    ]
    with small(64):
        assert_as_the_plain_verifier(rows, device)


def shaped(shape: Any, seed: int, vocab: int = 24) -> tuple[TokenTree, Tensor, Tensor]:
    """A tree of `shape`, each node's children drawn from its own draft."""
    tree, chance, rng = TreeBuilder(0), torch.Generator().manual_seed(seed), CounterRandomness.seeded(seed)
    below, targets = [(0, shape)], []
    for node, subtrees in below:
        p, other = distributions("smooth", 2, vocab, chance)
        if subtrees:
            tokens = rng.without_replacement(p, len(subtrees))
            children = tree.add_children(node, tokens, WithoutReplacement(p))
            below += zip(children, subtrees, strict=True)
        targets.append(0.6 * p + 0.4 * other)
    return tree.finish(), torch.stack(targets), tape_of(40, seed)


CHAIN = ((((LEAF,),),),)
SHAPES = {
    "a chain": CHAIN,
    "[3, 1]": ((LEAF,),) * 3,
    "[2, 2]": ((LEAF,) * 2,) * 2,
    "chains of several lengths": (CHAIN, (LEAF,), LEAF, LEAF),
    "a fork below the first": ((((LEAF,), LEAF, LEAF),), (LEAF,)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_trees_of_a_shape_are_judged_as_the_plain_verifier_judges(shape: str, device: torch.device) -> None:
    with small(32):
        outcomes = assert_as_the_plain_verifier([shaped(SHAPES[shape], seed) for seed in range(6)], device)
    assert len({len(outcome.path) for outcome in outcomes}) > 1


def test_sixteen_siblings(device: torch.device) -> None:
    rows = [shaped((LEAF,) * MOST, seed, vocab=40) for seed in range(2)]
    with small(64):
        assert_as_the_plain_verifier(rows, device)


def test_children_that_are_all_that_can_be_drawn(device: torch.device) -> None:
    p = torch.zeros(20)
    p[[3, 7, 11]] = torch.tensor([0.5, 0.3, 0.2])
    rows = []
    for seed in range(8):
        tree = TreeBuilder(0)
        tree.add_children(0, CounterRandomness.seeded(seed).without_replacement(p, 3), WithoutReplacement(p))
        tree.add_children(
            1, [7], WithoutReplacement(torch.nn.functional.one_hot(torch.tensor(7), 20).float())
        )
        target = 0.9 * p + 0.1 * distributions("smooth", 1, 20, torch.Generator().manual_seed(seed))[0]
        rows.append((tree.finish(), target.repeat(5, 1), tape_of(12, seed)))
    with small(32):
        outcomes = assert_as_the_plain_verifier(rows, device)
    assert len({outcome.path for outcome in outcomes}) > 2


def test_fixed_tokens_without_siblings(device: torch.device) -> None:
    rows = []
    for seed in range(4):
        tree, p = TreeBuilder(0), distributions("smooth", 1, 20, torch.Generator().manual_seed(seed))[0]
        tree.add_children(0, [int(p.argmax())], Deterministic([int(p.argmax())], 20))
        tree.add_children(1, [2], WithReplacement(p))
        rows.append((tree.finish(), p.sqrt().div(p.sqrt().sum()).repeat(3, 1), tape_of(9, seed)))
    with small(32):
        assert_as_the_plain_verifier(rows, device)


def test_a_vocabulary_of_which_a_part_is_offered(device: torch.device) -> None:
    # What two programs read, in blocks as they are compiled.
    tree, targets = grown(5, 5000, laws=[WithoutReplacement], draft="sharp", target="near", seed=4)
    with small(1024, whole=2048, heavy=offered.HEAVY, span=4096):
        agree([case_of(tree, targets, tape_of(25, 4))], 4, device)


@pytest.mark.parametrize("place", [0.0, 1 - 2**-53])
def test_the_ends_of_the_unit_interval(place: float, device: torch.device) -> None:
    tree, targets, _ = row_of(9, draft="sharp", target="near", seed=8)
    with small(64):
        agree([case_of(tree, targets, torch.full((40,), place, dtype=torch.float64))], 8, device)


@pytest.mark.parametrize(
    ("tokens", "law"),
    [
        ([1, 2], WithReplacement),
        ([1, 1, 2], WithoutReplacement),
        (list(range(MOST + 1)), WithoutReplacement),
        ([1, 2, 3], Deterministic),
    ],
    ids=["with replacement", "twice the same", "too many", "fixed"],
)
def test_other_siblings_are_judged_by_the_plain_verifier(
    tokens: list[int], law: Any, monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    p = torch.full((20,), 0.05)
    tree = TreeBuilder(0)
    tree.add_children(0, tokens, Deterministic(tokens, 20) if law is Deterministic else law(p))
    other = (tree.finish(), p.repeat(len(tokens) + 1, 1), tape_of(40, 1))
    served = row_of(5, draft="smooth", target="near", seed=3, vocab=20)
    rows, rngs = [served, other, served], [TapeRandomness(tape_of(40, seed)) for seed in range(3)]
    expected = [
        RaceTraversal().verify(tree, targets, TapeRandomness(tape_of(40, seed)))
        for seed, (tree, targets, _) in enumerate(rows)
    ]
    launched: list[int] = []
    walk = dispatch.walk
    monkeypatch.setattr(
        dispatch, "walk", lambda trees, waits: launched.append(len(trees.counts)) or walk(trees, waits)
    )
    with small(32):
        found = RaceTraversal().verify_rows(
            [placed(tree, device) for tree, *_ in rows], [targets.to(device) for _, targets, _ in rows], rngs
        )
    assert found == expected
    assert launched == [2]


def test_rows_that_cannot_be_judged_leave_the_others_as_they_are(device: torch.device) -> None:
    cases = [case_of(*row_of(nodes, draft="smooth", target="near", seed=nodes)) for nodes in (5, 1, 12)]
    bad_law = [None if law is None else law * 2 for law in cases[2].laws]
    nowhere = [
        None if law is None else law.index_fill(0, torch.tensor(cases[0].tokens), 0) for law in cases[0].laws
    ]
    whole = [None if law is None else law / law.sum() for law in nowhere]
    cases += [
        replace(cases[2], uniforms=cases[2].uniforms[:1]),
        replace(cases[0], targets=torch.full_like(cases[0].targets, float("nan"))),
        replace(cases[2], laws=bad_law),
        replace(cases[0], laws=whole),
    ]
    with small(64):
        trees, waits = arrays_of(cases, 5, device)
        expected = host_walks(cases[:3], waits[:3])
        assert len(expected) == 3
        assert dispatch.walk(trees, waits) == [*expected, None, None, None, None]


@pytest.mark.parametrize(
    ("draft", "uniforms", "error"),
    [
        ([0.5, 0.6, 0.0], 9, "The draft distribution of WithoutReplacement sums to 1.1"),
        ([1.5, -0.5, 0.0], 9, "holds -0.5"),
        ([0.5, float("nan"), 0.5], 9, "sums to nan"),
        ([0.4, 0.4, 0.2], 1, "The tape of 1 uniforms is used up at 1"),
    ],
)
def test_errors_are_those_of_the_plain_verifier(draft: list[float], uniforms: int, error: str) -> None:
    tree = TreeBuilder(0)
    tree.add_children(0, [0, 1], WithoutReplacement(torch.tensor(draft)))
    rng = TapeRandomness(torch.full((uniforms,), 0.9, dtype=torch.float64))
    with small(16), pytest.raises((InvalidDistribution, InvalidInput), match=error):
        RaceTraversal().verify_rows([tree.finish()], [torch.tensor([[0.5, 0.5, 0.0]] * 3)], [rng])


def test_launches_grow_with_levels_alone(device: torch.device) -> None:
    rows = [row_of(nodes, draft="smooth", target="near", seed=3, vocab=17) for nodes in (12, 5)]
    counts = []
    for batch in (rows[:1], rows, [*rows, rows[1]]):
        with small(32), counted() as launched:
            agree([case_of(*row) for row in batch], 3, device)
        counts.append(launched)
    depth = int(rows[0][0].depths.max())
    assert counts[0] == counts[1] == counts[2]
    assert counts[0] == ["look", "weigh", *["allow"] * depth, *counts[0][2 + depth :]]
    assert set(counts[0][2 + depth :]) <= {"spare", "walk", "leave", "choose"}


def test_a_decoder_writes_the_same_text() -> None:
    for policy in (FixedTree(2, 2), StaticTree("3/1", sort=True)):
        one = decoder(
            policy, draft=ModelDrafter(Single(DRAFT)), target=Single(TARGET), verifier=RaceTraversal()
        )
        options: dict[str, Any] = {
            "max_new_tokens": 4,
            "sampling": SamplingParams(temperature=1.0),
            "seed": [5, 6, 7],
            "return_dict_in_generate": True,
        }
        with kernels_enabled(False):
            expected = one.generate(PROMPTS, **options)
        with small(64), pytest.MonkeyPatch.context() as patch:
            patch.setattr(TreeWalk, "verify", None)  # from here on the plain verifier is a mistake
            result = one.generate(PROMPTS, **options)
        assert result.tokens == expected.tokens


def test_rows_with_one_stream_are_judged_one_after_another(device: torch.device) -> None:
    tree, targets = grown(12, 20, laws=LAWS, draft="smooth", target="far", seed=3)
    trees, rows = [placed(tree, device)] * 2, [targets.to(device)] * 2
    shared, other = (TapeRandomness(tape_of(80, 3)) for _ in "ab")
    expected = [RaceTraversal().verify(trees[0], rows[0], other) for _ in range(2)]
    assert RaceTraversal().verify_rows(trees, rows, [shared] * 2) == expected
    assert shared.used == other.used


def test_the_harness_proves_rows_judged_together() -> None:
    with small(16):
        dict(checks_for(RaceTraversal(), models=2))["together"]()


@attrs.frozen
class RootOnly(RaceTraversal):
    """A variant that changes a step."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Any) -> Outcome:
        return Outcome.of(tree, [0], extra=rng.choose(target_probs[0]), bonus=len(tree) == 1)


def test_the_plain_verifier_takes_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatch, "walk", None)
    tree, targets, tape = row_of(9, draft="smooth", target="near", seed=2)
    expected = RaceTraversal().verify(tree, targets.double(), TapeRandomness(tape))
    reason = "tree_race: runs the reference, because its distributions are torch.float64"
    with frames.reference_serves(reason, caplog):
        assert RaceTraversal().verify_rows([tree], [targets.double()], [TapeRandomness(tape)]) == [expected]
    (outcome,) = RootOnly().verify_rows([tree], [targets], [CounterRandomness.seeded(0)])
    assert outcome.path == (0,)
