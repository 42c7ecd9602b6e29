"""Race verification on the device: its flows by their definition, and its walks number by number."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
    Deterministic,
    InvalidDistribution,
    InvalidInput,
    Outcome,
    Randomness,
    SamplingParams,
    TapeRandomness,
    TokenTree,
    TreeBuilder,
    Verifier,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.kernels.race_flows import offered
from draftwood.kernels.race_flows import reference as race_flows
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, TreeCase, Undecidable, Walk
from draftwood.kernels.tree_race import dispatch, reference, rounds
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers import race_flows as production
from draftwood.strategies.verifiers.on_device import tree_case
from draftwood.strategies.verifiers.race_laws import Arrival, Pair
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.testing.checks import checks_for
from draftwood.testing.proof_models import narrow_models
from draftwood.testing.round_proof import round_deviation
from draftwood.testing.tree_shapes import ShapeTrees
from tests.framework.decoding import DRAFT, PROMPTS, TARGET, decoder
from tests.kernels import frames
from tests.kernels.judged_trees import LAWS, distributions, grown, placed, tape_of
from tests.kernels.test_tree_rejection import Single
from tests.kernels.test_tree_traversal import counted
from tests.thorough import every

pytestmark = pytest.mark.triton

LEAF = ()
MOST = dispatch.MOST


@contextmanager
def small(block: int, *, whole: int | None = None, heavy: int = 4, span: int = 32) -> Iterator[None]:
    """Programs that read `span` tokens in blocks; of a vocabulary above `whole` tokens, that many offered."""
    configurations = tuple(
        replace(
            one,
            constants={name: block if name == "BLOCK" else value for name, value in one.constants.items()},
        )
        for one in dispatch.CONFIGURATIONS
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "CONFIGURATIONS", configurations)
        patch.setattr(rounds, "SPAN", span)
        if whole is not None:
            patch.setattr(offered, "OFFERED", whole)
            patch.setattr(offered, "HEAVY", heavy)
        yield


def case_of(tree: TokenTree, targets: Tensor, tape: Tensor) -> TreeCase:
    case = tree_case(tree, targets, tape)
    assert case is not None
    return case


def on_device(case: TreeCase, device: torch.device) -> TreeCase:
    laws = [None if law is None else law.to(device) for law in case.laws]
    return replace(case, targets=case.targets.to(device), laws=laws)


def arrays_of(cases: Sequence[TreeCase], seed: int, device: torch.device) -> tuple[TreeArrays, Any]:
    """What `dispatch.walk` takes, with waits of `seed`."""
    trees = TreeArrays.of([on_device(case, device) for case in cases])
    return trees, np.random.default_rng(seed).exponential(size=(*trees.tokens.shape, MOST + 1))


def agree(cases: Sequence[TreeCase], seed: int, device: torch.device) -> list[Walk]:
    trees, waits = arrays_of(cases, seed, device)
    expected = [
        reference.walk(case, torch.from_numpy(waits[row, : len(case.tokens)]))
        for row, case in enumerate(cases)
    ]
    assert dispatch.walk(trees, waits) == expected
    return expected


@settings(max_examples=8)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=2),
    vocab=st.sampled_from([3, 7, 16, 40, 50]),
    draft=st.sampled_from(["smooth", "sharp", "sparse", "one-hot"]),
    target=st.sampled_from(["the draft", "near", "far", "one-hot"]),
    seed=st.integers(0, 2**32),
)
def test_as_the_reference_judges(
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


@dataclass(frozen=True, eq=False)
class Node:
    """A node with a draft and a target, fp32 `[vocab]`, its drawn tokens, and its waits `[MOST + 1]`."""

    draft: Tensor
    target: Tensor
    tokens: list[int]
    waits: Any

    @classmethod
    def of(cls, seed: int, *, vocab: int, count: int, draft: str = "smooth", target: str = "near") -> Node:
        chance = torch.Generator().manual_seed(seed)
        p, other = (distributions(kind, 1, vocab, chance)[0] for kind in (draft, "smooth"))
        tokens = CounterRandomness.seeded(seed).without_replacement(p, count)
        own = {"the draft": 1.0, "near": 0.7}.get(target, 0.0)
        return cls(
            p, own * p + (1 - own) * other, tokens, np.random.default_rng(seed).exponential(size=MOST + 1)
        )

    @property
    def factor(self) -> float:
        """By which weights are multiplied, in float64 from its own sums."""
        rest = self.draft.double().clone()
        rest[self.tokens] = 0
        left = float(rest.sum()) + np.append(self.draft.double().numpy()[self.tokens][::-1].cumsum()[::-1], 0)
        return float(1 / left[0] if len(self.tokens) == 2 else (self.waits[: len(left)] / left).sum())

    def law(self) -> Any:
        """As the plain verifier has it."""
        if len(self.tokens) == 2:
            return Pair(self.draft.double(), float(self.draft.double().sum()))
        return Arrival(self.draft.double(), len(self.tokens), self.factor)


def flows_on_device(nodes: Sequence[Node], device: torch.device) -> list[race_flows.Flows]:
    """What the kernels work out for nodes that are roots, at allowance 1."""
    cases, waits = [], np.zeros((len(nodes), 1 + MOST, MOST + 1))
    for row, node in enumerate(nodes):
        tree = TreeBuilder(0)
        tree.add_children(0, node.tokens, WithoutReplacement(node.draft))
        targets = node.target.expand(1 + len(node.tokens), -1).contiguous()
        cases.append(on_device(case_of(tree.finish(), targets, tape_of(20, row)), device))
        waits[row, 0] = node.waits
    trees = TreeArrays.of(cases)
    kernels = {one.kernel.split(":")[1]: one for one in dispatch.CONFIGURATIONS}
    made = rounds.Round.of(trees, waits[:, : trees.tokens.shape[1]], kernels=kernels)
    made.offer()
    made.allow()
    found = []
    for slot in range(len(nodes)):
        tokens, places = made.held["tokens"][slot].cpu(), made.held["places"][slot].cpu()
        flows, allowances = made.held["flows"][slot].cpu()
        order = places.argsort()
        order = order[tokens[order] >= 0]
        found.append(race_flows.Flows(tokens[order], flows[order], allowances[order]))
    return found


def chances(law: Any) -> dict[tuple[int, ...], float]:
    """Every set with its probability, as the definition reads."""
    n = len(law.weights)
    columns, weights = law.at(np.arange(n)), {}
    outside, inside = (np.zeros(n) if of is None else of for of in (columns.outside, columns.inside))
    for members in itertools.combinations(range(n), law.count):
        others = [token for token in range(n) if token not in members]
        mark = outside[others].sum() + inside[list(members)].sum()
        weights[members] = float(np.prod(columns.odds[list(members)]) * mark)
    total = math.fsum(weights.values())
    return {members: weight / total for members, weight in weights.items()}


def received(sets: dict[tuple[int, ...], float], flows: race_flows.Flows, vocab: int) -> Any:
    """What every token gets when the members of each set are tried in the order of `flows`."""
    place = {token: index for index, token in enumerate(flows.tokens.tolist())}
    got = np.zeros(vocab)
    for members, mass in sets.items():
        for token in sorted((token for token in members if token in place), key=place.__getitem__):
            allowance = float(flows.allowances[place[token]])
            got[token] += mass * allowance
            mass *= 1 - allowance
    return got


NODES = [(seed, count) for seed in range(2) for count in (2, 3, 4)]


@pytest.mark.parametrize("whole", [16, 8], ids=["all offered", "half of them offered"])
def test_every_token_receives_its_flow_and_no_more_than_its_target(whole: int, device: torch.device) -> None:
    vocab = 12
    nodes = [
        Node.of(seed, vocab=vocab, count=count, draft=("smooth", "sharp")[seed], target="near")
        for seed, count in NODES
    ]
    with small(8, whole=whole):
        found = flows_on_device(nodes, device)
    for node, flows in zip(nodes, found, strict=True):
        got, expected, target = (
            received(chances(node.law()), flows, vocab),
            np.zeros(vocab),
            node.target.double(),
        )
        expected[flows.tokens] = flows.flows
        assert len(flows.tokens) == min(whole, vocab)
        assert np.abs(got - expected).max() <= 1e-12
        assert (expected <= target.numpy() * (1 + 1e-14)).all()
        assert expected.sum() > 0.3


def test_a_nearly_certain_draft(device: torch.device) -> None:
    nodes = []
    for rest in (1e-3, 1e-7, 1e-11):
        p = torch.tensor(
            [1 - rest, 0.5 * rest, 0.3 * rest, 0.15 * rest, 0.05 * rest], dtype=torch.float64
        ).float()
        target = torch.tensor([0.1, 0.2, 0.3, 0.25, 0.15])
        waits = np.random.default_rng(0).exponential(size=MOST + 1)
        nodes += [Node(p, target, tokens, waits) for tokens in ([0, 2], [0, 1, 3])]
    with small(8):
        found = flows_on_device(nodes, device)
    for node, flows in zip(nodes, found, strict=True):
        expected = np.zeros(5)
        expected[flows.tokens] = flows.flows
        assert np.abs(received(chances(node.law()), flows, 5) - expected).max() <= 1e-12
        assert expected.sum() > 0.3


@pytest.mark.parametrize("allowance", [1.0, 0.4])
def test_the_reference_finds_the_flows_of_the_plain_verifier(allowance: float) -> None:
    for seed in range(30):
        chance = random.Random(seed)
        node = Node.of(
            seed,
            vocab=60,
            count=chance.choice([2, 3, 5, 8]),
            draft=chance.choice(["smooth", "sharp"]),
            target=chance.choice(["near", "far", "the draft"]),
        )
        law = node.law()
        plain = production.flows_of(law, node.target, 1 / allowance)
        found = race_flows.flows_of(
            node.draft,
            node.target,
            factor=torch.tensor(law.factor, dtype=torch.float64),
            count=len(node.tokens),
            allowance=allowance,
        )
        assert found.tokens.tolist() == plain.tokens.tolist()
        assert np.abs(found.flows.numpy() - plain.flows).max() <= 1e-9


@pytest.mark.parametrize("count", [2, 8])
def test_at_a_real_vocabulary_the_flows_come_near_to_those_of_the_plain_verifier(count: int) -> None:
    for seed in range(2):
        chance = torch.Generator().manual_seed(seed)
        logits = 5 * torch.randn(2, 128_000, generator=chance)
        target, draft = (row.softmax(-1) for row in (logits[0], 0.8 * logits[0] + 0.6 * logits[1]))
        tokens = CounterRandomness.seeded(seed).without_replacement(draft, count)
        law = Node(draft, target, tokens, np.random.default_rng(seed).exponential(size=MOST + 1)).law()
        factor = torch.tensor(law.factor, dtype=torch.float64)
        found = race_flows.flows_of(draft, target, factor=factor, count=count, allowance=1.0)
        assert len(found.tokens) == offered.OFFERED
        assert (found.flows <= target[found.tokens] * (1 + 1e-14)).all()
        assert float(found.flows.sum()) >= production.flows_of(law, target).flows.sum() - 2e-3


class Enumerated:
    """The chance of the reference, asked of a source of randomness."""

    def __init__(self, rng: Randomness) -> None:
        self.accept, self.choose, self.rng = rng.accept, rng.choose, rng

    def time(self, node: int, masses: Sequence[float]) -> float:
        return self.rng.arrival([mass / masses[0] for mass in masses]) / masses[0]


@contextmanager
def flows_once() -> Iterator[None]:
    """The reference works out a node's flows once for all drawn tokens: they do not look at those."""
    known: dict[Any, race_flows.Flows] = {}
    work_out = race_flows.flows_of

    def flows_of(draft: Tensor, target: Tensor, *, factor: Tensor, count: int, allowance: float) -> Any:
        key = (*draft.tolist(), *target.tolist(), f"{float(factor):.14e}", count, f"{allowance:.14e}")
        if key not in known:
            known[key] = work_out(draft, target, factor=factor, count=count, allowance=allowance)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "flows_of", flows_of)
        yield


@attrs.frozen
class ByReference(Verifier):
    """What the kernels are compared with, as a verifier."""

    laws = frozenset({WithoutReplacement})
    adaptive = False
    source = "draftwood"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        case = case_of(tree, target_probs, torch.zeros(0))
        path, extra = reference.judged(case, Enumerated(rng))
        return Outcome.of(tree, path, extra=extra, bonus=not tree.children(path[-1]))


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
    with small(1, whole=whole, heavy=1), flows_once():
        assert round_deviation(trees, ByReference(), toys.target).error <= 1e-12


def judged_together(
    rows: Sequence[tuple[TokenTree, Tensor, Tensor]], device: torch.device
) -> tuple[list[Outcome], list[int]]:
    """The outcomes, and how many numbers each took; from here on the plain verifier is a mistake."""
    rngs = [TapeRandomness(tape) for *_, tape in rows]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RaceTraversal, "verify", None)
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
        expected = [
            reference.walk(case, torch.from_numpy(waits[row, : len(case.tokens)]))
            for row, case in enumerate(cases[:3])
        ]
        for case in cases[3:]:
            with pytest.raises(Undecidable):
                reference.walk(case, torch.from_numpy(waits[0]))
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
            patch.setattr(RaceTraversal, "verify", None)  # from here on the plain verifier is a mistake
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
    reason = "tree_race: the reference serves it, because its distributions are torch.float64"
    with frames.reference_serves(reason, caplog):
        assert RaceTraversal().verify_rows([tree], [targets.double()], [TapeRandomness(tape)]) == [expected]
    (outcome,) = RootOnly().verify_rows([tree], [targets], [CounterRandomness.seeded(0)])
    assert outcome.path == (0,)
