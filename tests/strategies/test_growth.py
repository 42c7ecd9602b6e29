"""Costs of growing a tree: per node without work on the vocabulary, and in passes over the vocabulary."""

import functools

import pytest
import torch

from draftwood import CounterRandomness
from draftwood.protocols import registry
from draftwood.strategies.policies.batch_dyspec import BatchDySpec
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.mixture import Mixture
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.testing import ToyModel
from draftwood.trees.growth import by_distributions
from tests.strategies.tables import grow
from tests.strategies.test_scale import Lines, Watch

# For a number of nodes; every one of them is large enough to use up its budget.
POLICIES = {
    "batch-dyspec": lambda n: BatchDySpec(n),
    "beam": lambda n: Beam(48, 24, n),
    "dynatree": lambda n: DynaTree(
        20, 24, 3, n, unsure=0.999, confident=1.0, stop_below=0.0, deep=0.0, threshold=0.0, history=False
    ),
    "dyspec": lambda n: DySpec(n),
    "dyspec of top-k": lambda n: DySpec(n, "top-k"),
    "expand-rerank": lambda n: ExpandRerank(20, 8, 16, n),
    "fixed-tree": lambda n: FixedTree(10, 2, n),
    "layered-dyspec": lambda n: LayeredDySpec(n),
    "layered-dyspec of top-k": lambda n: LayeredDySpec(n, law="top-k"),
    "mixture": lambda n: Mixture(budget=n),
    "sequoia": lambda n: Sequoia(n, 12, (0.5, 0.2, 0.1)),
    "threshold-dyspec": lambda n: ThresholdDySpec(n, 0.2 / n),
    "threshold-dyspec of top-k": lambda n: ThresholdDySpec(n, 0.2 / n, law="top-k"),
}


def test_every_policy_that_takes_a_budget_is_here():
    budgeted = {name for name in registry.names("policies") if "budget" in registry.options("policies", name)}
    budgeted.remove("throughput-dyspec")  # costs of passes, and no budget, end its trees
    assert budgeted == {name.partition(" ")[0] for name in POLICIES}


def several_for(name, rows):
    """`rows` `[..., vocab]` as the policy wants them: for the mixture, of two drafters."""
    return torch.stack([rows, rows.roll(1, -1)], -2) if name == "mixture" else rows


def lines_and_calls(policy, probs):
    tree, _ = grow(policy, probs, 1)  # what is computed once for all trees, and the table
    with Lines() as lines:
        grow(policy, probs, 1)
    with Watch() as watch:
        grow(policy, probs, 1)
    return tree, lines.run, watch.calls


@pytest.mark.parametrize("name", POLICIES)
def test_a_node_costs_hardly_more_in_a_large_tree(name):
    model = ToyModel(24, seed=3, order=2)
    probs = functools.cache(lambda path: several_for(name, model.probs(path)))
    lines, calls = [], []
    for nodes in (192, 768):
        tree, run, called = lines_and_calls(POLICIES[name](nodes), probs)
        assert len(tree) == nodes + 1
        lines.append(run / nodes)
        calls.append(called / nodes)
    # N log N would be 1.26; N to the power of 1.5 is 2.
    assert lines[1] < 1.5 * lines[0]
    assert calls[1] < max(1.5 * calls[0], 2)
    assert calls[1] < 70


@pytest.mark.parametrize("name", POLICIES)
def test_neither_lines_nor_calls_grow_with_the_vocabulary(name):
    shapes, lines, calls = [], [], []
    for vocab in (1_000, 8_000):
        model, rest = ToyModel(1_000, seed=4, sharpness=4.0, order=2), vocab - 1_000
        # Tokens beyond the first thousand hold next to nothing, so the trees are the same.
        tail = torch.full((rest,), 1e-12 / max(rest, 1), dtype=torch.float64)
        probs = functools.cache(
            lambda path, model=model, tail=tail: several_for(name, torch.cat([model.probs(path), tail]))
        )
        tree, run, called = lines_and_calls(POLICIES[name](96), probs)
        shapes.append((tree.tokens.tolist(), tree.parents.tolist()))
        lines.append(run)
        calls.append(called)
    assert shapes[0] == shapes[1]
    # A few more or fewer where rounding puts a slot on the other side of an equal one.
    assert lines[1] <= 1.02 * lines[0]
    assert calls[1] <= 1.02 * calls[0]


@pytest.mark.parametrize("name", POLICIES)
def test_beyond_the_distributions_a_large_tree_takes_a_quarter_of_their_size(name):
    nodes, vocab = 768, 16_000
    row = torch.randn(vocab, generator=torch.Generator().manual_seed(1)).mul(6).softmax(-1)
    rows = several_for(name, row)
    rng = CounterRandomness.seeded(1)
    growing = by_distributions(POLICIES[name](nodes).grow(0, rng), rng)
    with Watch() as watch:
        try:
            request = next(growing)
            while True:
                # A view, so that what the policy makes is all there is to see.
                request = growing.send(rows.expand(len(request), *rows.shape))
        except StopIteration as finished:
            tree = finished.value
    assert len(tree) == nodes + 1
    # The law of several drafters' children is one distribution a child, and each tree keeps its own.
    matrices = 2.5 if name == "mixture" else 0.25
    assert watch.peak < matrices * nodes * vocab * 4
