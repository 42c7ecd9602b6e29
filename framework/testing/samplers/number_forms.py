"""Forms of random numbers as functions of a waiting time, by which races are recognised.

A form comes with the rate of its time; without a form the rate is 1 and means nothing.
"""

from __future__ import annotations

import math
from enum import Enum


class Form(Enum):
    """The form of a number as a function of one exponential waiting time T."""

    UNIFORM = "uniform"  # exp(-T), or 1 - exp(-T): both are uniform
    MINUS_UNIFORM = "minus a uniform"
    TIME = "T"
    MINUS_TIME = "-T"
    INVERSE = "1 / T"
    LOG_TIME = "log T"
    GUMBEL = "-log T"


SMALLEST_WINS = {Form.TIME, Form.LOG_TIME}
LARGEST_WINS = {Form.MINUS_TIME, Form.INVERSE, Form.GUMBEL}

FormAndRate = tuple[Form | None, float]

_NONE: FormAndRate = (None, 1.0)
_NEGATED = {
    Form.UNIFORM: Form.MINUS_UNIFORM,
    Form.MINUS_UNIFORM: Form.UNIFORM,
    Form.TIME: Form.MINUS_TIME,
    Form.MINUS_TIME: Form.TIME,
    Form.LOG_TIME: Form.GUMBEL,
    Form.GUMBEL: Form.LOG_TIME,
}
_LOGARITHM = {Form.UNIFORM: Form.MINUS_TIME, Form.TIME: Form.LOG_TIME, Form.INVERSE: Form.GUMBEL}
_EXPONENTIAL = {Form.LOG_TIME: Form.TIME, Form.GUMBEL: Form.INVERSE}


def of_sum(form: Form | None, rate: float, c: float) -> FormAndRate:
    """Returns the form and the rate of a number of this form plus `c`."""
    if form in (Form.GUMBEL, Form.LOG_TIME):
        return form, rate * math.exp(c if form is Form.GUMBEL else -c)
    if form is Form.MINUS_UNIFORM and c == 1:
        return Form.UNIFORM, 1.0
    return (form, rate) if c == 0 else _NONE


def of_negative(form: Form | None, rate: float) -> FormAndRate:
    """Returns the form and the rate of the negative number."""
    return _NEGATED.get(form) if form else None, rate


def of_product(form: Form | None, rate: float, c: float) -> FormAndRate:
    """Returns the form and the rate of the product with `c`, which is not negative."""
    if form in (Form.TIME, Form.MINUS_TIME):
        return form, rate / c if c else math.inf
    if form is Form.INVERSE:
        return form, rate * c
    return (form, rate) if c == 1 else _NONE


def of_quotient(form: Form | None, rate: float, c: float) -> FormAndRate:
    """Returns the form and the rate of the number divided by `c`, which is not negative."""
    if form in (Form.TIME, Form.MINUS_TIME):
        return form, rate * c
    return (form, rate / c if c else math.inf) if form is Form.INVERSE else _NONE


def of_inverse(form: Form | None, rate: float, c: float) -> FormAndRate:
    """Returns the form and the rate of `c`, which is not negative, divided by the number."""
    if form is Form.TIME:
        return Form.INVERSE, rate * c
    return (Form.TIME, rate / c if c else math.inf) if form is Form.INVERSE else _NONE


def of_logarithm(form: Form | None, rate: float) -> FormAndRate:
    """Returns the form and the rate of the natural logarithm."""
    return _LOGARITHM.get(form) if form else None, rate


def of_exponential(form: Form | None, rate: float) -> FormAndRate:
    """Returns the form and the rate of the exponential."""
    if form is Form.MINUS_TIME and rate == 1:
        return Form.UNIFORM, rate
    return _EXPONENTIAL.get(form) if form else None, rate
