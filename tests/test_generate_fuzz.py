"""Random calls of `generate()` with and without draft trees; `python -m tests.generate_fuzz` runs many."""

import inspect

import pytest
import transformers as hf

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


def test_generate_keeps_what_is_read_from_its_frame_where_it_did():
    """`draftwood.generate_options` reads these names in the frames of the installed version."""
    mixin = hf.GenerationMixin
    generate = inspect.unwrap(mixin.generate).__code__
    assert {"streamer", "assistant_model", "kwargs"} <= set(generate.co_varnames)
    assert {"kwargs", "generation_mode_kwargs"} <= set(
        mixin._extract_generation_mode_kwargs.__code__.co_varnames
    )
