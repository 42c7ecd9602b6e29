"""Drafts of further models, which tell apart the mistakes that have the same law on a proof's own models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from draftwood.base.errors import DraftwoodError
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import Proposal
from draftwood.testing.models.toy import ToyModel
from draftwood.testing.samplers.continued_laws import Emitted
from draftwood.testing.samplers.sampler_cases import Draft, drafts, residual
from draftwood.testing.samplers.sampler_runs import CheckedSampler
from draftwood.testing.samplers.torch_randomness import RAISED

_MORE_TOKENS = (0, 2, 5)
"""Tokens added to the vocabulary: rules of rank and of thresholds differ in a larger one."""

_MOST_DRAFTS = 150
"""Drafts of a model, at most: for trees a larger vocabulary would cost more than the proof itself."""

_MOST_CALLS = 3_000
"""Calls of the sampler in some rounds, after which no further draft is enumerated."""

_MOST_POINTS = 10_000
"""Such calls of a sampler that is given its uniforms; each takes less time."""

_SHARPNESS = (0.3, 1.0, 1.5, 2.5, 5.0)
"""Sharpness of the targets, from flat to nearly one-hot."""


def further_evidence(
    checked: CheckedSampler,
    vocab_size: int,
    rounds: range,
    *,
    parents: Sequence[int],
    law: type[Proposal],
    settings: Sequence[SamplingParams],
) -> list[tuple[Draft, Emitted]]:
    """Returns drafts of further models, each with the law of the tokens that the sampler emits on it.

    Every model and settings give the likeliest draft, the least likely one, one between them, and the one
    whose first tokens are rejected most often: what comes after rejections seldom shows on the others.
    Drafts on which the sampler raises, or cannot be enumerated, are left out: it may be written for one
    vocabulary.

    Args:
        checked: the sampler; its calls are counted and its faults kept there, so give a new one.
        vocab_size: that the models of the proof have.
        rounds: their numbers; each has other models of the same kinds.
        parents, law, settings: as the proof has them.

    Raises:
        CannotEnumerate: of `checked.check_time`, where it takes too long.
    """
    evidence = []
    most = checked.calls + (_MOST_CALLS if checked.uniforms is None else _MOST_POINTS)
    sizes = [more for more in _MORE_TOKENS if not more or (vocab_size + more) ** len(parents) <= _MOST_DRAFTS]
    for number, more, sharpness, one in itertools.product(rounds, sizes, _SHARPNESS, settings):
        if checked.calls > most:
            break
        checked.check_time()
        seed = 1000 + 100 * number + 10 * more + 2 * _SHARPNESS.index(sharpness)
        target = ToyModel(vocab_size + more, seed, sharpness=sharpness)
        draft = ToyModel(vocab_size + more, seed + 1, near=target if number % 2 else None)
        possible = drafts(target, draft, parents=parents, law=law, dtype=checked.dtype, settings=one)
        possible.sort(key=lambda drawn: -drawn.weight)
        telling = max(range(len(possible)), key=lambda index: _told_by_rejections(possible[index]))
        some = (0, len(possible) // 2, len(possible) - 1, telling)
        for drawn in (possible[index] for index in dict.fromkeys(some)):
            try:
                emitted = checked.enumerated(drawn)
            except (DraftwoodError, AssertionError):
                continue
            if RAISED not in emitted:
                evidence.append((drawn, emitted))
    return evidence


def _told_by_rejections(drawn: Draft) -> float:
    """Returns how much the token after the root's rejected children tells of the rule that draws it.

    It is the probability of the rejections times the distance between the first residual and the last one.
    """
    tree, children = drawn.tree, drawn.tree.children(0)
    tokens = [int(tree.tokens[child]) for child in children]
    left, rejected, residuals = drawn.target_probs[0].double(), 1.0, []
    for rank, token in enumerate(tokens):
        law = tree.proposals[0].conditional(rank, tuple(tokens[:rank])).double()
        rejected *= max(1 - float(left[token] / law[token]), 0.0)
        left = residual(left, law)
        residuals.append(left)
    return rejected * (float((residuals[0] - residuals[-1]).abs().max()) + 1e-3)
