"""A window of two siblings against the enumeration of all their pairs."""

import itertools
from typing import Any

import attrs
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from draftwood import TapeRandomness
from draftwood.strategies.verifiers.orders.class_order import ClassTries
from draftwood.strategies.verifiers.orders.class_window import ClassWindow, RemainingDraft, columns_of
from draftwood.strategies.verifiers.residual import Residual, SiblingLaw
from draftwood.testing.models.generators import distributions
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
    """Draws arguments of `ClassWindow.open`, in float64."""
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
    residual, draft = arguments["residual"], RemainingDraft.of(arguments["p"].to(dtype))
    for token in arguments["tried"]:
        draft = draft.without(token)
    return ClassWindow.open(
        SiblingLaw(arguments["h"].to(dtype)),
        draft,
        further=arguments["further"],
        residual=attrs.evolve(residual, weights=residual.weights.to(dtype)),
    )


def other_classes(window, f):
    """The window with other chances of the class, for any tokens."""
    members = (f > 0).nonzero().flatten().numpy()
    columns = columns_of(window.h, window.draft, members)
    return attrs.evolve(window, members=members, f=f.double().numpy()[members], columns=columns)


def normalised(law):
    return law.weights.double() / law.total


def check(window, exact):
    """The window's laws equal the laws of its pairs."""
    draft = window.draft.weights
    vocab = len(draft)
    f = [window.chance_of_class(token) for token in range(vocab)]
    pairs = plain.Pairs(normalised(window.h).tolist(), draft.tolist(), f)

    def near(found, expected):
        error = (found - torch.tensor(expected, dtype=torch.float64)).abs().max()
        assert error <= exact, (float(error), found, expected)

    p1 = window.first()
    near(torch.tensor([p1[token] for token in range(vocab)], dtype=torch.float64), pairs.first)
    for scale in (0.5, 1.0):
        left = torch.linspace(0, 1, vocab, dtype=draft.dtype)
        expected = [max(float(left[token]) - scale * pairs.first[token], 0.0) for token in range(vocab)]
        near(p1.rejected(left, scale).double(), expected)
        assert torch.equal(left, torch.linspace(0, 1, vocab, dtype=draft.dtype))
    for x in range(vocab):
        # What has hardly any law has no law given it.
        if pairs.first[x] >= 1e-9 and sum(pairs.second[x]) >= 1e-9:
            near(normalised(window.second(x)), plain.normalised(pairs.second[x]))


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments())
def test_the_laws_are_those_of_all_pairs(dtype, case):
    check(opened(case, dtype), EXACT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments(), data=st.data())
def test_the_laws_are_those_of_all_pairs_whatever_the_class(dtype, case, data):
    window = opened(case, dtype)
    chance = st.sampled_from([0.0, 0.5, 1.0]) | st.floats(1e-6, 1)
    vocab = len(window.draft.weights)
    f = data.draw(st.lists(chance, min_size=vocab, max_size=vocab))
    check(other_classes(window, torch.tensor(f, dtype=torch.float64)), EXACT[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@given(case=arguments(), belongs=st.sampled_from([0.0, 1.0]))
def test_one_class_for_all_is_the_drawn_order(dtype, case, belongs):
    window = opened(case, dtype)
    h, draft = normalised(window.h), window.draft.weights
    window = other_classes(window, torch.full((len(draft),), belongs))
    assert max(abs(window.first()[token] - float(h[token])) for token in range(len(h))) <= EXACT[dtype]
    for x in (h > 1e-6).nonzero().flatten().tolist():
        rest = plain.normalised(plain.without(draft.tolist(), [x]))
        if any(rest):
            error = normalised(window.second(x)) - torch.tensor(rest, dtype=torch.float64)
            assert error.abs().max() <= EXACT[dtype]


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
            order = ClassTries(tokens, p, rng)
            tried = order.next(residual)
            assert tried is not None
            firsts.append(tried.law.rejected(target, 1.0))
            firsts.append(torch.tensor([tried.law[token] for token in range(len(p))], dtype=torch.float64))
            other = order.next(residual)
            assert other is not None
            seconds.setdefault(tried.token, []).append(other.law.rejected(target, 1.0))
    assert all(torch.equal(one, firsts[0]) for one in firsts[::2])
    assert all(torch.equal(one, firsts[1]) for one in firsts[1::2])
    for several in seconds.values():
        assert all(torch.equal(one, several[0]) for one in several)
