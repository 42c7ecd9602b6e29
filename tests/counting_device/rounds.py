"""Rounds of decoding on the counting device, by models of the zoo, and the same call on the CPU."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood import Drafter, SamplingParams, SpeculativeDecoder, StateBackend, TreePolicy, Verifier, zoo
from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
from draftwood.backends.kinds.transformer import TransformerBackend
from draftwood.backends.kinds.unrolled import UnrolledBackend
from draftwood.kernels.support import kernels_enabled
from draftwood.protocols.compatibility import needs_several_drafters
from draftwood.strategies.blocks.files import load_block
from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.strategies.drafters.eagle3 import Eagle3
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.heads.formats import load_head
from draftwood.testing.models.row_views import TOY_COSTS
from tests.counting_device.counts import Counts, Kind
from tests.counting_device.device import CountingDevice, counting_device
from tests.counting_device.models import to_device
from tests.counting_device.phases import PREFILL, phases_of

PROMPTS = Path(__file__).parents[1] / "data" / "prompts.json"
PROMPT_TOKENS = 24

BACKENDS: dict[str, type[Any]] = {
    "llama-7m": TransformerBackend,
    "llama-draft": TransformerBackend,
    "mamba2-5m": SSMBackend,
    "mamba2-draft": SSMBackend,
    "bamba-6m": HybridBackend,
}

HEADS: dict[str, tuple[type[Any], Any]] = {
    "llama-7m-eagle3": (Eagle3, load_head),
    "llama-7m-dspark": (BlockDrafter, load_block),
}
"""What drafts with a head, and what reads its folder."""


@attrs.frozen(kw_only=True)
class Call:
    """A call of a decoder over models of the zoo.

    Attributes:
        target, draft: names of the models; the draft may be a head.
        policy, verifier: that fit each other. A policy that takes several drafters gets two of the draft.
        rows: prompts that are continued at once.
        temperature: of target and draft; at 0, the draft's is 1.
        seed: of the first row.
        dtype: of the weights.
        paths: run the target's trees one path a row instead of by a mask.
        kernels: let Triton's kernels serve what they can, on the device; on the CPU none does.
    """

    target: str = "llama-7m"
    draft: str = "llama-draft"
    policy: TreePolicy
    verifier: Verifier
    rows: int = 1
    temperature: float = 0.8
    seed: int = 5
    dtype: torch.dtype = torch.float32
    paths: bool = False
    kernels: bool = True

    def decoder(self, *, on_device: bool) -> SpeculativeDecoder:
        """The decoder of the call."""

        def backend(name: str, paths: bool = False) -> StateBackend:
            serves: type[Any] = UnrolledBackend if paths else BACKENDS[name]
            made: StateBackend = serves(_model(name, self.dtype, on_device))
            return made

        target = backend(self.target, self.paths)
        if self.draft in HEADS:
            drafts, read = HEADS[self.draft]
            head = read(zoo.path(self.draft)).to(self.dtype)
            drafter: Drafter = drafts(target, to_device(head) if on_device else head)
            return SpeculativeDecoder(target, drafter, self.policy, self.verifier, pass_costs=TOY_COSTS)
        drafter = ModelDrafter(backend(self.draft))
        if needs_several_drafters(self.policy):
            drafter = Several([drafter, ModelDrafter(backend(self.draft))])
        return SpeculativeDecoder(target, drafter, self.policy, self.verifier, pass_costs=TOY_COSTS)

    @property
    def options(self) -> dict[str, Any]:
        """Returns the options of `stream`; no end-of-text token ends a row."""
        sampling = SamplingParams(temperature=self.temperature)
        return {"sampling": sampling, "seed": self.seed, "eos_token_id": [], "max_new_tokens": 10_000}


@attrs.frozen
class CountedRounds:
    """The requests of some rounds to the device.

    Attributes:
        rounds: of every round, without prefill and the rounds before the first that was counted.
        tokens: that every row wrote in all rounds, those before included.
        draft_calls: of the counted rounds, on average.
        begun: how often every phase began, in all rounds.
    """

    rounds: tuple[Counts, ...]
    tokens: list[list[int]]
    draft_calls: float
    begun: Counter[str]

    @property
    def total(self) -> Counts:
        """Returns the counts of all rounds together."""
        return Counts.sum(self.rounds)

    def a_round(self, *kinds: Kind, phase: str | None = None, in_pass: bool | None = None) -> float:
        """Returns the average number of events of these kinds per round; arguments as of `Counts.of`."""
        return self.total.of(*kinds, phase=phase, in_pass=in_pass) / len(self.rounds)

    def table(self, lines: int = 10) -> str:
        """The counts of a round by phase, and the lines that wait or copy most often."""
        phases = {" / ".join(phase): counts for phase, counts in sorted(self.total.by_phase().items())}
        text = ["a round                     launches  outside passes   waits  blocking copies  copies"]
        for name, counts in {**phases, "all": self.total}.items():
            launches, outside, waits, blocking, copies = (
                count / len(self.rounds)
                for count in (
                    counts.of(Kind.LAUNCH),
                    counts.of(Kind.LAUNCH, in_pass=False),
                    counts.of(Kind.WAIT),
                    counts.of(Kind.BLOCKING_COPY),
                    counts.of(Kind.COPY),
                )
            )
            text.append(
                f"{name or 'the loop itself':26}{launches:10.1f}{outside:16.1f}{waits:8.1f}{blocking:17.1f}"
                f"{copies:8.1f}"
            )
        for what, times in self.total.lines(Kind.WAIT, Kind.BLOCKING_COPY)[:lines]:
            text.append(f"{times / len(self.rounds):8.1f}  {what}")
        return "\n".join(text)


def count_rounds(call: Call, *, rounds: int = 3, before: int = 1, interpret: bool = False) -> CountedRounds:
    """Run `call` on the counting device for `before` rounds, then for `rounds` that are counted.

    With `interpret` Triton's interpreter runs the kernels, as `counting_device` has it.
    """
    with counting_device(interpret=interpret) as device, kernels_enabled(call.kernels):
        return counted_rounds(call.decoder(on_device=True), device, call, rounds=rounds, before=before)


def counted_rounds(
    decoder: SpeculativeDecoder, device: CountingDevice, call: Call, *, rounds: int, before: int
) -> CountedRounds:
    """Count rounds of a `decoder` that is on `device`; what else it needs is in `call`."""
    counts: list[Counts] = []
    tokens, draft_calls = [list[int]() for _ in range(call.rows)], 0
    stream = decoder.stream(prompts(call.rows), **call.options)
    with phases_of(decoder, device) as begun, closing(stream):
        while len(counts) < before + rounds:
            device.counts = Counts()
            done = next(stream)
            device.counts.drop(PREFILL)
            for record in done.rows:
                tokens[record.row] += record.tokens
            if not done.prefill:
                counts.append(device.counts)
                draft_calls += done.draft_calls if len(counts) > before else 0
    return CountedRounds(tuple(counts[before:]), tokens, draft_calls / rounds, begun)


def tokens_on_the_cpu(call: Call, *, rounds: int) -> list[list[int]]:
    """Returns every row's tokens after as many rounds of `call` on the CPU, first tokens included."""
    tokens = [list[int]() for _ in range(call.rows)]
    with kernels_enabled(False):
        stream = call.decoder(on_device=False).stream(prompts(call.rows), **call.options)
        with closing(stream):
            done = 0
            while done < rounds:
                finished_round = next(stream)
                done += not finished_round.prefill
                for record in finished_round.rows:
                    tokens[record.row] += record.tokens
    return tokens


@cache
def prompts(rows: int) -> Sequence[Sequence[int]]:
    """The first tokens of so many texts."""
    tokenizer, texts = zoo.tokenizer(), json.loads(PROMPTS.read_text(encoding="utf-8"))
    return [tokenizer(text["prompt"])["input_ids"][:PROMPT_TOKENS] for text in texts[:rows]]


@cache
def _model(name: str, dtype: torch.dtype, on_device: bool) -> Any:
    model = zoo.load(name, dtype)
    return to_device(model) if on_device else model
