"""The loops of race verification on the host: which tokens are looked at, and sums over the others."""

import itertools

import numpy as np
import pytest
import torch

from draftwood.strategies.verifiers.orders import race_sums
from draftwood.strategies.verifiers.orders.race_laws import Arrival


@pytest.mark.parametrize("scale", [1.0, 2.5])
@pytest.mark.parametrize("spread", [1.0, 3.0, 8.0])
def test_tokens_that_are_not_looked_at_are_light_and_worth_little(scale, spread):
    for seed in range(3):
        rng = np.random.default_rng(seed)
        weights, target = (np.exp(spread * rng.standard_normal(5000)) for _ in "ab")
        weights = (3 * weights / weights.sum()).astype(np.float32)
        target = (scale * target / target.sum()).astype(np.float32)
        spare, heavy = 5e-4, 1e-2
        tokens, others = race_sums.split(weights / 4, 4.0, target, scale, spare, heavy)
        left = np.setdiff1d(np.arange(5000), tokens)
        worth = np.minimum(weights, target / scale)
        assert worth[left].sum() <= spare * (1 + 1e-5)
        assert weights[left].max() <= heavy
        assert (others[tokens] == 0).all()
        assert (others[left] == weights[left]).all()
        light = tokens[weights[tokens] <= heavy]
        assert len(light) or spread == 8
        if len(light):  # some more of the least ones, by an eighth of an octave, and it would be too much
            more = worth[light] <= 1.2 * worth[light].min()
            assert worth[left].sum() + worth[light][more].sum() > 0.9 * spare


def test_sums_of_powers_are_of_the_first_six():
    weights = np.random.default_rng(0).uniform(0, 0.3, 500).astype(np.float32)
    powers = weights.astype(np.float64)[:, None] ** np.arange(1, 7)
    assert race_sums.powers_of(weights) == pytest.approx(powers.sum(0), rel=1e-12)


@pytest.mark.parametrize("count", [3, 6])
def test_the_law_of_a_class_has_the_sums_over_its_sets(count):
    """An eighth power of the odds is what may be missing, as they are summed up in six."""
    weights = np.random.default_rng(1).uniform(0, 1e-3, 9)
    law = Arrival(torch.from_numpy(weights), count, 1.0)
    products, marked = law.light(weights).of_sets(count, 0.0, 1.0)
    for size in range(count + 1):
        sets = list(itertools.combinations(range(9), size))
        odds = [np.prod(np.expm1(weights[list(members)])) for members in sets]
        marks = [weights.sum() - weights[list(members)].sum() for members in sets]
        assert products[size] == pytest.approx(np.sum(odds), rel=1e-8)
        assert marked[size] == pytest.approx(np.dot(odds, marks), rel=1e-8)
