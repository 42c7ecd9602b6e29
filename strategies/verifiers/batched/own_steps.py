"""Which verifiers a batched form stands for: those that judge a row by the very methods it was made from."""

from __future__ import annotations

from draftwood import Verifier

STEPS = ("verify", "judge")
"""Methods by which verifiers judge one row."""


def judges_as(verifier: Verifier, known: type[Verifier]) -> bool:
    """Whether `verifier` judges a row by the methods of `known`; False for a subclass that overrides one."""
    own = type(verifier)
    return all(getattr(own, step, None) is getattr(known, step, None) for step in STEPS)
