"""Laws of sets over a few tokens, and what their flows give to each, as the definitions read."""

import itertools
import math

import numpy as np
import torch
from hypothesis import strategies as st

from draftwood.strategies.verifiers.orders.race_laws import Arrival, Given, Pair


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
        mark = columns.constant + outside[others].sum() + inside[list(members)].sum()
        weights[members] = float(np.prod(columns.odds[list(members)]) * mark)
    total = math.fsum(weights.values())
    return {members: weight / total for members, weight in weights.items()}


def received(sets, flows, n):
    """Returns the flow of every token when the members of each set are tried in the order of `flows`."""
    place = {int(token): index for index, token in enumerate(flows.tokens)}
    got = np.zeros(n)
    for members, chance in sets.items():
        tried = sorted((token for token in members if token in place), key=place.__getitem__)
        for number, token in enumerate(tried, start=1):
            of = flows.last_allowances if number == len(members) else flows.allowances
            allowance = float(of[place[token]])
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
