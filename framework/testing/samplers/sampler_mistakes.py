"""Finds the known mistake that explains a biased sampler: its law is compared with wrong samplers' laws."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import attrs

from draftwood.laws.proposals import Deterministic
from draftwood.laws.randomness import Randomness
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.samplers.known_mistakes import KNOWN, Mistake, Step
from draftwood.testing.samplers.known_parts import RIGHT
from draftwood.testing.samplers.known_tree_mistakes import KNOWN_OF_TREES, TreeMistake
from draftwood.testing.samplers.mistake_families import FAMILIES
from draftwood.testing.samplers.mistakes_by_part import of_its_parts, tests_without_a_coin
from draftwood.testing.samplers.sampler_cases import Draft

Emitted = dict[tuple[int, ...], float]

_NEAR = 0.16
"""Largest error of a family's law between two numbers that are tried, if one between them is right."""

_ROUNDS = 6
"""Rounds of further models for a sampler that accepts always or never."""

_CONFIRMING = range(_ROUNDS, _ROUNDS + 3)
"""Rounds of further models that a mistake must explain too before it is named."""

M = TypeVar("M", Mistake, TreeMistake)

Evidence = Sequence[tuple[Draft, Emitted]]
"""Drafts of all models, each with the law of the tokens that the sampler emitted on it."""


def _law(draft: Draft, mistake: Mistake) -> Emitted:
    """Returns the law of the tokens that a sampler with this mistake emits on one draft."""

    def run(rng: Randomness) -> tuple[int, ...]:
        tokens = draft.case.draft_tokens.tolist()
        step = Step(draft.target_probs.double(), draft.case.draft_probs.double(), tokens, 0)
        lowest = 1.0
        for index in range(len(tokens)):
            step = attrs.evolve(step, index=index)
            chance = min(mistake.ratio(step), 1.0)
            if mistake.shared:
                # Accepted so far: the coin is uniform below the lowest chance.
                chance, lowest = min(chance / lowest, 1.0) if lowest else 0.0, min(lowest, chance)
            if not rng.accept(chance):
                return (*tokens[:index], rng.choose(mistake.left(step)))
        last = mistake.last(step)
        return (*tokens, rng.choose(last)) if last is not None else tuple(tokens)

    return _enumerated(run)


def _law_of_tree(draft: Draft, mistake: TreeMistake) -> Emitted:
    """Returns the law of the tokens that a sampler of trees with this mistake emits on one draft."""
    return _enumerated(lambda rng: mistake.emitted(draft, rng))


def _enumerated(run: Callable[[Randomness], tuple[int, ...]]) -> Emitted:
    law: Emitted = {}
    for weight, text in enumerate_outcomes(run):
        law[text] = law.get(text, 0.0) + weight
    return law


def likely_mistake(evidence: Evidence, more: Callable[[range], Evidence], tolerance: float) -> str:
    """The mistake whose law on every draft is the sampler's, in a sentence; empty if none is.

    Where two have this law both are told, and where more have it none is. Where none has it each part of a
    sampler of chains is looked at by itself: two may be wrong, or the wrong part be known and its rule not.

    Args:
        evidence: of the models of the proof.
        more: gives that of further models, by the numbers of rounds.
        tolerance: largest difference of two probabilities that are taken as equal.
    """
    # Numbers are fitted to drafts of the proof: sharp further models often show nothing of a number.
    own = sorted(evidence, key=lambda pair: -pair[0].weight)
    evidence = [*evidence, *more(range(1))]
    chains = all(draft.case.parents.tolist() == list(range(len(draft.case.parents))) for draft, _ in evidence)
    # The rules of chains take it that tokens were drawn.
    drawn = evidence[0][0].case.law is not Deterministic
    if chains and drawn and tests_without_a_coin(evidence, tolerance):
        # Rules that accept always or never have the same law on many drafts.
        evidence = [*evidence, *more(range(1, _ROUNDS))]
    # The drafts that are made most often tell most mistakes apart.
    evidence = sorted(evidence, key=lambda pair: -pair[0].weight)
    if not (chains and drawn):
        return _of_tree(evidence, partial(more, _CONFIRMING), tolerance)

    found = _explaining(KNOWN, _law, evidence, tolerance)
    found = found or _explaining(_fitted(own, tolerance), _law, evidence, tolerance)
    if found:
        # Of those that are no longer found the parts may tell something.
        evidence = [*evidence, *more(_CONFIRMING)]
        if found := _explaining(found, _law, evidence, tolerance):
            # A mistake in one part may have the same law on drafts of so few tokens.
            of_parts, _ = of_its_parts(evidence, tolerance)
            told = {one.says: one for one in (*found, *_explaining(of_parts, _law, evidence, tolerance))}
            return _named(list(told.values()))
    of_parts, rest = of_its_parts(evidence, tolerance)
    return _named(_explaining(of_parts, _law, evidence, tolerance)) or rest


def _of_tree(evidence: Evidence, more: Callable[[], Evidence], tolerance: float) -> str:
    """Returns the mistake of a sampler of trees, whose siblings follow one law."""
    law = evidence[0][0].case.law
    mistakes = [mistake for mistake in KNOWN_OF_TREES if law in mistake.laws]
    found = _explaining(mistakes, _law_of_tree, evidence, tolerance)
    return _named(_explaining(found, _law_of_tree, more(), tolerance)) if found else ""


def _explaining(
    mistakes: Iterable[M], law_of: Callable[[Draft, M], Emitted], evidence: Evidence, tolerance: float
) -> list[M]:
    """Returns the mistakes whose law on every draft is the one that was seen."""
    return [
        mistake
        for mistake in mistakes
        if all(_off(law_of(draft, mistake), law) <= tolerance for draft, law in evidence)
    ]


def _named(found: Sequence[Mistake | TreeMistake]) -> str:
    """Returns the one mistake that was found, or both of two that have the same law."""
    if len(found) == 2:
        return f"one of two mistakes with the same law. First: {found[0].says} Second: {found[1].says}"
    return found[0].says if len(found) == 1 else ""


def _fitted(evidence: Evidence, tolerance: float) -> Iterator[Mistake]:
    """Yields of each family the mistake whose number comes closest, where it comes close."""
    # A number shows only where the law is not the right one: heavy drafts of one-hot models have one token.
    wrong = (pair for pair in evidence if _off(_law(pair[0], RIGHT), pair[1]) > tolerance)
    few = list(itertools.islice(wrong, 3))
    if not few:
        return
    for family in FAMILIES:

        def off(exponent: float, family: Callable[[float], Mistake] = family) -> float:
            return max(_off(_law(draft, family(2.0**exponent)), law) for draft, law in few)

        # A number of 1 is no mistake.
        grid = [-1 / 8, 1 / 8, *(step / 4 for step in range(-12, 13) if step)]
        nearest = min(grid, key=off)
        if off(nearest) > _NEAR:
            continue
        found = _smallest(off, nearest - 0.25, nearest + 0.25, tolerance)
        if abs(found) > 1e-3:
            yield family(2.0**found)


def _smallest(off: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Returns the place of the minimum between `low` and `high`, by thirds."""
    for _ in range(60):
        first, second = low + (high - low) / 3, high - (high - low) / 3
        if off(first) < off(second):
            high = second
        else:
            low = first
        if off((low + high) / 2) < tolerance / 100:
            break
    return (low + high) / 2


def _off(one: Emitted, other: Emitted) -> float:
    return max(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in one.keys() | other.keys())
