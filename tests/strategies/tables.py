"""Policies driven by a table of draft distributions, with no model and no loop."""

import heapq
import math
from typing import Any

import torch

from draftwood import CounterRandomness
from draftwood.protocols import policy_states
from draftwood.testing import ToyModel
from draftwood.testing.models.row_views import TOY_VIEW
from draftwood.trees.growth import by_distributions

ROOT: tuple[int, ...] = (0,)


def table(vocab, seed, live=None):
    """Draft distributions by path, with `live` tokens of probability above 0."""
    model = ToyModel(vocab, seed=seed, sharpness=2.0)

    def probs(path):
        p = model.probs(path)
        if live is not None:
            p[p.argsort()[: vocab - live]] = 0
        return p / p.sum()

    return probs


def several(*tables):
    """The distributions of several drafters, `[drafters, vocab]` by path."""
    return lambda path: torch.stack([probs(path) for probs in tables])


def grow(policy, probs, seed=None, rng=None, state=None):
    """Drive a policy by a table; returns the tree and the paths of every request. No seed: no chance."""
    rng = rng if seed is None else CounterRandomness.seeded(seed)
    growing = by_distributions(policy_states.grow(policy, ROOT[0], rng, state, view=TOY_VIEW), rng)
    asked, requests = list[Any](), list[Any]()
    try:
        request = next(growing)
        while True:
            for token, parent in zip(request.tokens.tolist(), request.parents.tolist(), strict=True):
                asked.append((*asked[parent], token) if parent >= 0 else (token,))
            requests.append(asked[len(asked) - len(request) :])
            request = growing.send(torch.stack([probs(path) for path in requests[-1]]))
    except StopIteration as finished:
        return finished.value, requests


def paths(tree):
    """The tokens from the root to every node."""
    return [tuple(tree.tokens[tree.path(v)].tolist()) for v in range(len(tree))]


def path_prob(probs, path):
    """The draft's probability of a path."""
    return math.prod(float(probs(path[:depth])[path[depth]]) for depth in range(1, len(path)))


def longer(probs, path, vocab, branching):
    """The `branching` most likely continuations of a path."""
    return heapq.nlargest(
        branching, [(*path, token) for token in range(vocab)], key=lambda one: path_prob(probs, one)
    )
