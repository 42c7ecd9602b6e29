"""Siblings judged as one set: the law of drawn sets, and the proof by times."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import CounterRandomness, IncompatibleStrategy, TapeRandomness, TokenTree, WithoutReplacement
from draftwood.laws.set_laws import FixedTimeSet, time_of
from draftwood.protocols.compatibility import check_strategy_fits
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.orders import race_flows
from draftwood.strategies.verifiers.orders.race_laws import Given
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import assert_lossless, check_strategy, enumerate_outcomes
from draftwood.testing.models.arrival_times import arrival_density, arrival_grid
from draftwood.testing.models.proof_models import narrow_models, proof_models
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.models.tree_shapes import ShapeTrees
from draftwood.testing.proofs.round_proof import round_deviation
from tests.strategies.one_level import one_level
from tests.strategies.set_flows import chances, nodes

LEAF = ()


SETS = [
    (((LEAF,) * 3), (4,), 4),
    (((LEAF,) * 3), (5,), 5),
    (((LEAF,), LEAF, LEAF), (4, 2), 4),
    (((LEAF, LEAF), LEAF, LEAF), (4, 3), 4),
    (((LEAF, LEAF), (LEAF, LEAF)), (4, 3), 4),
]


@pytest.mark.parametrize(("shape", "open_tokens", "vocab"), SETS)
def test_on_trees_of_drawn_sets_the_targets_law_comes_out(shape, open_tokens, vocab):
    toys = narrow_models(3, open_tokens, vocab_size=vocab, target_support=3)
    trees = ShapeTrees(shape, FixedTimeSet, toys.drafts[:1])
    assert round_deviation(trees, RaceTraversal(), toys.target).error <= 1e-12


@pytest.fixture
def last_apart(monkeypatch):
    """The last sibling is told apart at every node, not only where a flow misses its bound."""
    served = race_flows.Tables.served

    def always_apart(tables, wanted, last_apart=False):
        return served(tables, wanted, last_apart=True)

    monkeypatch.setattr(race_flows.Tables, "served", always_apart)


@pytest.mark.parametrize("offered", ["all offered", "some offered"])
@pytest.mark.parametrize(("shape", "open_tokens", "vocab"), SETS[1:])
def test_and_with_the_last_sibling_apart(shape, open_tokens, vocab, offered, last_apart, monkeypatch):
    if offered == "some offered":
        monkeypatch.setattr(race_flows, "WHOLE", 0)
        monkeypatch.setattr(race_flows, "LEFT_OUT", 0.3)
        monkeypatch.setattr(race_flows, "LIGHT", 1e9)
    test_on_trees_of_drawn_sets_the_targets_law_comes_out(shape, open_tokens, vocab)


@pytest.mark.parametrize(
    ("shape", "open_tokens"),
    [
        (((LEAF,), LEAF), (3, 1)),
        (((LEAF, LEAF), LEAF), (3, 2)),
        pytest.param(((LEAF,), LEAF, LEAF), (4, 1), marks=pytest.mark.thorough),
        pytest.param(((LEAF, LEAF), LEAF, LEAF), (4, 2), marks=pytest.mark.thorough),
    ],
)
def test_above_children_the_targets_law_comes_out_at_every_time(shape, open_tokens):
    toys = narrow_models(3, open_tokens, vocab_size=4, target_support=2)
    trees = ShapeTrees(shape, WithoutReplacement, toys.drafts[:1])
    assert round_deviation(trees, RaceTraversal(), toys.target).error <= 1e-12


def test_and_at_every_time_with_the_last_sibling_apart(last_apart):
    test_above_children_the_targets_law_comes_out_at_every_time(((LEAF,), LEAF, LEAF), (3, 1))


def test_the_loop_writes_the_targets_law_from_sets():
    policy = FixedTree(1, 2, law=FixedTimeSet)
    toys = proof_models(5)
    assert_lossless(policy, RaceTraversal(), target=toys.target, drafter=toy_drafter(policy, *toys.drafts))


def test_every_check_of_a_policy_that_draws_sets_passes():
    check_strategy(FixedTree(1, 2, law=FixedTimeSet), models=1)


@given(node=nodes(), count=st.integers(1, 6))
@settings(max_examples=30, deadline=None)
def test_a_set_has_the_product_of_its_odds_in_any_order(node, count):
    p = torch.from_numpy(node[0])
    law: dict[tuple[int, ...], float] = {}
    for weight, drawn in enumerate_outcomes(lambda rng: FixedTimeSet.draw(p, count=count, rng=rng).tokens):
        law[tuple(drawn)] = law.get(tuple(drawn), 0.0) + weight
    count = min(count, len(p))
    odds = FixedTimeSet(p, count).odds
    sets = chances(Given(torch.from_numpy(odds), count))
    for tokens, chance in law.items():
        assert chance == pytest.approx(sets[tuple(sorted(tokens))] / math.factorial(count), abs=1e-12)
    if count < len(p):
        assert (odds / (1 + odds)).sum() == pytest.approx(count, abs=1e-6)


def test_the_time_is_found_where_one_token_is_nearly_certain():
    p = np.array([1 - 1e-11, 6e-12, 4e-12])
    assert (1 - np.exp(-p * time_of(p, 2))).sum() == pytest.approx(2, abs=1e-9)


def test_verifiers_that_go_one_by_one_refuse_sets_by_name():
    policy = FixedTree(1, 2, law=FixedTimeSet)
    check_strategy_fits(policy, RaceTraversal())
    for verifier in (RecursiveRejection(), Traversal()):
        with pytest.raises(IncompatibleStrategy, match=r"law FixedTimeSet of FixedTree.*race-traversal"):
            check_strategy_fits(policy, verifier)


def test_adaptive_trees_are_refused():
    with pytest.raises(IncompatibleStrategy, match="adaptive trees of DySpec"):
        check_strategy_fits(DySpec(4), RaceTraversal())


def tree_of(tokens, proposal):
    parents = [-1] + [0] * len(tokens)
    return TokenTree(torch.tensor([0, *tokens]), torch.tensor(parents), {0: proposal})


def test_a_set_that_lost_a_member_is_judged_as_drawn():
    """Its first members still have their conditionals; the whole set's law would be wrong."""
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    target = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)

    def first(rng):
        tokens = FixedTimeSet.draw(p, count=3, rng=rng).tokens[:2]
        return (
            RaceTraversal().verify(tree_of(tokens, FixedTimeSet(p, 3)), target.expand(3, 4), rng).emitted[0]
        )

    law = torch.zeros(4, dtype=torch.float64)
    for weight, token in enumerate_outcomes(first):
        law[token] += weight
    assert (law - target).abs().max() <= 1e-12


@pytest.mark.parametrize("law", [WithoutReplacement, FixedTimeSet])
@pytest.mark.parametrize(
    "draft",
    [
        [1.0, 1e-200, 1e-250, 1e-251],
        [0.5, 0.5, 1e-200, 1e-220],
        [1.0, 1e-9, 1e-40],
        pytest.param([1.0, 1e-9, 1e-40, 1e-41], marks=pytest.mark.thorough),
    ],
)
def test_next_to_certain_drafts_keep_the_law(law, draft):
    draft = torch.tensor(draft, dtype=torch.float64)
    target = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)[: len(draft)]
    target = target / target.sum()
    for count in range(2, len(draft)):
        with np.errstate(all="raise", under="ignore"):
            emitted, _ = one_level(RaceTraversal(), law, target, draft / draft.sum(), count)
        assert (emitted - target).abs().max() <= 1e-12


@pytest.mark.thorough
@pytest.mark.parametrize("count", [3, 8])
def test_a_level_of_a_real_size_emits_the_targets_law(count):
    """Counts of 2,000 first tokens, by chi-square over the likeliest tokens and all others."""
    generator = torch.Generator().manual_seed(count)
    noise = 2 * torch.randn(2, 300, generator=generator, dtype=torch.float64)
    target, draft = noise[0].softmax(-1), (noise[0] * 0.8 + noise[1] * 0.6).softmax(-1)
    rng, counts = CounterRandomness.seeded(count), torch.zeros(300)
    for _ in range(2000):
        tokens = rng.without_replacement(draft, count)
        outcome = RaceTraversal().verify(
            tree_of(tokens, WithoutReplacement(draft)), target.expand(count + 1, -1), rng
        )
        counts[outcome.emitted[0]] += 1
    order = target.argsort(descending=True)
    observed = torch.cat([counts[order[:30]], counts[order[30:]].sum()[None]]).double()
    expected = 2000 * torch.cat([target[order[:30]], target[order[30:]].sum()[None]])
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert chi_square < 30 + 6 * math.sqrt(60)


@given(rates=st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
@settings(deadline=None)
def test_times_of_arrival_are_a_law_with_the_right_mean(rates):
    times, weights = arrival_grid(tuple(rates))
    assert math.fsum(weights) == pytest.approx(1, abs=1e-10)
    mean = math.fsum(t * w for t, w in zip(times, weights, strict=True))
    assert mean == pytest.approx(sum(1 / rate for rate in rates), rel=1e-9)


def test_the_density_of_an_arrival_is_the_textbooks():
    times = np.array([0.01, 0.7, 3.0, 40.0])
    rates = [1.0, 0.4, 0.15]
    textbook = sum(
        math.prod(rates) * np.exp(-one * times) / math.prod(other - one for other in rates if other != one)
        for one in rates
    )
    assert np.allclose(arrival_density(times, rates), textbook, rtol=1e-9, atol=0)
    slow = arrival_density(np.array([1e12]), [1.0, 1e-12])
    assert slow[0] == pytest.approx(1e-12 * math.exp(-1), rel=1e-9)


def test_all_rates_share_the_points_of_the_grid():
    points = [set(arrival_grid(rates)[0]) for rates in ((1.0, 0.5, 0.2), (1.0, 0.9, 0.85))]
    assert len(points[0] & points[1]) > 20


class OneTape(TapeRandomness):
    """Nodes draw from the tape itself."""

    def nodes(self, n):
        return [self] * n


def test_a_time_of_zero_draws_no_nonsense():
    p = torch.tensor([0.4, 0.3, 0.2, 0.1], dtype=torch.float64)
    for u in (0.0, 1 - 2**-53):
        outcome = RaceTraversal().verify(
            tree_of([0, 1, 2], WithoutReplacement(p)),
            p.flip(0).expand(4, 4),
            OneTape(torch.full((40,), u, dtype=torch.float64)),
        )
        assert 0 <= outcome.extra < 4
