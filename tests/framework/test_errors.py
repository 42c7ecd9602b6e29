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
