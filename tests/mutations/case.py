"""A case in which a mutation shows, and the size of the bias."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any
from unittest import mock

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Randomness, SamplingParams, Streams, TreePolicy, Verifier
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.stopping import RowStops
from draftwood.testing import NextTokenModel, ToyBackend, enumerate_outcomes, joint_law, target_law
from draftwood.trees.prefixes import RowText

Law = dict[tuple[int, ...], float]

CLEAN, BETRAYED = 1e-12, 1e-6


@attrs.frozen
class Betrayal:
    """The text whose probability is the most wrong, what it is and what it should be."""

    text: tuple[int, ...]
    actual: float
    expected: float

    @property
    def error(self) -> float:
        return abs(self.actual - self.expected)


@attrs.frozen(eq=False, kw_only=True)
class Processed(NextTokenModel):
    """A toy model with logits processors in front of it, one context at a time."""

    model: NextTokenModel
    processors: tuple[Any, ...]

    def logits(self, text: Sequence[int]) -> Tensor:
        scores = self.model.logits(text).unsqueeze(0)
        for processor in self.processors:
            scores = processor(torch.tensor([list(text)]), scores)
        return scores[0]


@attrs.frozen
class Case:
    """A composition on toy models.

    Attributes:
        carried: let one loop write the whole text, so that the state of a round comes from the rounds
            before it; else every round starts from a fresh state, which is checked after it.
        eos: tokens that end the text; needs `carried`.
        processors: of target and draft, reading the prefix; needs `carried`.
    """

    policy: TreePolicy
    verifier: Verifier
    target: NextTokenModel
    drafter: Drafter
    temperature: float = 1.0
    tokens: int = 3
    prompt: tuple[int, ...] = (0,)
    carried: bool = False
    eos: frozenset[int] = frozenset()
    processors: tuple[Any, ...] = ()

    def actual(self) -> Law:
        """The law of the texts that the production code writes."""
        if self.carried:
            law: Law = {}
            for weight, text in enumerate_outcomes(self._write):
                law[text] = law.get(text, 0.0) + weight
            return law
        return joint_law(
            self.policy,
            self.verifier,
            target=self.target,
            drafter=self.drafter,
            prompt=self.prompt,
            tokens=self.tokens,
            temperature=self.temperature,
        ).probabilities

    def expected(self) -> Law:
        """The law of sequential sampling."""
        law: Law = {}
        target = self.target
        if self.processors:
            target = Processed(target.vocab_size, model=target, processors=self.processors)
        uncut = target_law(target, prompt=self.prompt, tokens=self.tokens, temperature=self.temperature)
        for text, chance in uncut.items():
            ends = next((n for n, token in enumerate(text, start=1) if token in self.eos), len(text))
            law[text[:ends]] = law.get(text[:ends], 0.0) + chance
        return law

    def betrayal(self) -> Betrayal:
        actual, expected = self.actual(), self.expected()
        return max(
            (
                Betrayal(text, actual.get(text, 0.0), expected.get(text, 0.0))
                for text in sorted(actual.keys() | expected.keys())
            ),
            key=lambda one: one.error,
        )

    def _write(self, rng: Randomness) -> tuple[int, ...]:
        sampling = SamplingParams(temperature=self.temperature, processors=self.processors)
        backend, prompt = ToyBackend(self.target), list(self.prompt)
        row = BatchRow(
            0,
            prompt[-1],
            self.policy,
            Streams(rng, rng),
            RowStops(0, self.eos, self.tokens),
            RowSettings(sampling, sampling),
            RowText.of(torch.tensor(prompt)),
        )
        loop = RoundLoop(target=backend, drafter=self.drafter, verifier=self.verifier, held=[row])
        state = torch.tensor(prompt[:-1], dtype=torch.int64)
        backend.prefill([state])
        self.drafter.prefill([state])
        text: list[int] = []
        try:
            while loop.rows:
                text += loop.run().rows[0].tokens
        finally:
            self.drafter.release()
        return tuple(text)


@attrs.frozen
class Mutation:
    """One mistake.

    Attributes:
        name: what is wrong.
        story: where it was seen.
        twin: a case in which everything is right.
        changes: the parts of the case that are wrong instead.
        patch: an object of the production code, the name of a method of it, and its replacement.
        breaks_law_p: whether the policy's children do not follow the declared law.
    """

    name: str
    story: str
    twin: Case
    changes: Mapping[str, Any] = attrs.field(factory=dict)
    patch: tuple[Any, str, Any] | None = None
    breaks_law_p: bool = False

    @property
    def clean(self) -> float:
        """The twin's error; twins that are equal are enumerated once."""
        return _clean(self.twin)

    @property
    def case(self) -> Case:
        """The twin with the mistake, but for what is patched."""
        return attrs.evolve(self.twin, **self.changes)

    def betrayal(self) -> Betrayal:
        with mock.patch.object(*self.patch) if self.patch else nullcontext():
            return self.case.betrayal()


@cache
def _clean(twin: Case) -> float:
    return twin.betrayal().error
