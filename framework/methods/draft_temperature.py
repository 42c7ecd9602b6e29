"""The draft's temperature by which most of what it proposes is accepted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import Randomness
from draftwood.methods.watched_verifier import WatchedVerifier
from draftwood.protocols import registry
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

FACTORS = tuple(2 ** (step / 12) for step in range(-12, 13))
"""Temperatures that are tried, over the one at which the draft was drawn from: half to double, 6 % apart."""

OWN = FACTORS.index(1.0)

WORTHWHILE = 0.01
"""Another temperature has to add so much of the overlap or likelihood."""

ERRORS = 2.0
"""Standard errors of its mean that a gain must exceed, as few positions show one by chance."""

UNLIKELY = 1e-4
"""No tree takes a token that the draft finds less likely, so it does not matter how much less."""

_LENGTH = 4  # of the chains: most positions of a text then follow the root or an accepted token


@attrs.define(eq=False)
class ByFactor:
    """Means over positions of texts of what the draft is worth, at each of `FACTORS` of its temperature.

    The draft at f times its temperature is its distribution to the power of 1 / f, normalised: so one text
    tells of all temperatures.

    Attributes:
        positions: counted so far.
    """

    _sums: Float[Tensor, " factors"] = attrs.field(
        factory=lambda: torch.zeros(len(FACTORS), dtype=torch.float64), init=False
    )
    positions: int = attrs.field(default=0, init=False)
    _squares: Float[Tensor, " factors"] = attrs.field(  # of what each is worth beyond factor 1
        factory=lambda: torch.zeros(len(FACTORS), dtype=torch.float64), init=False
    )

    def add(self, tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"], path: Sequence[int]) -> None:
        """Count the nodes of `path` that have children.

        Args:
            tree: of a law that knows its tokens' first chances, drawn from the whole softmax.
            target_probs: the target's distribution after each node.
            path: the accepted nodes, root first, so that the text is the target's.
        """
        for node in (node for node in path if tree.children(node)):
            logs = tree.proposals[node].conditional(0, ()).double().log()
            target = target_probs[node].to(logs)
            drawn = (torch.softmax(logs / factor, -1) for factor in FACTORS)
            worth = torch.stack([self.worth(target, draft) for draft in drawn]).cpu()
            self._sums += worth
            self._squares += (worth - worth[OWN]).square()
            self.positions += 1

    def worth(self, target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
        """Returns what is counted of one position, by the distributions of both."""
        raise NotImplementedError

    @property
    def means(self) -> Float[Tensor, " factors"]:
        """The mean at each of `FACTORS`, float64; 0 where nothing was counted."""
        return self._sums / max(self.positions, 1)

    @property
    def best(self) -> float:
        """The factor with the largest mean, or 1 where that is not worth while or may be chance."""
        if self.positions < 2:
            return 1.0
        means, n = self.means, self.positions
        gains = means - means[OWN]
        errors = ((self._squares - n * gains.square()).clamp(min=0) / (n * (n - 1))).sqrt()
        most = int(gains.argmax())
        least = max(self.least_gain(float(means[OWN])), ERRORS * float(errors[most]))
        return FACTORS[most] if float(gains[most]) > least else 1.0

    def least_gain(self, own: float) -> float:
        """Returns what has to be added to the mean at the draft's `own` temperature to be worth while."""
        raise NotImplementedError


@attrs.define(eq=False)
class Overlaps(ByFactor):
    """The overlap sum of min(T, D), which is the chance that a single drawn token is accepted.

    Source: Leviathan et al. 2023, section 3.2 (arXiv 2211.17192).
    """

    def worth(self, target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
        return torch.minimum(target, draft).sum()

    def least_gain(self, own: float) -> float:
        return WORTHWHILE * own


@attrs.define(eq=False)
class Likelihoods(ByFactor):
    """The log of the draft's probability of the target's choice, for a target at temperature 0.

    Where it is largest, the draft's probabilities say best how often its likeliest tokens are accepted, and
    a tree of its most likely paths is the tree that writes most.

    Source: Guo et al. 2017, section 4.2 (arXiv 1706.04599).
    """

    def worth(self, target: Float[Tensor, " vocab"], draft: Float[Tensor, " vocab"]) -> Float[Tensor, ""]:
        return draft[target.argmax()].clamp(min=UNLIKELY).log()

    def least_gain(self, own: float) -> float:
        return WORTHWHILE


def measured_overlaps(
    target: Any,
    drafter: Any,
    prompts: Iterable[Sequence[int]],
    *,
    temperature: float,
    tokens: int = 32,
    seed: int = 0,
) -> Overlaps:
    """Measures overlaps on texts that the target writes after `prompts`.

    Args:
        target, drafter: as `SpeculativeDecoder` takes them.
        prompts: calibration prompts; test on different ones.
        temperature: the target's temperature, above 0.
        tokens: of a text.
        seed: of the first prompt's draws; each further prompt has the next.

    Raises:
        InvalidInput: a temperature of 0 or below, where nothing is drawn.
    """
    if temperature <= 0:
        raise InvalidInput(
            f"temperature={temperature}: overlaps are of tokens that are drawn; give a temperature above 0, "
            "or measure likelihoods."
        )
    counted, sampling = Overlaps(), SamplingParams(temperature=temperature)
    _count(counted, target, drafter, prompts, sampling=sampling, tokens=tokens, seed=seed)
    return counted


def measured_likelihoods(
    target: Any, drafter: Any, prompts: Iterable[Sequence[int]], *, tokens: int = 32, seed: int = 0
) -> Likelihoods:
    """Measures likelihoods on greedy texts of the target; arguments as `measured_overlaps`."""
    counted, greedy = Likelihoods(), SamplingParams(temperature=0)
    _count(counted, target, drafter, prompts, sampling=greedy, tokens=tokens, seed=seed)
    return counted


def best_draft_temperature(
    target: Any,
    drafter: Any,
    prompts: Iterable[Sequence[int]],
    *,
    temperature: float,
    tokens: int = 32,
    seed: int = 0,
) -> float:
    """The best temperature of the draft, to two decimals; arguments as `measured_overlaps`.

    Above temperature 0 the one with the largest overlap. At 0 children are the draft's likeliest tokens, and
    its temperature decides on the shape of trees that follow its probabilities: the one with the largest
    likelihood.
    """
    options: Any = {"tokens": tokens, "seed": seed}
    if temperature == 0:
        return round(measured_likelihoods(target, drafter, prompts, **options).best, 2)
    overlaps = measured_overlaps(target, drafter, prompts, temperature=temperature, **options)
    return round(temperature * overlaps.best, 2)


def _count(
    counted: ByFactor,
    target: Any,
    drafter: Any,
    prompts: Iterable[Sequence[int]],
    *,
    sampling: SamplingParams,
    tokens: int,
    seed: int,
) -> None:
    """Count the positions of texts, along chains that are drawn at the target's temperature, or else at 1."""
    policy = registry.create("policies", "chain", {"length": _LENGTH})
    watched = _Watched(registry.create("verifiers", "traversal"), counted)
    decoder = SpeculativeDecoder(target, drafter, policy, watched)
    for number, prompt in enumerate(prompts):
        decoder.generate([prompt], max_new_tokens=tokens, sampling=sampling, seed=seed + number)


@attrs.frozen(eq=False)
class _Watched(WatchedVerifier):
    """Counts what every accepted path is worth."""

    counted: ByFactor

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        outcome: Outcome = self.judge.verify(tree, target_probs, rng)
        self.counted.add(tree, target_probs, outcome.path)
        return outcome
