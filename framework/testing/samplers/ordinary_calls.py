"""Compares the enumeration of a sampler with calls of it in which random numbers are ordinary ones."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import numpy as np
import torch

from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.proofs.hidden_randomness import kept_states
from draftwood.testing.samplers.continued_laws import Emitted, Text
from draftwood.testing.samplers.sampler_cases import Draft
from draftwood.testing.samplers.torch_randomness import RAISED

CALLS = 100
"""Calls on a draft before a verdict against a sampler."""

FEWER_CALLS = 50
"""Calls on a draft before a verdict for it."""

REPEATED = 2000
"""Calls from one seed, over all drafts, that look for a source of chance that has another."""

_SELDOM = 1e-9
"""Probability that a right enumeration is refused, for each kind of text."""


def compare_with_calls(
    call: Callable[[Draft], Text],
    evidence: Sequence[tuple[Draft, Emitted]],
    *,
    calls: int,
    seed: int,
) -> None:
    """Raise `CannotEnumerate` where ordinary calls do not have the law that was enumerated.

    A sampler may take another path for numbers that are not drawn yet, such as the fallback of a `try`.

    Args:
        call: calls the sampler and returns its tokens.
        evidence: drafts, each with the enumerated law of the emitted tokens.
        calls: of each draft.
        seed: of the generators of the process, which are set back in the end.
    """
    with kept_states():
        _seed_all(seed)
        for draft, law in evidence:
            counts: dict[Text, int] = {}
            for _ in range(calls):
                text = call(draft)
                counts[text] = counts.get(text, 0) + 1
            for text in sorted(law.keys() | counts.keys()):
                share, chance = counts.get(text, 0) / calls, law.get(text, 0.0)
                # Chernoff's bound for each share.
                if calls * _divergence(share, chance) > math.log(2 / _SELDOM):
                    raise CannotEnumerate(
                        f"With ordinary random numbers {_told(text)} comes in {share:.3f} of {calls} calls, "
                        f"and with numbers that are not drawn yet with probability {chance:.3f}, so it tells "
                        "them apart and its outcomes cannot be listed; give samples=."
                    )


def differs_from_one_seed(call: Callable[[], Text], *, calls: int, seed: int) -> bool:
    """Returns whether calls that all begin with the same seed give several texts: another source decides."""
    found = set[Text]()
    with kept_states():
        for _ in range(calls):
            _seed_all(seed)
            found.add(call())
            if len(found) > 1:
                return True
    return False


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _told(text: Text) -> str:
    return "an error" if text == RAISED else f"the text {text}"


def _divergence(share: float, chance: float) -> float:
    """Returns the relative entropy of two events in nats; rounding makes no chance of 0 or 1."""
    chance = min(max(chance, 0.0), 1.0)
    parts = ((share, chance), (1 - share, 1 - chance))
    if any(one > 0 and other < 1e-12 for one, other in parts):
        return math.inf
    return sum(one * math.log(one / other) for one, other in parts if one > 0)
