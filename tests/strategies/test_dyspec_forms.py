"""DySpec's threshold form: against algorithm 2 as printed and corrected, and proved."""

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st

from draftwood import CounterRandomness, InvalidInput, Randomness
from draftwood.strategies.acceptance_vectors import certainty, conditional_acceptance
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.testing import parametrize_with_checks
from tests.strategies.tables import ROOT, grow, path_prob, paths, table
from tests.thorough import checks_but

SEEDS = st.integers(0, 10**6)


def algorithm_2(probs, threshold, budget, depth, seed):
    """DySpec's algorithm 2 with line 9 turned round, stopped at the budget: texts in the order of drawing.

    A value is held against the threshold with the policy's own allowance for rounding, 1 part in 10,000.
    """
    threshold *= 1 - 1e-4
    rng, result, leaves = CounterRandomness.seeded(seed), [ROOT], [(ROOT, 1.0)]
    for _ in range(depth):
        fresh = []
        for (path, value), stream in zip(leaves, rng.nodes(len(leaves)), strict=True):
            d = probs(path)
            while value >= threshold and d.any() and len(result) <= budget:
                token = stream.choose(d)
                p = float(d[token] / d.sum())
                result.append((*path, token))
                fresh.append((result[-1], value * p))
                value *= 1 - p
                d[token] = 0
        leaves = [leaf for leaf in fresh if leaf[1] >= threshold]
    return result


@example(4, 0.23395397196101883, 4, 3, 2)  # a value within the allowance
@given(SEEDS, st.floats(0.005, 0.9), st.integers(1, 40), st.integers(1, 6), st.sampled_from([2, 5]))
def test_it_is_algorithm_2_node_for_node(seed, threshold, budget, depth, vocab):
    probs = table(vocab, seed)
    tree, requests = grow(ThresholdDySpec(budget, threshold, depth), probs, seed)
    assert paths(tree) == algorithm_2(probs, threshold, budget, depth, seed)
    assert len(requests) <= min(depth, tree.depth + 1)


@given(SEEDS, st.integers(1, 40))
def test_the_threshold_is_one_over_the_budget_unless_given(seed, budget):
    probs = table(5, seed)
    tree, _ = grow(ThresholdDySpec(budget), probs, seed)
    assert paths(tree) == algorithm_2(probs, 1 / budget, budget, 99, seed)


@given(SEEDS, st.integers(1, 40))
def test_a_threshold_at_the_heaps_last_value_gives_the_heaps_tree(seed, budget):
    probs = table(5, seed)
    heap = set(paths(grow(DySpec(budget, "top-k"), probs)[0]))
    last = min(path_prob(probs, path) for path in heap)
    rivals = [(*path, token) for path in heap for token in range(5) if (*path, token) not in heap]
    assume(max(path_prob(probs, path) for path in rivals) < 0.999 * last)
    tree, requests = grow(ThresholdDySpec(768, last, law="top-k"), probs)
    assert set(paths(tree)) == heap
    assert len(requests) <= tree.depth + 1


@given(SEEDS, st.floats(0.001, 1), st.integers(1, 60))
def test_what_the_budget_cuts_are_the_last_nodes_drawn(seed, threshold, budget):
    probs = table(4, seed)
    whole, _ = grow(ThresholdDySpec(10**6, threshold, 4), probs, seed)
    tree, _ = grow(ThresholdDySpec(budget, threshold, 4), probs, seed)
    assert paths(tree) == paths(whole)[: budget + 1]


@pytest.mark.parametrize("law", ["top-k", "without-replacement"])
def test_a_threshold_of_nothing_draws_every_token_with_a_chance(law):
    tree, _ = grow(ThresholdDySpec(1000, 0.0, 2, law), table(6, 5, live=3), 0)
    assert len(tree) == 1 + 3 + 9


@pytest.mark.parametrize("p", [[0.3, 0.3, 0.39999], [0.0, 0.9999999, 0.0]])
def test_a_draft_that_sums_to_a_little_less_than_1_still_fills_its_first_slot(p):
    tree, _ = grow(ThresholdDySpec(1), lambda path: torch.tensor(p), 0)
    assert len(tree) == 2


class ByWeights(Randomness):
    """Draws that only depend on the arguments, so that the order of drawing does not matter."""

    def choose(self, weights):
        height = float(weights.cumsum(0)[-1])
        u = hash(tuple(round(w, 12) for w in weights.tolist())) % 10007 / 10007
        return int((weights.cumsum(0) <= u * height).sum())


CHANCES = st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3).map(tuple)


def slot_values(tree, probs, acceptance):
    """Returns the value of the slot of every node but the root, by the node's path."""
    measured = list(conditional_acceptance(acceptance))
    texts, below, values = paths(tree), {0: 1.0}, {}
    for node, text in enumerate(texts):
        slot, left = below[node], probs(text).double()
        for rank, child in enumerate(tree.children(node)):
            token = texts[child][-1]
            chance = measured[min(rank, len(measured) - 1)]
            chance += (1 - chance) * certainty(min(float(left[token] / left.sum()), 1.0))
            values[texts[child]], below[child] = slot, slot * chance
            slot, left[token] = slot * (1 - chance), 0
    return values


@given(SEEDS, st.integers(1, 40), CHANCES)
def test_with_a_measured_acceptance_the_layered_tree_is_the_heaps(seed, budget, acceptance):
    probs, by_weights = table(6, seed), ByWeights()  # type: ignore[abstract]
    heap, exact = (
        grow(policy(budget, acceptance=acceptance), probs, rng=by_weights)[0]
        for policy in (DySpec, LayeredDySpec)
    )
    assert len(exact) == len(heap) == budget + 1
    ours, theirs = (slot_values(tree, probs, acceptance) for tree in (heap, exact))
    # Equal chances make slots tie, and rounding says which of them the budget holds.
    different = [(ours | theirs)[path] for path in set(ours) ^ set(theirs)]
    assert different == pytest.approx([min(ours.values())] * len(different), rel=1e-9)


def test_a_node_has_the_children_that_are_worth_it():
    flat = lambda path: torch.full((5,), 0.2)  # noqa: E731
    # Below the root a first child is judged for certain, a second with 0.6, a third with 0.24; below the
    # first child with 0.4, below the second with 0.36.
    for budget, expected in ((2, [2, 0, 0]), (3, [2, 1, 0]), (4, [2, 1, 1])):
        tree, _ = grow(LayeredDySpec(budget, acceptance=(0.4, 0.36, 0.1)), flat, 0)
        first, second = tree.children(0)
        assert [len(tree.children(node)) for node in (0, first, second)] == expected


@given(st.lists(st.floats(0.01, 0.3), min_size=1, max_size=3))
def test_chances_of_those_that_are_judged_multiply_to_the_vector(acceptance):
    failed, result = 1.0, []
    for chance in conditional_acceptance(acceptance):
        result.append(failed * chance)
        failed *= 1 - chance
    assert result == pytest.approx(acceptance)


def test_the_tree_is_as_deep_as_first_children_are_accepted():
    flat = lambda path: torch.full((5,), 0.2)  # noqa: E731
    deep, _ = grow(LayeredDySpec(6, acceptance=(0.9, 0.05)), flat, 0)
    wide, _ = grow(LayeredDySpec(5, acceptance=(0.05, 0.05)), flat, 0)
    assert (deep.depth, wide.depth) == (6, 1)
    # Where the draft is certain it is believed.
    sure, _ = grow(LayeredDySpec(5, acceptance=(0.05, 0.05)), lambda path: torch.eye(5)[len(path) % 5], 0)
    assert sure.depth == 5


@pytest.mark.parametrize("policy", [DySpec, LayeredDySpec, ThresholdDySpec])
def test_acceptance_that_cannot_be(policy):
    with pytest.raises(InvalidInput, match="draw without replacement"):
        policy(4, law="top-k", acceptance=(0.5,))
    with pytest.raises(InvalidInput, match="sums to 1.1"):
        policy(4, acceptance=(0.6, 0.5))


LAWS = parametrize_with_checks(
    [
        DySpec(4, acceptance=(0.5, 0.2)),
        LayeredDySpec(4, acceptance=(0.5, 0.2)),
        LayeredDySpec(3, acceptance=(0.3, 0.3, 0.3)),
        ThresholdDySpec(4, 0.1, acceptance=(0.4, 0.2)),
        ThresholdDySpec(4),
        ThresholdDySpec(4, 0.1),
        ThresholdDySpec(3, 0.0, 2),
        ThresholdDySpec(5, 0.05, law="top-k"),
    ],
    models=2,
)


@checks_but(LAWS, ["LayeredDySpec1-wide", "ThresholdDySpec2-wide", "ThresholdDySpec3-wide"])
def test_law_p_and_law_v(check):
    check()
