"""The ways to write the same text that the demo and the benchmark compare, and how they are timed.

All contenders share one target and one draft, decode at temperature 0 and write on past any
end-of-text, so that every one of them writes the same number of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import mean, median
from time import perf_counter
from typing import Any, Protocol

import attrs

from draftwood import SamplingParams, SpeculativeDecoder, create, registry
from draftwood.decoder import Generation

ORDINARY, ASSISTED, DYSPEC = "generate()", "assisted generation", "DySpec"


@attrs.frozen
class Sample:
    """One text that one contender wrote.

    Attributes:
        tokens: the new tokens.
        seconds: wall time of the whole call, prompt included.
        rounds: passes of the target that made new tokens.
        acceptance: accepted draft tokens over drafted ones, where it is known.
        overhead: the part of the rounds that is neither draft pass nor target pass, where it is known.
    """

    tokens: list[int]
    seconds: float
    rounds: int
    acceptance: float | None = None
    overhead: float | None = None


class Contender(Protocol):
    """One way to write."""

    name: str

    def write(self, prompt: Sequence[int], tokens: int) -> Sample:
        """Exactly `tokens` tokens after `prompt`."""
        ...


@attrs.frozen(eq=False)
class Transformers(Contender):
    """`model.generate`; with an assistant, transformers' assisted generation with its own defaults."""

    name: str
    model: Any
    assistant: Any = None

    def write(self, prompt: Sequence[int], tokens: int) -> Sample:
        import torch

        ids = torch.tensor([list(prompt)], device=self.model.device)
        extra = {} if self.assistant is None else {"assistant_model": self.assistant}
        passes = 0

        def count(*_: object) -> None:
            nonlocal passes
            passes += 1

        hook = self.model.register_forward_pre_hook(count)
        started = perf_counter()
        try:
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, **extra
            )
            new = output[0, ids.shape[1] :].tolist()
        finally:
            hook.remove()
        return Sample(new, perf_counter() - started, passes)


@attrs.frozen
class Plan:
    """A policy by name with its options, and the temperature at which the draft shapes its trees."""

    policy: str
    options: dict[str, Any]
    draft_temperature: float = 1.0


@attrs.frozen(eq=False)
class Speculative(Contender):
    """A `SpeculativeDecoder` at temperature 0."""

    name: str
    decoder: SpeculativeDecoder
    plan: Plan

    def write(self, prompt: Sequence[int], tokens: int) -> Sample:
        started = perf_counter()
        generation = self.decoder.generate(
            [list(prompt)],
            max_new_tokens=tokens,
            draft_sampling=SamplingParams(temperature=self.plan.draft_temperature),
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        seconds = perf_counter() - started
        assert isinstance(generation, Generation)
        totals = generation.statistics
        return Sample(
            generation.tokens[0],
            seconds,
            totals.target_calls,
            totals.acceptance_rate,
            totals.overhead,
        )


# At temperature 0 children that are the draft's most likely tokens serve best; sizes and temperature
# are those that were fastest on two CPU cores. DySpec's tree is grown layer by layer here, which takes
# fewer passes of the draft, and leaves out slots of little value (its algorithm 2, under a budget).
PLANS: dict[str, Plan] = {
    "chain": Plan("chain", {"length": 6, "law": "top-k"}),
    "fixed tree": Plan(
        "fixed-tree", {"depth": 8, "branching": 2, "budget": 24, "threshold": 0.03, "law": "top-k"}
    ),
    DYSPEC: Plan("layered-dyspec", {"budget": 24, "threshold": 0.05, "law": "top-k"}, draft_temperature=0.8),
}


def unassisted(model: Any, draft: Any) -> str | None:
    """Why transformers refuses assisted generation with these two models; None where it does not."""
    for one in (model, draft):
        if getattr(one, "_is_stateful", False):
            return f"transformers refuses it with {type(one).__name__}, whose state cannot be cut back"
    return None


def contenders(model: Any, draft: Any, plans: Mapping[str, Plan] = PLANS) -> list[Contender]:
    """`generate()`, assisted generation and draftwood by each plan, on the same two models.

    Assisted generation is left out where `unassisted` gives a reason.

    Both models forget their end-of-text here, for the reason at the top of this module.
    """
    from transformers import GenerationConfig

    for one in (model, draft):
        one.generation_config = GenerationConfig(pad_token_id=0)
    return [
        Transformers(ORDINARY, model),
        *([] if unassisted(model, draft) else [Transformers(ASSISTED, model, draft)]),
        *(Speculative(name, decoder(model, draft, plan), plan) for name, plan in plans.items()),
    ]


def decoder(model: Any, draft: Any, plan: Plan) -> SpeculativeDecoder:
    """The greedy decoder of a plan."""
    return SpeculativeDecoder(
        registry.load(model),
        create("drafters", "model", {"backend": draft}),
        create("policies", plan.policy, plan.options),
        create("verifiers", "greedy"),
    )


@attrs.frozen
class Heat:
    """One sample with its place in the race."""

    contender: str
    domain: str
    prompt: int
    sample: Sample


def race(
    entrants: Sequence[Contender],
    prompts: Sequence[tuple[str, Sequence[int]]],
    *,
    tokens: int,
    repetitions: int = 1,
) -> Iterator[Heat]:
    """Every contender on every (domain, prompt), taking turns; who begins changes from prompt to prompt.

    Whatever slows the machine down for a while then slows all of them down.
    """
    turn = 0
    for _ in range(repetitions):
        for number, (domain, prompt) in enumerate(prompts):
            first = turn % len(entrants)
            turn += 1
            for contender in (*entrants[first:], *entrants[:first]):
                yield Heat(contender.name, domain, number, contender.write(prompt, tokens))


def until(seconds: float, heats: Iterator[Heat]) -> Iterator[Heat]:
    """The heats of every prompt that was begun within `seconds`."""
    deadline, prompt = perf_counter() + seconds, None
    for heat in heats:
        # A heat has been run when it arrives here, so the first of a new prompt is let go.
        if heat.prompt != prompt and prompt is not None and perf_counter() > deadline:
            return
        prompt = heat.prompt
        yield heat


@attrs.frozen
class Result:
    """One contender's figures over some prompts; the time of a prompt is its median over repetitions.

    Attributes:
        ratio: tokens a second over those of `generate()`.
        tokens_per_round: new tokens for every pass of the target.
        agreement: the part of `generate()`'s tokens before the first that differs.
    """

    contender: str
    tokens_per_second: float
    ratio: float
    tokens_per_round: float
    agreement: float
    acceptance: float | None
    overhead: float | None

    @property
    def equal(self) -> bool:
        """Whether every text is that of `generate()`."""
        return self.agreement == 1


def result(heats: Sequence[Heat], contender: str, domain: str | None = None) -> Result:
    """The figures of `contender` over one domain or all, against `generate()` in the same race."""
    relevant = [heat for heat in heats if domain in (None, heat.domain)]
    own = [heat for heat in relevant if heat.contender == contender]
    plain = [heat for heat in relevant if heat.contender == ORDINARY]
    wanted = {heat.prompt: heat.sample.tokens for heat in plain}
    seconds, baseline = _seconds(own), _seconds(plain)
    written = sum(len(heat.sample.tokens) for heat in own)
    agreeing = sum(_common(heat.sample.tokens, wanted[heat.prompt]) for heat in own)
    return Result(
        contender=contender,
        tokens_per_second=sum(map(len, wanted.values())) / seconds,
        ratio=baseline / seconds,
        tokens_per_round=written / sum(heat.sample.rounds for heat in own),
        agreement=agreeing / written,
        acceptance=_mean([heat.sample.acceptance for heat in own]),
        overhead=_mean([heat.sample.overhead for heat in own]),
    )


def _seconds(heats: Sequence[Heat]) -> float:
    """The sum over prompts of the median time."""
    times: dict[int, list[float]] = {}
    for heat in heats:
        times.setdefault(heat.prompt, []).append(heat.sample.seconds)
    return sum(median(repetitions) for repetitions in times.values())


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None
