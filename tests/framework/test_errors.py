"""`draftwood.errors`: every error that a caller may catch, under its public name."""

import draftwood
from draftwood import errors
from draftwood.base import errors as defined


def test_every_error_is_public_in_both_places() -> None:
    own = {
        name
        for name, value in vars(defined).items()
        if isinstance(value, type) and issubclass(value, errors.DraftwoodError)
    }
    assert set(errors.__all__) == own
    assert own <= set(draftwood.__all__)
    assert all(getattr(errors, name) is getattr(draftwood, name) for name in own)


def test_an_error_of_an_engine_is_told_by_its_reason_and_not_by_places_in_its_sources() -> None:
    places = (
        "Exception from src/cpp/infer_request.cpp:246:\nCaught exception: Exception from src/node.cpp:7:\n"
    )
    assert (
        defined.sentence(RuntimeError(f"{places}Concat has no sizes\nmore"))
        == "RuntimeError: Concat has no sizes"
    )
    assert defined.sentence(RuntimeError("Exception from here")) == "RuntimeError: Exception from here"
    assert defined.sentence(RuntimeError(" \n")) == "RuntimeError: no message"
    assert defined.sentence(errors.InvalidInput("rows is 0.")) == "rows is 0."
