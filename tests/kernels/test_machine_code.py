"""Loops that run as machine code: what they give, and where their code cannot be kept."""

import gc
import signal
import threading
from collections import Counter

import numba
import numpy as np
import pytest
from numba.core.registry import CPUDispatcher

from draftwood.kernels.machine_code import compiled


def running_product(values):
    products, product = np.empty_like(values), 1.0
    for place in range(len(values)):
        product *= values[place]
        products[place] = product
    return products


def places_and_values(values):
    return np.full(values.shape, -1), values * 1.0


def test_a_loop_gives_what_python_gives():
    values = np.random.default_rng(0).uniform(0.5, 2, 50)
    assert np.allclose(compiled(running_product)(values), values.cumprod(), rtol=1e-14)


@compiled
def doubled(value):
    return 2 * value


@compiled
def doubled_sum(values):
    total = 0.0
    for value in values:
        total += doubled(value)
    return total


def test_machine_code_calls_machine_code():
    assert doubled_sum(np.array([1.0, 2.5])) == 7 == doubled(3.5)


def test_code_that_cannot_be_kept_is_compiled_anew(monkeypatch):
    asked = []
    njit = numba.njit

    def no_place(cache=False, **options):
        asked.append(cache)
        if cache:
            raise RuntimeError("cannot cache function 'running_product': no locator available")
        return njit(**options)

    monkeypatch.setattr(numba, "njit", no_place)
    loop = compiled(running_product)
    assert loop(np.array([2.0, 3.0])).tolist() == loop(np.array([2.0, 3.0])).tolist() == [2, 6]
    assert asked == [True, False]


def test_no_interrupt_comes_while_it_compiles(monkeypatch):
    """Ctrl-C is the main thread's, and in the compiler's callbacks Python only prints it."""
    threads, njit, compile_ = [], numba.njit, CPUDispatcher.compile

    def recorded(**options):
        threads.append(threading.current_thread())
        return njit(**options)

    def compiling(self, signature):
        threads.append(threading.current_thread())
        return compile_(self, signature)

    monkeypatch.setattr(numba, "njit", recorded)
    monkeypatch.setattr(CPUDispatcher, "compile", compiling)
    loop, values = compiled(running_product), np.array([2.0, 3.0])
    assert loop(values).tolist() == loop(values).tolist() == [2, 6]
    assert len(threads) == 2
    # An array of another layout, for which numba compiles again.
    assert loop(np.array([2.0, 5.0, 3.0])[::2]).tolist() == [2, 6]
    assert len(threads) > 2
    assert threading.main_thread() not in threads


@pytest.mark.posix
def test_ctrl_c_is_heard_wherever_it_comes():
    loop, values = compiled(places_and_values), np.array([2.0, 3.0])
    loop(values)
    came, outcomes = 0, Counter[type[BaseException] | None]()

    def ring(*_):
        nonlocal came
        came += 1
        raise Rang

    def forever():
        while True:
            loop(values)

    before = signal.signal(signal.SIGALRM, ring)
    gc.disable()  # what is raised in the callbacks of a collection is only printed
    try:
        for number in range(400):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 1e-6)
                forever()
            except BaseException as error:
                outcomes[type(error)] += 1
    finally:
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert outcomes == {Rang: 400}
    assert came == 400
    assert [array.tolist() for array in loop(values)] == [[-1, -1], [2, 3]]


class Rang(BaseException):
    """Raised by a signal's handler, as KeyboardInterrupt is."""
