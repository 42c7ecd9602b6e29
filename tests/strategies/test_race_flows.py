"""Flows of siblings that are judged as one set, compared with definition and optimum; their cost."""

import time
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from draftwood import CounterRandomness, WithoutReplacement
from draftwood.strategies.verifiers.orders import race_flows, race_sums
from draftwood.strategies.verifiers.orders.race_flows import flows_of, flows_of_all
from draftwood.strategies.verifiers.orders.race_order import RaceOrder, masses_left
from tests.strategies.set_flows import chances, nodes, received, some_law

KINDS = ("pair", "arrival", "odds")


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
    """Returns the loss of the flows against the optimum of the law, over random nodes of eight tokens."""
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
    """Any order is lossless, so only the acceptance shows that it is the right one."""
    ranks = {"drawn order": lambda key: np.arange(len(key)), "the served first": lambda key: np.argsort(-key)}
    monkeypatch.setattr(race_flows, "_ranked", ranks[wrong])
    monkeypatch.setattr(race_flows.Tables, "served", never_apart)
    assert np.mean(losses("arrival")) >= 0.01


served = race_flows.Tables.served


def never_apart(self, wanted, last_apart=False):
    return served(self, wanted)


def test_the_last_sibling_apart_brings_a_node_nearer_to_its_cut(monkeypatch):
    with_it = [np.mean(losses(kind)) for kind in KINDS]
    monkeypatch.setattr(race_flows.Tables, "served", never_apart)
    without = [np.mean(losses(kind)) for kind in KINDS]
    assert all(new <= 0.7 * old for new, old in zip(with_it, without, strict=True))


def test_the_last_sibling_is_told_apart_only_where_a_flow_misses_its_cut(monkeypatch):
    """At a node that meets its cut it would bring nothing, and cost on trees (docs/race-verification.md)."""
    cuts, flows, asked = [], [], []
    least_cut = race_sums.least_cut

    def noted(tables, wanted, last_apart=False):
        asked.append(last_apart)
        solution = served(tables, wanted, last_apart=last_apart)
        flows.append(solution.flows.sum())
        return solution

    monkeypatch.setattr(race_sums, "least_cut", lambda *of: cuts.append(least_cut(*of)) or cuts[-1])
    monkeypatch.setattr(race_flows.Tables, "served", noted)
    missed = []
    for seed in range(40):
        for seen in (cuts, flows, asked):
            seen.clear()
        flows_of(*real_node(seed, vocab=2000, count=3 + seed % 6))
        missed.append(flows[0] < cuts[0] - race_flows.NEAR)
        assert (asked[1:2] == [True]) == missed[-1]
    assert len(set(missed)) == 2


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
    tables = race_flows.Tables.of(law.at(order), law.light(np.zeros(1)), count)
    passed = np.append(0, tables.arriving().cumsum())
    cut = (passed + np.append(target[order][::-1].cumsum()[::-1], 0)).min()
    return cut - flows.flows.sum()


@pytest.mark.parametrize("surely", [6, 20, 30])
def test_tokens_that_surely_came_leave_the_sums_in_range(surely):
    """With 32 siblings, `surely` of them certain: the product of their odds would be 1e300 and more."""
    draft = np.full(300, 1e-9)
    draft[:surely] = (1 - (300 - surely) * 1e-9) / surely
    target = np.full(300, 1 / 300)
    law = some_law("arrival", draft, 32, 1e8 * (32 - surely))
    flows = flows_of(law, torch.from_numpy(target))
    assert (flows.flows <= target[flows.tokens] * (1 + 1e-14)).all()
    # Every certain token gets its target, and one of the others takes most of what is left.
    certain = flows.flows[flows.tokens < surely].sum()
    assert certain == pytest.approx(surely / 300, rel=1e-6)
    assert flows.flows.sum() > 0.9


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
    order: Any = RaceOrder().tries(rng.without_replacement(draft, count), WithoutReplacement(draft), rng)
    return order.law, target


def least_time(function, repetitions=7):
    """Seconds of the processor, so that other programs on the machine do not count."""
    times = []
    for _ in range(repetitions):
        began = time.thread_time()
        function()
        times.append(time.thread_time() - began)
    return min(times)


def test_a_node_of_eight_siblings_costs_no_more_than_a_softmax_over_a_tree():
    logits = torch.randn(64, 32_000)
    softmax = least_time(lambda: logits.softmax(-1))
    for seed in range(3):
        law, target = real_node(seed)
        assert least_time(lambda law=law, target=target: flows_of(law, target)) <= softmax


@pytest.mark.parametrize("count", [2, 3, 8])
def test_the_order_is_made_twice_at_most(count, monkeypatch):
    sweeps = []
    made = race_flows.Tables.of
    monkeypatch.setattr(race_flows.Tables, "of", lambda *law: sweeps.append(1) or made(*law))
    for seed in range(10):
        sweeps.clear()
        flows_of(*real_node(seed, count=count))
        assert 1 <= len(sweeps) <= 2
