"""The trial of candidates: those that cannot gain are left out, and a clear no ends it early."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic

import attrs

from draftwood import PassCosts
from draftwood.apps.bench.specs import Spec
from draftwood.apps.bench.writers import Text, Writer
from draftwood.apps.models.by_name import EngineName
from draftwood.apps.terminal.progress import duration, progress
from draftwood.apps.terminal.shown import to_stderr
from draftwood.apps.tune.measure import Estimate, TuneTrial, estimate

LOOK_PROMPTS, LOOK_TOKENS = 2, 16
LOOK_SECONDS = 60.0
"""A first look begins no further text after this time."""
_CLEAR = 0.85  # times of single short texts vary
_KEPT = 0.7  # a candidate whose expected gain is a smaller part of the best one's is given up


def most_gain(spec: Spec, trial: TuneTrial, costs: PassCosts) -> float:
    """Returns the gain of a candidate if every level of its tree had an accepted token.

    A tree of n nodes over d levels gives at most d + 1 tokens a round, for d draft calls and a target pass
    over n + 1 tokens. It is infinite for candidates whose number of nodes is not known.
    """
    if spec.budget is None:
        return float("inf")
    by_model = costs.draft is not None and spec.strategy(trial.temperature).drafter is None
    draft = costs.draft(1) if costs.draft is not None and by_model else 0.0
    target, nodes = costs.target, spec.budget
    if trial.loaded.loader.engine is not EngineName.eager:  # an engine may run all levels in one call
        return float((nodes + 1) * target(1) / (draft + target(nodes + 1)))
    gains = ((deep + 1) * target(1) / (deep * draft + target(nodes + 1)) for deep in range(1, nodes + 1))
    return float(max(gains))


def number_of(count: int, noun: str) -> str:
    """Returns the count with its noun, such as "1 prompt" or "4 prompts"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@attrs.define(eq=False)
class Candidates:
    """The candidates that are still tried, and the texts that all have written.

    Attributes:
        trial: the models and prompts.
        costs: of passes.
        running: the candidates that are still tried.
        texts: texts by label.
    """

    trial: TuneTrial
    costs: PassCosts
    running: list[Spec]
    texts: dict[str, list[Text]] = attrs.field(factory=dict)
    _writers: dict[str, Writer] = attrs.field(factory=dict)

    def estimates(self) -> list[Estimate]:
        """Returns the estimates of all candidates that have written, the largest gain first."""
        found = [estimate(label, texts, self.costs) for label, texts in self.texts.items()]
        return sorted(found, key=lambda one: one.gain, reverse=True)

    @property
    def may_gain(self) -> bool:
        """Returns whether any single text comes near the speed of ordinary decoding; else the no is clear."""
        return any(
            estimate("", [text], self.costs).gain > _CLEAR for texts in self.texts.values() for text in texts
        )

    def look(self, tokens: int) -> None:
        """Have all candidates write a few tokens, `tokens` at most, for about `LOOK_SECONDS` at most."""
        prompts = self.trial.prompts[:LOOK_PROMPTS]
        self._write("First look", prompts, min(LOOK_TOKENS, tokens), until=monotonic() + LOOK_SECONDS)

    def try_all(self, tokens: int) -> None:
        """Have the candidates that are left write `tokens` tokens after every prompt; these texts count."""
        for spec in self.running:
            self.texts.pop(spec.label, None)
        self._write("Trial", self.trial.prompts, tokens)

    def _write(
        self, what: str, prompts: Sequence[Sequence[int]], tokens: int, until: float = float("inf")
    ) -> None:
        seconds = min(self._expected(len(prompts) * tokens), until - monotonic())
        to_stderr(
            f"{what}: {number_of(len(self.running), 'candidate')}, {tokens} tokens after "
            f"{number_of(len(prompts), 'prompt')}, about {duration(seconds)}."
        )
        total = len(self.running) * len(prompts)
        for _ in progress(self._written(prompts, tokens, until), what, total=total, say=str):
            pass

    def _expected(self, tokens: int) -> float:
        """Returns the seconds for so many tokens by every candidate, if half of them were drafted."""
        passes = sum(self.costs.target(1 + (spec.budget or 16)) for spec in self.running)
        return float(passes * tokens / 2)

    def _written(self, prompts: Sequence[Sequence[int]], tokens: int, until: float) -> Iterator[str]:
        """Yields the label of a candidate after each of its texts; gives up the weak ones after a prompt."""
        for number, prompt in enumerate(prompts):
            for spec in self.running:
                if spec.label not in self._writers:
                    self._writers[spec.label] = self.trial.warmed(spec)
                text = self._writers[spec.label].write(prompt, tokens, self.trial.seed + number)
                self.texts.setdefault(spec.label, []).append(text)
                yield spec.label
                if monotonic() > until:
                    return
            gains = {one.label: one.gain for one in self.estimates()}
            best = max(gains[spec.label] for spec in self.running)
            self.running = [spec for spec in self.running if gains[spec.label] >= _KEPT * best]
