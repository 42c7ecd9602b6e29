"""All mistakes of the suite, each with the named check that is to catch it."""

from __future__ import annotations

from collections.abc import Mapping

from draftwood.strategies.verifiers.block import Block
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.typical import Typical
from draftwood.testing import checks_for
from draftwood.testing.checks.decoding_checks import decoding_checks
from tests.mutations import (
    backends,
    decoding_mistakes,
    drafters,
    policy_mistakes,
    race_mistakes,
    second_reader,
    verifier_mistakes,
)
from tests.mutations.case import Mutation
from tests.mutations.mistake import Mistake
from tests.mutations.suite import MUTATIONS


def _of_mutation(one: Mutation) -> Mistake | None:
    """A mistake of the exact suite as one of a policy or a verifier.

    None for mistakes of other parts, and of verifiers that declare what they are: they have separate
    entries, which break a check of the part.
    """
    twin, case = one.twin, one.case
    patches = [one.patch] if one.patch else []
    if case.policy is not twin.policy and one.breaks_law_p:
        return Mistake(one.name, one.story, "policy", lambda: twin.policy, lambda: case.policy)
    if isinstance(twin.verifier, Block):
        return Mistake(one.name, one.story, "verifier", lambda: twin.verifier, patches=patches)
    honest = isinstance(case.verifier, (Typical, ClassOrderedTraversal))
    if case.verifier is not twin.verifier and not honest:
        return Mistake(one.name, one.story, "verifier", lambda: twin.verifier, lambda: case.verifier)
    return None


_LATER = {one.name for one in decoding_mistakes.MISTAKES}

EVERY: list[Mistake] = [
    *(mistake for one in MUTATIONS if one.name not in _LATER and (mistake := _of_mutation(one)) is not None),
    *policy_mistakes.MISTAKES,
    *verifier_mistakes.MISTAKES,
    *race_mistakes.MISTAKES,
    *decoding_mistakes.MISTAKES,
    *backends.MISTAKES,
    *drafters.MISTAKES,
    *second_reader.MISTAKES,
]


def known_checks(mistake: Mistake) -> Mapping[str, object]:
    """The checks of the mistake's part, by name."""
    if mistake.part == "decoding":
        return dict(decoding_checks())
    # A mistake may promise more, and so be asked more.
    makes = [mistake.right, *([mistake.wrong] if mistake.wrong else [])]
    return {name: check for make in makes for name, check in checks_for(make())}
