"""The methods that the demo compares on the same texts, and their contest.

All of them share one target and one draft and decode at temperature 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import attrs

from draftwood import SamplingParams, SpeculativeDecoder, create
from draftwood.apps.bench.figures import common
from draftwood.apps.bench.writers import Speculative, Text, Transformers, Writer
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.decoding.metrics import value
from draftwood.protocols import registry

ORDINARY, ASSISTED, DYSPEC = "generate()", "assisted generation", "DySpec"


@attrs.frozen
class Method:
    """A policy by name with its options, and the temperature at which the draft shapes its trees."""

    policy: str
    options: dict[str, Any]
    draft_temperature: float = 1.0


# At temperature 0 children that are the draft's most likely tokens serve best; sizes and temperature
# are those that were fastest on two CPU cores. DySpec's tree is grown layer by layer here, which takes
# fewer passes of the draft, and leaves out slots of little value (its algorithm 2, under a budget).
METHODS: dict[str, Method] = {
    "chain": Method("chain", {"length": 6, "law": "top-k"}),
    "fixed tree": Method(
        "fixed-tree", {"depth": 8, "branching": 2, "budget": 24, "threshold": 0.03, "law": "top-k"}
    ),
    DYSPEC: Method(
        "layered-dyspec", {"budget": 24, "threshold": 0.05, "law": "top-k"}, draft_temperature=0.8
    ),
}


def writers(model: Any, draft: Any) -> dict[str, Writer]:
    """`generate()`, assisted generation and draftwood by each method, on the same two models, by name."""
    greedy = SamplingParams(temperature=0)
    return {
        ORDINARY: Transformers(model, {}, 0),
        ASSISTED: Transformers(model, {"assistant_model": draft}, 0),
        **{
            name: Speculative(decoder(model, draft, method), greedy, SamplingParams(method.draft_temperature))
            for name, method in METHODS.items()
        },
    }


def decoder(model: Any, draft: Any, method: Method, *, head: str | None = None) -> SpeculativeDecoder:
    """The greedy decoder of a method; `head` names one that drafts instead of the model `draft`."""
    target = registry.load(model)
    name, options = (drafters.drafter_of(head) if head else None) or ("model", {"backend": draft})
    return SpeculativeDecoder(
        target,
        create("drafters", name, {"target": target, **options} if name != "model" else options),
        create("policies", method.policy, method.options),
        create("verifiers", "greedy"),
    )


@attrs.frozen
class ContestText:
    """One text of the contest: who wrote it, and after which prompt."""

    contender: str
    prompt: int
    text: Text


def contest(
    entrants: Mapping[str, Writer], prompts: Sequence[Sequence[int]], *, tokens: int
) -> Iterator[ContestText]:
    """Every contender on every prompt, taking turns; who begins changes from prompt to prompt.

    Whatever slows the machine down for a while then slows all of them down.
    """
    names = list(entrants)
    for number, prompt in enumerate(prompts):
        first = number % len(names)
        for name in (*names[first:], *names[:first]):
            yield ContestText(name, number, entrants[name].write(prompt, tokens, seed=0))


def until(seconds: float, texts: Iterator[ContestText]) -> Iterator[ContestText]:
    """The texts of every prompt that was begun within `seconds`."""
    deadline, prompt = perf_counter() + seconds, None
    for entry in texts:
        # A text is written when it arrives here, so the first of a new prompt is let go.
        if entry.prompt != prompt and prompt is not None and perf_counter() > deadline:
            return
        prompt = entry.prompt
        yield entry


@attrs.frozen
class Result:
    """One contender's figures over all prompts.

    Attributes:
        tokens_per_second, speed_up, tokens_per_round, acceptance_rate: as in `draftwood.decoding.metrics`;
            the last is None where nothing is drafted.
        agreement: the part of `generate()`'s tokens before the first that differs.
    """

    contender: str
    tokens_per_second: float
    speed_up: float
    tokens_per_round: float
    agreement: float
    acceptance_rate: float | None

    @property
    def equal(self) -> bool:
        """Whether every text is that of `generate()`."""
        return self.agreement == 1


def result(texts: Sequence[ContestText], contender: str) -> Result:
    """The figures of `contender` against `generate()` in the same contest."""
    ours = [entry.text for entry in texts if entry.contender == contender]
    plain = [entry.text for entry in texts if entry.contender == ORDINARY]
    expected = {entry.prompt: entry.text.tokens for entry in texts if entry.contender == ORDINARY}
    sums: dict[str, float] = {
        "tokens": sum(len(text.tokens) for text in ours),
        "seconds": sum(text.seconds for text in ours),
        "rounds": sum(text.rounds for text in ours),
        "prefill_tokens": sum(text.prefill_tokens for text in ours),
        "drafted": sum(text.drafted or 0 for text in ours),
        "accepted": sum(text.accepted or 0 for text in ours),
        "plain_tokens": sum(len(text.tokens) for text in plain),
        "plain_seconds": sum(text.seconds for text in plain),
    }
    agreeing = sum(
        common(entry.text.tokens, expected[entry.prompt]) for entry in texts if entry.contender == contender
    )
    return Result(
        contender=contender,
        tokens_per_second=value("tokens_per_second", sums),
        speed_up=value("speed_up", sums),
        tokens_per_round=value("tokens_per_round", sums),
        agreement=agreeing / sums["tokens"],
        acceptance_rate=value("acceptance_rate", sums) if sums["drafted"] else None,
    )
