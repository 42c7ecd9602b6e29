"""Random calls of `generate()` with and without draft trees; `python -m tests.generate_fuzz` runs many."""

import pytest

from tests.generate_fuzz.calls import FEATURES, SELDOM
from tests.generate_fuzz.compare import FINE, REFUSALS, quiet, run, run_directly

CALLS, AT_ONCE = 40, 20


@pytest.mark.parametrize("first", range(0, CALLS, AT_ONCE))
def test_a_call_gives_the_same_text_or_one_sentence(first):
    quiet()
    for number in range(first, first + AT_ONCE):
        number, kind, detail, one = run(number)
        assert kind in FINE, f"Call {number}, {kind}: {detail}\n{one}"


def test_the_decoders_own_generate_gives_the_same_text():
    quiet()
    found = [run_directly(number) for number in range(40)]
    compared = [one for one in found if one is not None]
    assert len(compared) > 10
    for number, kind, detail, one in compared:
        assert kind in FINE, f"Call {number}, {kind}: {detail}\n{one}"


def test_every_refusal_names_features_that_there_are():
    assert set().union(*REFUSALS.values()) | SELDOM <= FEATURES.keys()
