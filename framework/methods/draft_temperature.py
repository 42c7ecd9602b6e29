"""The temperature at which a draft is drawn from so that it overlaps most with the target."""

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

WORTHWHILE = 0.01
"""Another temperature than the target's has to add so much of the overlap, or what few texts say is noise."""

_LENGTH = 4  # of the chains: most positions of a text then follow the root or an accepted token


@attrs.define(eq=False)
class Overlaps:
    """The sum of min(T, D) over the vocabulary by the temperature of D, its mean over the positions of texts.

    It is the chance that a single drawn token is accepted. The draft at f times its temperature is its
    distribution to the power of 1 / f, normalised: so one text tells of all temperatures.

    Attributes:
        positions: counted so far.

    Source: Leviathan et al. 2023, section 3.2 (arXiv 2211.17192).
    """

    _sums: Float[Tensor, " factors"] = attrs.field(
        factory=lambda: torch.zeros(len(FACTORS), dtype=torch.float64), init=False
    )
    positions: int = attrs.field(default=0, init=False)

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
            self._sums += torch.stack([torch.minimum(target, draft).sum() for draft in drawn]).cpu()
            self.positions += 1

    @property
    def means(self) -> Float[Tensor, " factors"]:
        """The overlap at each of `FACTORS`, float64; 0 where nothing was counted."""
        return self._sums / max(self.positions, 1)

    @property
    def best(self) -> float:
        """The factor with the largest overlap, or 1 where that is not worth while."""
        means = self.means.tolist()
        most = max(means)
        return FACTORS[means.index(most)] if most > (1 + WORTHWHILE) * means[FACTORS.index(1.0)] else 1.0


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
        InvalidInput: a temperature of 0 or below, where the draft's own does not matter.
    """
    if temperature <= 0:
        raise InvalidInput(
            f"temperature={temperature}: a draft temperature can only be fitted to a target temperature "
            "above 0; give one above 0."
        )
    overlaps = Overlaps()
    watched = _Watched(registry.create("verifiers", "traversal"), overlaps)
    policy = registry.create("policies", "chain", {"length": _LENGTH})
    decoder = SpeculativeDecoder(target, drafter, policy, watched)
    sampling = SamplingParams(temperature=temperature)
    for number, prompt in enumerate(prompts):
        decoder.generate([prompt], max_new_tokens=tokens, sampling=sampling, seed=seed + number)
    return overlaps


def best_draft_temperature(
    target: Any,
    drafter: Any,
    prompts: Iterable[Sequence[int]],
    *,
    temperature: float,
    tokens: int = 32,
    seed: int = 0,
) -> float:
    """The draft's temperature with the largest overlap, to two decimals; arguments as `measured_overlaps`."""
    overlaps = measured_overlaps(target, drafter, prompts, temperature=temperature, tokens=tokens, seed=seed)
    return round(temperature * overlaps.best, 2)


@attrs.frozen(eq=False)
class _Watched(WatchedVerifier):
    """Counts the overlap on every path that is accepted."""

    overlaps: Overlaps

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        outcome: Outcome = self.judge.verify(tree, target_probs, rng)
        self.overlaps.add(tree, target_probs, outcome.path)
        return outcome
