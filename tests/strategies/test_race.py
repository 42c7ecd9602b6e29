"""Siblings judged as one set: the flows of a node, the law of drawn sets, and the proof by times."""

import itertools
import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from draftwood import CounterRandomness, IncompatibleStrategy, TapeRandomness, TokenTree, WithoutReplacement
from draftwood.compatibility import check_strategy_fits
from draftwood.set_laws import FixedTimeSet, time_of
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers import race_flows
from draftwood.strategies.verifiers.race_flows import flows_of, flows_of_all
from draftwood.strategies.verifiers.race_laws import Arrival, Given, Pair
from draftwood.strategies.verifiers.race_order import masses_left, race_order
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import assert_lossless, check_strategy, enumerate_outcomes
from draftwood.testing.arrival_times import arrival_density, arrival_grid
from draftwood.testing.proof_models import narrow_models, proof_models
from draftwood.testing.round_proof import round_deviation
from draftwood.testing.small_strategies import toy_drafter
from draftwood.testing.tree_shapes import ShapeTrees
from tests.strategies.one_level import one_level

KINDS = ("pair", "arrival", "odds")
LEAF = ()


def some_law(kind, draft, count, time):
    draft = torch.from_numpy(draft)
    if kind == "pair":
        return Pair(draft)
    return Arrival(draft, count, time) if kind == "arrival" else Given(draft * time, count)


def chances(law):
    """Every set with its probability, as the definition reads."""
    n = len(law.weights)
    columns, weights = law.at(np.arange(n)), {}
    outside, inside = (np.zeros(n) if of is None else of for of in (columns.outside, columns.inside))
    for members in itertools.combinations(range(n), law.count):
        others = [token for token in range(n) if token not in members]
        mark = columns.beside + outside[others].sum() + inside[list(members)].sum()
        weights[members] = float(np.prod(columns.odds[list(members)]) * mark)
    total = math.fsum(weights.values())
    return {members: weight / total for members, weight in weights.items()}


def received(sets, flows, n):
    """What every token gets when the members of each set are tried in the order of `flows`."""
    place = {int(token): index for index, token in enumerate(flows.tokens)}
    got = np.zeros(n)
    for members, chance in sets.items():
        tried = sorted((token for token in members if token in place), key=place.__getitem__)
        for number, token in enumerate(tried, start=1):
            of = flows.last_allowances if number == len(members) else flows.allowances
            allowance = of[place[token]]
            got[token] += chance * allowance
            chance *= 1 - allowance
    return got


@st.composite
def nodes(draw, most=6):
    """A draft and a target, float64 `[n]`, the target's sum at most 1."""
    n = draw(st.integers(3, most))
    weight = st.sampled_from([1.0, 2.0, 1e-3, 1e-9]) | st.floats(1e-6, 1)
    draft, target = (np.array(draw(st.lists(weight, min_size=n, max_size=n))) for _ in "ab")
    if draw(st.booleans()):
        target[draw(st.integers(0, n - 1))] = 0
    return draft / draft.sum(), draw(st.sampled_from([1.0, 0.6])) * target / max(target.sum(), 1e-3)


def assert_received(law, target):
    flows = flows_of(law, torch.from_numpy(target))
    got = received(chances(law), flows, len(target))
    expected = np.zeros(len(target))
    expected[flows.tokens] = flows.flows
    assert np.abs(got - expected).max() <= 1e-12
    assert (expected <= target * (1 + 1e-14)).all()
    return flows


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(node=nodes(), count=st.integers(2, 4), time=st.sampled_from([0.3, 2.0, 9.0, 60.0]))
def test_every_token_receives_its_flow_and_no_more_than_its_target(kind, node, count, time):
    draft, target = node
    count = 2 if kind == "pair" else min(count, len(draft) - 1)
    assert_received(some_law(kind, draft, count, time), target)


@pytest.mark.parametrize(("kind", "count"), [("pair", 2), ("arrival", 2), ("arrival", 3), ("odds", 3)])
@pytest.mark.parametrize("seed", range(3))
def test_flows_are_exact_where_many_tokens_are_left_out(kind, count, seed, monkeypatch):
    monkeypatch.setattr(race_flows, "WHOLE", 0)
    monkeypatch.setattr(race_flows, "LEFT_OUT", 0.3)
    monkeypatch.setattr(race_flows, "LIGHT", 0.5)
    rng = np.random.default_rng(seed)
    draft, target = rng.dirichlet(np.full(60, 100.0)), rng.dirichlet(np.full(60, 0.5))
    flows = assert_received(some_law(kind, draft, count, 0.2), target)
    assert len(flows.tokens) < 40


@settings(max_examples=40, deadline=None)
@given(node=nodes())
def test_tokens_that_are_surely_drawn_receive_their_target(node):
    draft, target = node
    tokens = np.arange(len(draft) - 1)
    flows = flows_of_all(tokens, torch.from_numpy(target))
    got = received({tuple(tokens.tolist()): 1.0}, flows, len(draft))
    assert np.abs(got[tokens] - target[tokens]).max() <= 1e-14


def optimum(sets, target):
    """The most that members of the sets can receive, if no token gets more than its target."""
    columns = [(row, token) for row, members in enumerate(sets) for token in members]
    limits = np.zeros((len(sets) + len(target), len(columns)))
    for column, (row, token) in enumerate(columns):
        limits[row, column] = limits[len(sets) + token, column] = 1
    bounds = np.concatenate([list(sets.values()), target])
    return -linprog(-np.ones(len(columns)), A_ub=limits, b_ub=bounds, method="highs").fun


def losses(kind, seeds=30):
    """What the flows lose to the optimum of the law, over random nodes of eight tokens."""
    lost = []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        target = rng.dirichlet(np.ones(8))
        mix = (0.0, 0.3, 0.6)[seed % 3]
        draft = mix * target + (1 - mix) * rng.dirichlet(np.ones(8))
        count = 2 if kind == "pair" else 2 + seed % 4
        law = some_law(kind, draft, count, 1.5 * count)
        lost.append(optimum(chances(law), target) - flows_of(law, torch.from_numpy(target)).flows.sum())
    return lost


@pytest.mark.parametrize("kind", KINDS)
def test_a_node_comes_near_to_the_cut_of_its_law(kind):
    lost = losses(kind)
    assert min(lost) >= -1e-9
    assert max(lost) <= 0.05
    assert np.mean(lost) <= 0.006


@pytest.mark.parametrize("wrong", ["drawn order", "the served first"])
def test_another_order_loses_much_more(wrong, monkeypatch):
    """Any order is lossless, so that it is the right one shows in what is accepted alone."""
    ranks = {"drawn order": lambda key: np.arange(len(key)), "the served first": lambda key: np.argsort(-key)}
    plenty = race_flows._plenty
    monkeypatch.setattr(race_flows, "_ranked", ranks[wrong])
    monkeypatch.setattr(race_flows, "_plenty", lambda *node, last_apart=False: plenty(*node))
    assert np.mean(losses("arrival")) >= 0.01


def test_the_last_sibling_apart_brings_a_node_nearer_to_its_cut(monkeypatch):
    plenty = race_flows._plenty
    with_it = [np.mean(losses(kind)) for kind in KINDS]
    monkeypatch.setattr(race_flows, "_plenty", lambda *node, last_apart=False: plenty(*node))
    without = [np.mean(losses(kind)) for kind in KINDS]
    assert all(new <= 0.7 * old for new, old in zip(with_it, without, strict=True))


def nothing_behind(law):
    return law.light(torch.zeros(1, dtype=torch.float64)).of_sets(law.count, law.at(np.arange(1)).beside)


def gap_to_the_cut(seed, spread, count):
    """At a vocabulary of 8,000: the least cut between two places of the order, less what is accepted."""
    rng = np.random.default_rng(seed)
    logits = spread * rng.standard_normal((2, 8000))
    target, draft = (
        np.exp(row) / np.exp(row).sum() for row in (logits[0], logits[0] * 0.8 + logits[1] * 0.6)
    )
    tokens = np.lexsort((np.log(rng.random(8000)) / -draft,))[:count].tolist()
    time = sum(rng.exponential() / left for left in masses_left(torch.from_numpy(draft), tokens))
    law = some_law("pair" if count == 2 else "arrival", draft, count, time)
    flows = flows_of(law, torch.from_numpy(target))
    assert (flows.flows <= target[flows.tokens] * (1 + 1e-14)).all()
    assert (flows.allowances <= 1).all()
    order = np.argsort(-target / -np.expm1(-law.factor * draft))
    columns = law.at(order)
    tables = race_flows.Tables.of(columns, nothing_behind(law))
    passed = np.append(0, tables.arriving().cumsum())
    cut = (passed + np.append(target[order][::-1].cumsum()[::-1], 0)).min()
    return cut - flows.flows.sum()


@pytest.mark.parametrize("spread", [2.0, 4.0])
@pytest.mark.parametrize("count", [2, 3, 8])
def test_at_a_real_vocabulary_the_flows_come_near_to_their_cut(spread, count):
    gaps = [gap_to_the_cut(seed, spread, count) for seed in range(8)]
    assert min(gaps) >= -1e-9
    assert np.mean(gaps) <= 0.004


def real_node(seed, *, spread=3.0, vocab=32_000, count=8):
    """The law of `count` siblings and a target at temperature 0.6, float32 `[vocab]`."""
    generator = torch.Generator().manual_seed(seed)
    logits = spread / 0.6 * torch.randn(2, vocab, generator=generator)
    target, draft = (row.softmax(-1) for row in (logits[0], 0.9 * logits[0] + 0.19**0.5 * logits[1]))
    rng = CounterRandomness.seeded(seed)
    order: Any = race_order(rng.without_replacement(draft, count), WithoutReplacement(draft), rng)
    return order.law, target


def least_time(function, repetitions=7):
    """Seconds of the processor, so that other programs on the machine do not count."""
    times = []
    for _ in range(repetitions):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return min(times)


def test_a_node_of_eight_siblings_costs_no_more_than_three_softmaxes_over_a_tree():
    logits = torch.randn(64, 32_000)
    softmax = least_time(lambda: logits.softmax(-1))
    for seed in range(3):
        law, target = real_node(seed)
        assert least_time(lambda law=law, target=target: flows_of(law, target)) <= 3 * softmax


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_order_is_made_twice_at_most_and_settles_in_few_steps(count, monkeypatch):
    sweeps, steps = [], []
    made, arriving = race_flows.Tables.of, race_flows.Tables.arriving_apart
    monkeypatch.setattr(race_flows.Tables, "of", lambda *law: sweeps.append(1) or made(*law))
    monkeypatch.setattr(race_flows.Tables, "arriving_apart", lambda *law: steps.append(1) or arriving(*law))
    most = 0
    for seed in range(10):
        sweeps.clear()
        flows_of(*real_node(seed, count=count))
        most = max(most, len(sweeps))
    assert most <= 2
    assert len(steps) <= 10 * 8


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
    plenty = race_flows._plenty
    monkeypatch.setattr(race_flows, "_plenty", lambda *node, last_apart=False: plenty(*node, last_apart=True))


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
