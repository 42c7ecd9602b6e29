"""`PassTime`: the fit of times by nodes, and the times that it is fitted to."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import InvalidInput, load, zoo
from draftwood.decoding.pass_time import PassTime, pass_seconds

COEFFICIENTS = st.floats(0, 1).map(lambda x: round(x, 6))


@given(st.tuples(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS).filter(lambda c: sum(c) > 0.01))
def test_fit_finds_the_coefficients(coefficients):
    expected = PassTime(*coefficients)
    sizes = (1, 2, 4, 8, 16, 32, 64)
    result = PassTime.fit(sizes, [expected(size) for size in sizes])
    for size in (1, 5, 50, 64):
        assert result(size) == pytest.approx(expected(size), rel=1e-6)


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=8))
def test_fit_never_gives_a_negative_time(seconds):
    result = PassTime.fit(range(1, len(seconds) + 1), seconds)
    assert min(result.constant, result.linear, result.quadratic) >= 0


def test_passes_of_a_real_model_take_longer_with_more_nodes(monkeypatch):
    # Time of the processor, so that other programs on the machine do not count.
    monkeypatch.setattr("draftwood.decoding.pass_time.perf_counter", time.thread_time)
    backend = load(zoo.path("llama-draft"))
    times = pass_seconds(backend, sizes=(1, 256), context=16, repetitions=3)
    assert min(times[256]) > min(times[1]) > 0
    assert backend.lengths == []
    backend.prefill([torch.tensor([1])])
    with pytest.raises(InvalidInput, match="is decoding"):
        pass_seconds(backend)


def test_fit_refuses_too_little():
    with pytest.raises(InvalidInput, match="3 sizes"):
        PassTime.fit((1, 1, 2), (1.0, 1.0, 2.0))
    with pytest.raises(InvalidInput, match="above 0"):
        PassTime.fit((1, 2, 3), (1.0, 0.0, 2.0))
