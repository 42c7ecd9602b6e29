"""A batched form stands for the verifiers that judge a row by the very methods that it was made from."""

from __future__ import annotations

from draftwood import Verifier


def judges_as(verifier: Verifier, known: type[Verifier]) -> bool:
    """Whether `verifier` judges a row by the methods of `known`; False for a subclass that overrides one.

    They are `verify`, and `judge` where a verifier has it (see `NodeWise`).
    """
    own = type(verifier)
    return own.verify is known.verify and getattr(own, "judge", None) is getattr(known, "judge", None)
