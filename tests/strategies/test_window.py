"""A window of two siblings against the enumeration of all their pairs."""

import itertools
from typing import Any

import attrs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwood import TapeRandomness
from draftwood.strategies.verifiers.class_order import ClassOrder
from draftwood.strategies.verifiers.residual import Residual
from draftwood.strategies.verifiers.window import Window
from draftwood.testing.generators import distributions
from tests.strategies import plain

EXACT = {torch.float64: 1e-12, torch.float32: 2e-6}
DTYPES = list(EXACT)


@st.composite
def drafts(draw, vocab):
    """float64 `[vocab]`: any, or nearly certain of one token."""
    p = draw(distributions(vocab))
    if draw(st.booleans()):
        return p
    almost = torch.zeros(vocab, dtype=torch.float64)
    almost[draw(st.integers(0, vocab - 1))] = 1 - 1e-11
    return almost + 1e-11 * p


def beside(p, token):
    return sum(plain.without(p.tolist(), [token]))


@st.composite
def arguments(draw):
    """What `Window.open` takes, in float64."""
    vocab = draw(st.integers(2, 5))
    p = draw(drafts(vocab))
    tried = draw(st.lists(st.integers(0, vocab - 1), max_size=vocab - 2, unique=True))
    live = p.clone()
    live[tried] = 0
    # Below that, h over what D holds beside a token leaves the numbers of float32.
    assume(bool(live.any()) and all(not 0 < beside(live, y) < 1e-300 for y in range(vocab)))
    # Only what D may draw can be held: D itself, or D with other odds, zeros among them.
    h = live / live.sum() if draw(st.booleans()) else draw(drafts(vocab))
    h[live == 0] = 0
    assume(float(h.sum()) > 1e-300)
    return {
        "h": h / h.sum(),
        "p": p,
        "tried": tried,
        "further": draw(st.integers(0, 2)),
        "residual": Residual.of(draw(distributions(vocab)), draw(st.sampled_from([1.0, 0.4]))),
    }


def opened(arguments, dtype):
    residual = arguments["residual"]
    cast = {name: arguments[name].to(dtype) for name in ("h", "p")}
    cast["residual"] = Residual(residual.weights.to(dtype), residual.deficit)
    return Window.open(**{**arguments, **cast})


def other_classes(window, f):
    """The window with other chances of class 1, for any tokens."""
    members = torch.arange(len(window.draft))[f > 0]
    return attrs.evolve(window, members=members, f=f[members].to(window.draft.dtype))


def check(window, exact):
    """The window's laws are those of its pairs."""
    vocab = len(window.draft)
    f = [window.chance_of_class(token) for token in range(vocab)]
    pairs = plain.Pairs(window.h.tolist(), window.draft.tolist(), f)

    def near(found, expected):
        error = (found.double() - torch.tensor(expected, dtype=torch.float64)).abs().max()
        assert error <= exact, (float(error), found, expected)

    p1 = window.first()
    near(p1.weights / p1.total, pairs.first)
    for x in range(vocab):
        # What has hardly any law has no law given it.
        if pairs.first[x] >= 1e-9 and sum(pairs.second[x]) >= 1e-9:
            near(window.second(x), plain.normalised(pairs.second[x]))


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments())
def test_the_laws_are_those_of_all_pairs(dtype, case):
    check(opened(case, dtype), EXACT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments(), data=st.data())
def test_the_laws_are_those_of_all_pairs_whatever_the_class(dtype, case, data):
    window = opened(case, dtype)
    chance = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(1e-6, 1)
    f = data.draw(st.lists(chance, min_size=len(window.draft), max_size=len(window.draft)))
    check(other_classes(window, torch.tensor(f, dtype=torch.float64)), EXACT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments(), belongs=st.sampled_from([0.0, 1.0]))
def test_one_class_for_all_is_the_drawn_order(dtype, case, belongs):
    window = opened(case, dtype)
    window = other_classes(window, torch.full((len(window.draft),), belongs))
    assert (window.first().weights - window.h).abs().max() <= EXACT[dtype]
    for x in (window.h > 1e-6).nonzero().flatten().tolist():
        rest = plain.normalised(plain.without(window.draft.tolist(), [x]))
        if any(rest):
            assert (window.second(x) - torch.tensor(rest, dtype=torch.float64)).abs().max() <= EXACT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=15)  # of many orders each
@given(case=arguments())
def test_no_bit_of_a_law_depends_on_tokens_that_are_judged(dtype, case):
    p, target = case["p"].to(dtype), case["residual"].weights.to(dtype)
    firsts, seconds = [], dict[int, list[Any]]()
    for tokens in itertools.permutations(p.nonzero().flatten().tolist()[:4], 2):
        # Coins that make the held one of the class and the other not, in part, and the other way round.
        for coins in itertools.product([0.0, 1 - 2**-53], repeat=2):
            rng, residual = TapeRandomness(torch.tensor(coins, dtype=torch.float64)), Residual.of(target)
            order = ClassOrder(tokens, p, rng)
            tried = order.next(residual)
            assert tried is not None
            firsts.append(tried.law.weights)
            other = order.next(residual)
            assert other is not None
            seconds.setdefault(tried.token, []).append(other.law.weights)
    assert all(torch.equal(one, firsts[0]) for one in firsts)
    for several in seconds.values():
        assert all(torch.equal(one, several[0]) for one in several)
