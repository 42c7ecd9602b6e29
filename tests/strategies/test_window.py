"""A window of two siblings against the enumeration of all their pairs, and what foresight may tell."""

import itertools
from typing import Any

import attrs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwood import TapeRandomness
from draftwood.strategies.verifiers.class_order import ClassOrder
from draftwood.strategies.verifiers.foresight import Foresight
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
def arguments(draw, levels=(1, 2)):
    """What `Window.open` takes, in float64."""
    vocab, levels = draw(st.integers(2, 5)), draw(st.sampled_from(levels))
    p = draw(drafts(vocab))
    tried = draw(st.lists(st.integers(0, vocab - 1), max_size=vocab - 2, unique=True))
    live = p.clone()
    live[tried] = 0
    # Below that, h over what D holds beside a token leaves the numbers of float32.
    assume(bool(live.any()) and all(not 0 < beside(live, y) < 1e-300 for y in range(vocab)))
    # Only what D may draw can be held: D itself, or D with other odds, zeros among them.
    h = torch.stack(
        [live / live.sum() if draw(st.booleans()) else draw(drafts(vocab)) for _ in range(levels)]
    )
    h[:, live == 0] = 0
    chances = torch.tensor([[1.0], [0.7, 0.3], [0.5, 0.5]][draw(st.integers(1, 2)) if levels > 1 else 0])
    h = h * chances.double()[:, None]
    assume(float(h.sum()) > 1e-300)
    return {
        "h": h / h.sum(),
        "p": p,
        "chances": chances.double(),
        "tried": tried,
        "further": draw(st.integers(0, 2)),
        "residual": Residual.of(draw(distributions(vocab)), draw(st.sampled_from([1.0, 0.4]))),
    }


def opened(arguments, dtype):
    residual = arguments["residual"]
    cast = {name: arguments[name].to(dtype) for name in ("h", "p", "chances")}
    cast["residual"] = Residual(residual.weights.to(dtype), residual.deficit)
    return Window.open(**{**arguments, **cast})


def other_classes(window, f):
    """The window with other chances of class 1, for any tokens."""
    members = torch.arange(len(window.draft))[f > 0]
    return attrs.evolve(window, members=members, f=f[members].to(window.draft.dtype))


def check(window, exact):
    """The window's laws are those of its pairs."""
    vocab, levels = len(window.draft), len(window.chances)
    f = [window.chance_of_class(token) for token in range(vocab)]
    pairs = plain.Pairs(window.h.tolist(), window.draft.tolist(), window.chances.tolist(), f)

    def near(found, expected, exact=exact):
        error = (found.double() - torch.tensor(expected, dtype=torch.float64)).abs().max()
        assert error <= exact, (float(error), found, expected)

    p1 = window.first()
    near(p1.weights / p1.total, pairs.first)
    for x in range(vocab):
        if pairs.first[x] < 1e-9:  # what has hardly any law has no law given it
            continue
        if levels == 1:
            if sum(map(sum, pairs.second[x])) >= 1e-9:
                near(window.second(x), plain.given(pairs.second[x]))
            continue
        for came in (False, True):
            # What is known given a rare event is as exact as the event's chance is.
            chance = sum(pairs.levels[x, came])
            if chance >= 1e-9:
                told = window.levels(x, came)
                near(told, plain.normalised(pairs.levels[x, came]), exact * max(1, 1e-1 / chance))
        for rank, came in itertools.product(range(2 * levels), (False, True)):
            joint = pairs.second_of[x, rank, came]
            if sum(map(sum, joint)) >= 1e-9:
                near(window.second_of_level(x, rank=rank, came=came), plain.given(joint))


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
@given(case=arguments(levels=(1,)), belongs=st.sampled_from([0.0, 1.0]))
def test_one_class_for_all_is_the_drawn_order(dtype, case, belongs):
    window = opened(case, dtype)
    window = other_classes(window, torch.full((len(window.draft),), belongs))
    assert (window.first().weights - window.h[0]).abs().max() <= EXACT[dtype]
    for x in (window.h[0] > 1e-6).nonzero().flatten().tolist():
        rest = plain.normalised(plain.without(window.draft.tolist(), [x]))
        if any(rest):
            assert (window.second(x)[0] - torch.tensor(rest, dtype=torch.float64)).abs().max() <= EXACT[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("luck", [0.0, 0.5])
@settings(max_examples=15)  # of many orders each
@given(case=arguments(levels=(1,)))
def test_no_bit_of_a_law_depends_on_tokens_that_are_judged(dtype, luck, case):
    p, target = case["p"].to(dtype), case["residual"].weights.to(dtype)
    chances = p.new_tensor([1 - luck, luck]) if luck else None
    firsts, seconds = list[Any](), dict[Any, Any]()
    for tokens in itertools.permutations(p.nonzero().flatten().tolist()[:4], 2):
        # Coins that make the held one of class 1 and the other of class 0, in part, and the other way round.
        for coins, levels in itertools.product(
            itertools.product([0.0, 1 - 2**-53], repeat=2), [(0, 1), (1, 0)]
        ):
            rng, residual = TapeRandomness(torch.tensor(coins, dtype=torch.float64)), Residual.of(target)
            order = ClassOrder(tokens, p, p, rng, chances=chances, level=levels.__getitem__)
            tried = order.next(residual)
            assert tried is not None
            firsts.append(tried.law.weights)
            other = order.next(residual)
            assert other is not None
            came = tried.place == 1
            class_of_first = coins[came] == 0.0 if luck else None
            known = (tried.token, came, levels[came], class_of_first) if luck else tried.token
            told = [other.law.weights] if tried.levels is None else [other.law.weights, tried.levels]
            seconds.setdefault(known, []).append(told)
    assert all(torch.equal(one, firsts[0]) for one in firsts)
    for several in seconds.values():
        for told in several:
            assert all(map(torch.equal, told, several[0]))


@st.composite
def foreseen(draw):
    vocab = draw(st.integers(2, 5))
    return draw(distributions(vocab)), draw(drafts(vocab)), draw(st.floats(0.05, 0.95))


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=foreseen(), data=st.data())
def test_foresight_tells_only_what_it_gives_back(dtype, case, data):
    target, draft, chance = case[0].to(dtype), case[1].to(dtype), case[2]
    foresight, exact = Foresight.of(target, draft, chance), EXACT[dtype]
    lucky = [foresight[token] for token in range(len(draft))]
    assert abs(sum(d * x for d, x in zip(draft.tolist(), lucky, strict=True)) - chance) <= exact
    unlucky, high = (
        foresight.first_child(draft.new_tensor([1, 0])),
        foresight.first_child(draft.new_tensor([0, 1])),
    )
    for law in (unlucky, high):
        assert law.min() >= 0
        assert abs(float(law.double().sum()) - 1) <= exact / min(chance, 1 - chance)
    assert (unlucky * (1 - chance) + high * chance - draft).abs().max() <= exact
    for token, share in enumerate(lucky):
        assert abs(float(high[token]) * chance - float(draft[token]) * share) <= exact
    # The target wants what is lucky at least as much as what is not.
    ratios = [(t / d, x) for t, d, x in zip(target.tolist(), draft.tolist(), lucky, strict=True) if d > 1e-3]
    assert all(
        one[1] >= other[1] - exact for one in ratios for other in ratios if one[0] > other[0] * (1 + 1e-6)
    )


def test_foresight_shares_what_is_left_among_tokens_of_little_mass():
    draft = torch.full((20_000,), 0.5 / 19_999, dtype=torch.float64)
    draft[0] = 0.5
    foresight = Foresight.of(draft, draft, 0.75)
    lucky = torch.tensor([foresight[token] for token in (0, 1)], dtype=torch.float64)
    assert (lucky - torch.tensor([1.0, 0.5], dtype=torch.float64)).abs().max() <= 1e-12
    assert (foresight.first_child(draft.new_tensor([1, 0]))[0]) == 0
