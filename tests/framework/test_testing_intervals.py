"""Interval splitting and torch's own chance under an enumerator: laws known by hand, and what is refused."""

import math
from typing import Any

import pytest
import torch

from draftwood.testing import CannotEnumerate, split_uniforms, torch_law


def law(run, **options):
    pieces = dict[Any, Any]()
    for weight, result in split_uniforms(run, **options):
        pieces[result] = pieces.get(result, 0.0) + weight
    return pieces


def nested(u):
    """The second uniform's break depends on the first, and the third only matters after a rejection."""
    if u[0] < 0.3:
        return "low" if u[1] < 1 / 7 else "high"
    return "left" if u[2] < 0.001 else "right"


@pytest.mark.parametrize("bits", [53, 24])
def test_the_law_is_exact_to_the_last_bit_of_the_uniforms(bits):
    step = 2.0**-bits
    pieces = law(nested, count=3, guesses=[0.001], bits=bits)
    first, second, third = (math.ceil(x / step) * step for x in (0.3, 1 / 7, 0.001))
    assert pieces["low"] == pytest.approx(first * second, rel=1e-15)
    assert pieces["left"] == pytest.approx((1 - first) * third, rel=1e-15)
    assert sum(pieces.values()) == pytest.approx(1, abs=1e-15)


def test_a_coin_of_exactly_zero_has_its_weight():
    assert law(lambda u: u[0] <= 0, count=1, bits=24)[True] == 2.0**-24
    assert True not in law(lambda u: u[0] < 0, count=1, bits=24)


def test_a_narrow_piece_is_found_where_its_ends_are_guessed():
    def narrow(u):
        return 0.5001 <= u[0] < 0.50012

    assert law(narrow, count=1, guesses=[0.5001, 0.50012])[True] == pytest.approx(2e-5, rel=1e-9)


def test_a_break_that_few_settings_of_later_uniforms_show_is_learnt_from_the_trials():
    def late(u):
        # The first uniform matters where the two later ones lie in a quarter of their square.
        return u[0] < 0.37 if 0.25 < u[1] < 0.75 and 0.25 < u[2] < 0.75 else None

    assert law(late, count=3)[True] == pytest.approx(0.37 / 4, rel=1e-12)


def test_what_is_not_constant_on_boxes_is_refused():
    with pytest.raises(CannotEnumerate, match="is not that of its neighbours after 6 refinements"):
        law(lambda u: u[0] + u[1] < 1, count=2)


def test_other_chance_is_refused():
    with pytest.raises(CannotEnumerate, match="depends on other chance"):
        law(lambda u: float(torch.rand(())) < u[0], count=1)


def compared(compare, dtype=torch.float32):
    """The probability that a comparison of one of torch's uniforms holds."""
    pieces = torch_law(lambda: [int(compare(torch.rand(1, dtype=dtype))[0])])
    return pieces.probabilities.get((1,), 0.0)


@pytest.mark.parametrize(
    ("compare", "expected"),
    [
        (lambda u: u < 0.25, 0.25),
        (lambda u: u <= 0.25, 0.25 + 2**-24),
        (lambda u: u > 0.25, 0.75 - 2**-24),
        (lambda u: u >= 0.25, 0.75),
        (lambda u: torch.tensor([0.25]) <= u, 0.75),
        (lambda u: torch.tensor([0.25]) >= u, 0.25 + 2**-24),
        (lambda u: u.squeeze(0).unsqueeze(0)[0:1] < 2.0, 1.0),
        (lambda u: u <= 0, 2.0**-24),
        (lambda u: u < float("nan"), 0.0),
        (lambda u: (u < 0.5) & (u < 0.25), 0.25),
        (lambda u: (u < 0.5) & (u >= 0.25), 0.25),
    ],
)
def test_comparisons_of_torchs_uniforms_have_their_weight(compare, expected):
    assert compared(compare) == pytest.approx(expected, abs=1e-16)


def test_a_wide_uniform_is_zero_less_often():
    assert compared(lambda u: u <= 0, torch.float64) == 2.0**-53


def test_several_uniforms_and_choices_are_independent():
    def run():
        coins = torch.rand_like(torch.zeros(2, 2)) < torch.tensor([[0.5], [0.1]])
        return [*coins.flatten().int(), torch.multinomial(torch.tensor([1.0, 3.0]), 1)]

    pieces = torch_law(run)
    assert pieces.runs == 32
    assert pieces.probabilities[1, 1, 0, 1, 1] == pytest.approx(0.25 * 0.09 * 0.75, rel=1e-6)


def test_rows_of_multinomial_are_drawn_one_by_one():
    rows = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.2, 0.8]], dtype=torch.float64)
    pieces = torch_law(lambda: torch.multinomial(rows, num_samples=1))
    assert pieces.probabilities == pytest.approx({(0, 1): 0.1, (0, 2): 0.4, (1, 1): 0.1, (1, 2): 0.4})


def test_what_raises_keeps_its_weight():
    pieces = torch_law(lambda: [1 // int(torch.rand(1) < 0.75)])
    assert pieces.probabilities == pytest.approx({(1,): 0.75, (-1,): 0.25})
    assert pieces.fault == "raises (ZeroDivisionError: integer division or modulo by zero)"


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (lambda: torch.rand(2).sort().values < 1, "compared with each other"),
        (lambda: torch.rand(2).cumsum(0), "given to cumsum"),
        (lambda: torch.rand(2)[0] < torch.rand(2)[1], "compared with each other"),
        (lambda: torch.empty(3).exponential_(), "returns random numbers"),
        (lambda: torch.randn(3), "returns random numbers"),
        (lambda: torch.normal(0.0, 1.0, (3,)), "returns random numbers"),
    ],
)
def test_chance_that_cannot_be_enumerated_is_one_sentence(run, message):
    with pytest.raises(CannotEnumerate, match=message):
        torch_law(run)


def test_torchs_chance_is_as_it_was_afterwards():
    torch_law(lambda: [int(torch.rand(1) < 0.5)])
    assert type(torch.rand(1)) is torch.Tensor
    assert torch.empty(2).exponential_().min() > 0
    assert "exponential_" not in vars(torch.Tensor)
