"""Forms of random numbers as functions of a waiting time, by which races are recognised."""

from __future__ import annotations

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
