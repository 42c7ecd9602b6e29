"""The chance of a node to be on the accepted path is what enumerating the verifier gives."""

import numpy as np
import pytest
import torch

from draftwood import CounterRandomness
from draftwood.strategies.path_chances import path_chances
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyModel, enumerate_outcomes
from tests.strategies.drawn_trees import grow, texts_of

PAIRS = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
THREE = ((0,), (1,), (2,), (1, 0))


@pytest.mark.parametrize("verifier", [Traversal(), ClassOrderedTraversal(), RaceTraversal()], ids=str)
@pytest.mark.parametrize("shape", [PAIRS, THREE], ids=["pairs", "three"])
@pytest.mark.parametrize("seed", range(4))
def test_the_chances_are_those_of_all_coins(verifier, shape, seed):
    vocab = 5
    policy = StaticTree(shape, sort=bool(seed % 2))
    tree = grow(policy, ToyModel(vocab, seed=seed), seed=seed)
    target = ToyModel(vocab, seed=seed + 50, sharpness=3.0)
    probs = torch.stack([target.probs(text) for text in texts_of(tree)])

    counted, total = np.zeros(len(tree)), 0.0
    for weight, path in enumerate_outcomes(
        lambda rng: verifier.verify(tree, probs, rng).path, arrival_step=0.5
    ):
        counted[list(path)] += weight
        total += weight
    chances = np.zeros(len(tree))
    for weight, one in enumerate_outcomes(
        lambda rng: path_chances(verifier, tree, probs, rng), arrival_step=0.5
    ):
        chances += weight * one
    assert chances == pytest.approx(counted, abs=1e-12)
    assert chances[0] == pytest.approx(total)
    assert chances[1:].max() > 0


def test_a_node_is_on_the_path_no_more_often_than_its_parent():
    verifier, policy = RaceTraversal(), StaticTree("stree-b", sort=True)
    tree = grow(policy, ToyModel(30, seed=1), seed=1)
    target = ToyModel(30, seed=2)
    probs = torch.stack([target.probs(text) for text in texts_of(tree)])
    chances = path_chances(verifier, tree, probs, CounterRandomness.seeded(0))
    assert (chances[1:] <= chances[tree.parents[1:]] + 1e-12).all()
    for node in range(len(tree)):
        assert chances[tree.children(node)].sum() <= chances[node] + 1e-12
