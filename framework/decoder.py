"""`SpeculativeDecoder`: one target, one drafter, one policy, one verifier."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from numbers import Integral
from os import PathLike
from time import perf_counter
from typing import Any, cast

import attrs
import torch
from jaxtyping import Int
from torch import Tensor

from draftwood import locks, policy_states, registry
from draftwood.compatibility import check_drafters_fit, check_strategy_fits
from draftwood.constraints import ConstrainedRow, Constraint
from draftwood.errors import IncompatibleModels, IncompatibleStrategy, InvalidInput
from draftwood.generation import Generation, PartialGeneration
from draftwood.loop import BatchRow, RoundLoop
from draftwood.prefixes import RowText
from draftwood.processing import check_processors
from draftwood.prompts import as_prompts, check_prompts, left_padded
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier
from draftwood.randomness import Streams, row_seeds
from draftwood.round_records import Round, Statistics, TokenDetails, peak_memory
from draftwood.sampling import SamplingParams
from draftwood.stopping import CriteriaBatch, StopConditions, stop_string_criteria
from draftwood.vocabulary import fit_vocabulary


def as_backend(target: Any) -> StateBackend:
    """`target` itself, or the backend of a model object, folder or hub name."""
    is_model = isinstance(target, (str, PathLike, torch.nn.Module))
    return registry.load(target) if is_model else target


def as_drafter(drafter: Any) -> Drafter:
    """`drafter` itself, or the drafter that a backend, model object, folder or hub name makes."""
    is_model = isinstance(drafter, (str, PathLike, torch.nn.Module)) or StateBackend in type(drafter).__mro__
    return cast(Drafter, registry.get("drafters", "model")(drafter) if is_model else drafter)


@attrs.define(eq=False)
class SpeculativeDecoder:
    """One target, one drafter, one policy, one verifier.

    Args:
        target: a `StateBackend`, or a model object, folder or hub name that one can be made for.
        drafter: a `Drafter`, or a model or backend that drafts.
        policy: grows the trees.
        verifier: accepts a path.

    Raises:
        IncompatibleStrategy: the verifier cannot judge the policy's trees.
        IncompatibleModels: target and drafter have different vocabularies.
        InvalidInput: the policy learns, and what it learns is no state that can be handed on.
    """

    target: StateBackend = attrs.field(converter=as_backend)
    drafter: Drafter = attrs.field(converter=as_drafter)
    policy: TreePolicy
    verifier: Verifier

    def __attrs_post_init__(self) -> None:
        check_strategy_fits(self.policy, self.verifier)
        check_drafters_fit(self.policy, self.drafter)
        policy_states.first_state(self.policy)
        fit_vocabulary(self.drafter, self.target.vocab_size)
        if any(backend is self.target for backend in self.drafter.backends):
            raise IncompatibleModels(
                "Target and drafter are one backend, which holds one state a row; load the model a second "
                "time for the drafter (the weights are shared)."
            )

    def generate(
        self,
        input_ids: Tensor | Sequence[Sequence[int]],
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        draft_sampling: SamplingParams | None = None,
        constraint: Constraint | Sequence[Constraint] | None = None,
        policy_state: Any = None,
        seed: int | Sequence[int] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        stopping_criteria: Sequence[Any] = (),
        streamer: Any = None,
        trace: bool = False,
        output_logprobs: bool = False,
        output_scores: bool = False,
        output_logits: bool = False,
        return_dict_in_generate: bool = False,
    ) -> Tensor | Generation:
        """Write up to `max_new_tokens` after every prompt.

        Args:
            input_ids: `[rows, length]` integers, left-padded where `attention_mask` is 0; or a list of
                token lists. A tensor comes back as it is, in front of what was written.
            max_new_tokens: exact; a text that the model can hold no more of ends earlier.
            sampling: how the target's tokens are chosen; default greedy.
            draft_sampling: the same for the draft. Default: the target's, or at temperature 0 the
                draft's plain distribution, whose probabilities shape the tree.
            constraint: what may be written: one for all rows, or one a row.
            policy_state: what a policy that learns starts from: one state for all rows, or a list of one a
                row, as `Generation.policy_states` of an earlier call. Default: it starts afresh.
            seed: row 0 draws from `seed`, the others from seeds spawned from it; or row i from `seed[i]`.
                `Generation.seeds` names them. Default: torch's global generator.
            eos_token_id: default: the target's own. An empty list: none.
            stop_strings: needs `tokenizer`; the token that completes the string is kept.
            stopping_criteria: `transformers.StoppingCriteria`, asked after every token about each row alone.
            streamer: a `transformers` streamer; one row only, as there. Its `end()` is always called.
            trace: keep every round's tree with its probabilities.
            output_logprobs: `Generation.logprobs`.
            output_scores: `Generation.scores`; memory for a vocabulary a token.
            output_logits: `Generation.logits`, likewise.

        Returns:
            The sequences, or a `Generation` with `return_dict_in_generate`. Ctrl-C ends all rows and
            returns what was written.
        """
        prompts = as_prompts(input_ids, attention_mask)
        if streamer is not None and len(prompts) > 1:
            raise InvalidInput(f"A streamer shows one row and {len(prompts)} were given; call once a row.")
        keep = TokenDetails(logits=output_logits, scores=output_scores, logprobs=output_logprobs)
        states = policy_states.row_states(self.policy, policy_state, len(prompts))
        statistics, written = Statistics(), PartialGeneration.nothing(states)
        seeds = row_seeds(seed, len(prompts))
        gradients = torch.is_grad_enabled()
        try:
            if streamer is not None:
                streamer.put(torch.tensor([prompts[0]]))
            rounds = self.stream(
                prompts,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                draft_sampling=draft_sampling,
                constraint=constraint,
                policy_state=policy_state,
                seed=seeds,
                eos_token_id=eos_token_id,
                pad_token_id=pad_token_id,
                stop_strings=stop_strings,
                tokenizer=tokenizer,
                stopping_criteria=stopping_criteria,
                trace=trace,
                keep=keep,
                statistics=statistics,
            )
            with closing(rounds):
                for finished_round in rounds:
                    written.add(finished_round)
                    if streamer is not None:
                        streamer.put(torch.tensor(finished_round.rows[0].tokens))
        except KeyboardInterrupt:
            pass
        finally:
            # Ctrl-C may fall between the end of a pass and the line that switches autograd on again. This
            # is a single step in C, where torch.set_grad_enabled() could be interrupted itself.
            torch._C._set_grad_enabled(gradients)
            if streamer is not None:
                streamer.end()
        pad = self._pad(pad_token_id)
        padded_prompts = (
            torch.atleast_2d(input_ids) if isinstance(input_ids, Tensor) else left_padded(prompts, pad)
        )
        generation = written.generation(padded_prompts, statistics, seeds, pad=pad, keep=keep)
        return generation if return_dict_in_generate else generation.sequences

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        draft_sampling: SamplingParams | None = None,
        constraint: Constraint | Sequence[Constraint] | None = None,
        policy_state: Any = None,
        seed: int | Sequence[int] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        stopping_criteria: Sequence[Any] = (),
        trace: bool = False,
        keep: TokenDetails | None = None,
        statistics: Statistics | None = None,
        padded: Int[Tensor, "rows length"] | None = None,
    ) -> Generator[Round, None, None]:
        """The rounds as they happen: `round.rows[i].tokens` are the tokens just committed.

        The arguments are those of `generate`, and: `keep`, what the records hold besides tokens;
        `statistics`, which is filled on the way; `padded`, the prompts as one batch `[rows, length]`, which
        processors and criteria are then shown as transformers' `generate` shows it. Whatever ends the
        iteration (the last row, an error, the caller), the rows' state is released.
        """
        sampling = sampling or SamplingParams()
        if self.verifier.greedy and sampling.temperature != 0:
            raise IncompatibleStrategy(
                f"{type(self.verifier).__name__} serves temperature 0 alone, not {sampling.temperature}; "
                "use recursive rejection."
            )
        if draft_sampling is None:
            greedy = sampling.temperature == 0
            draft_sampling = attrs.evolve(sampling, temperature=1.0) if greedy else sampling
        criteria = list(stopping_criteria)
        if stop_strings:
            if tokenizer is None:
                raise InvalidInput(f"stop_strings={stop_strings!r} needs the tokenizer; pass tokenizer=.")
            criteria.append(stop_string_criteria(stop_strings, tokenizer))
        prompts = as_prompts(prompts)
        check_prompts(prompts, self.target)
        keep = keep or TokenDetails()
        reads_prefix = sampling.reads_prefix or draft_sampling.reads_prefix
        texts = _texts(prompts, padded, self.target.device) if reads_prefix else []
        check_processors(
            [*sampling.processors, *draft_sampling.processors], texts, vocab_size=self.target.vocab_size
        )
        stops = _stops(prompts, max_new_tokens, eos_token_id, self.target)
        stops.batches = _criteria(criteria, prompts, padded, stops, pad=self._pad(pad_token_id), keep=keep)
        drafter = fit_vocabulary(self.drafter, self.target.vocab_size)
        constraints = _constraints(
            constraint, prompts, vocab_size=self.target.vocab_size, ends=stops.eos_token_ids
        )
        states = policy_states.row_states(self.policy, policy_state, len(prompts))
        loop = RoundLoop(
            target=self.target,
            drafter=drafter,
            verifier=self.verifier,
            sampling=sampling,
            draft_sampling=draft_sampling,
            stops=stops,
            rows=[
                BatchRow(
                    i,
                    prompts[i][-1],
                    self.policy,
                    Streams.seeded(row_seed),
                    texts[i] if texts else None,
                    constraints[i],
                    states[i],
                )
                for i, row_seed in enumerate(row_seeds(seed, len(prompts)))
            ],
            trace=trace,
            keep=keep,
        )
        statistics = statistics if statistics is not None else Statistics()
        statistics.draft_cost = _draft_cost(self.drafter, self.target)
        parts = {"target": self.target, "drafter": self.drafter}
        parts |= {f"drafter's backend {n}": backend for n, backend in enumerate(self.drafter.backends)}
        call = object()
        try:
            locks.acquire(call, parts, len(prompts))
            if self.target.lengths:
                raise InvalidInput(
                    f"The target is already decoding {len(self.target.lengths)} row(s) for another call; let "
                    "it end, or load the model into a second backend."
                )
            yield from self._rounds(loop, prompts, drafter, statistics)
        finally:
            locks.active.pop(call, None)

    def _rounds(
        self,
        loop: RoundLoop,
        prompts: Sequence[Sequence[int]],
        drafter: Drafter,
        statistics: Statistics,
    ) -> Iterator[Round]:
        started = perf_counter()
        try:
            states = [torch.tensor(prompt[:-1], dtype=torch.int64) for prompt in prompts]
            self.target.prefill(states)
            drafter.prefill(states)
            statistics.prefill_seconds = perf_counter() - started
            while loop.rows:
                finished_round = loop.run()
                statistics.rounds.append(finished_round)
                statistics.seconds = perf_counter() - started
                if len(statistics.rounds) == 1:
                    statistics.first_token_seconds = statistics.seconds
                yield finished_round
        finally:
            try:
                statistics.peak_memory = peak_memory()
                _release(self.target, drafter)
            except BaseException:  # Ctrl-C again: whoever caught it must find no rows
                _release(self.target, drafter)
                raise

    def _pad(self, pad_token_id: int | None) -> int:
        pad = pad_token_id if pad_token_id is not None else self.target.pad_token_id
        return pad if pad is not None else next(iter(self.target.eos_token_ids), 0)


def _release(target: StateBackend, drafter: Drafter) -> None:
    try:
        target.release()
    finally:
        drafter.release()


def _draft_cost(drafter: Drafter, target: StateBackend) -> float:
    return drafter.weight_bytes / target.weight_bytes if target.weight_bytes else 0.0


def _texts(prompts: Sequence[Sequence[int]], padded: Tensor | None, device: torch.device) -> list[RowText]:
    """The rows as processors are to see them: alone, or with the padding and row numbers of a batch."""
    if padded is None:
        return [RowText.of(torch.tensor(prompt, device=device)) for prompt in prompts]
    rows = padded.to(device, torch.int64)
    return [RowText.of(row, row=index, rows=len(rows)) for index, row in enumerate(rows)]


def _criteria(
    criteria: Sequence[Any],
    prompts: Sequence[Sequence[int]],
    padded: Tensor | None,
    stops: StopConditions,
    *,
    pad: int,
    keep: TokenDetails,
) -> list[CriteriaBatch]:
    """Each row by itself, or all as one batch."""
    if not criteria:
        return []
    if padded is None:
        return [
            CriteriaBatch(criteria, [row], torch.tensor([prompt]), pad, keeps_scores=keep.scores)
            for row, prompt in enumerate(prompts)
        ]
    ends = bool(stops.eos_token_ids) or any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    rows = range(len(prompts))
    return [CriteriaBatch(criteria, rows, padded.to(torch.int64), pad, ends, keeps_scores=keep.scores)]


def _constraints(
    constraint: Constraint | Sequence[Constraint] | None,
    prompts: Sequence[Sequence[int]],
    *,
    vocab_size: int,
    ends: frozenset[int],
) -> list[ConstrainedRow] | list[None]:
    if constraint is None:
        return [None] * len(prompts)
    per_row = list(constraint) if isinstance(constraint, Sequence) else [constraint] * len(prompts)
    if len(per_row) != len(prompts):
        raise InvalidInput(f"{len(per_row)} constraints were given for {len(prompts)} rows; give one a row.")
    return [
        ConstrainedRow.started(row_constraint, prompt, vocab_size=vocab_size, ends=ends)
        for row_constraint, prompt in zip(per_row, prompts, strict=True)
    ]


def _stops(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: Any,
    eos_token_id: int | Sequence[int] | None,
    target: StateBackend,
) -> StopConditions:
    if isinstance(max_new_tokens, bool) or not isinstance(max_new_tokens, Integral):
        raise InvalidInput(f"max_new_tokens is {max_new_tokens!r}; give an integer.")
    if max_new_tokens < 1:
        raise InvalidInput(f"max_new_tokens is {max_new_tokens}; ask for at least 1.")
    if eos_token_id is None:
        eos_token_id = target.eos_token_ids
    limit = int(max_new_tokens)
    # The last token takes no room in the context: nothing is read behind it.
    room = [limit if target.max_length is None else target.max_length + 1 - len(p) for p in prompts]
    return StopConditions(
        eos_token_ids=frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id),
        limit=[min(limit, tokens) for tokens in room],
        context_limited=[tokens < limit for tokens in room],
    )
