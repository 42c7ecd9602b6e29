"""`SpeculativeDecoder`: one target, one drafter, one policy, one verifier."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from os import PathLike
from time import perf_counter
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from draftwood import registry
from draftwood.errors import IncompatibleModels, IncompatibleStrategy, InvalidInput
from draftwood.loop import RoundLoop, Row
from draftwood.proposals import PerChild
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier
from draftwood.randomness import Streams
from draftwood.records import Round, Statistics, peak_memory
from draftwood.sampling import SamplingParams
from draftwood.stopping import StopConditions, stop_string_criteria


def as_backend(target: Any) -> StateBackend:
    """`target` itself, or the backend of a model object, folder or hub name."""
    is_model = isinstance(target, (str, PathLike, torch.nn.Module))
    return registry.load(target) if is_model else target


def _as_drafter(drafter: Any) -> Drafter:
    is_model = isinstance(drafter, (str, PathLike, torch.nn.Module))
    return cast(Drafter, registry.get("drafters", "model")(drafter) if is_model else drafter)


@attrs.frozen
class Generation:
    """What `generate` wrote.

    Attributes:
        sequences: int64 `[rows, length]`: prompts left-padded as given, new tokens right-padded.
        tokens: the new tokens of every row, unpadded.
        finish_reasons: why each row ended: `"eos"`, `"length"`, `"context"`, `"criteria"`,
            `"interrupted"`.
        statistics: the totals and every round.
    """

    sequences: Tensor
    tokens: list[list[int]]
    finish_reasons: list[str]
    statistics: Statistics


@attrs.define(eq=False)
class SpeculativeDecoder:
    """One target, one drafter, one policy, one verifier.

    Args:
        target: a `StateBackend`, or a model object, folder or hub name that one can be made for.
        drafter: a `Drafter`, or a model that drafts.
        policy: grows the trees.
        verifier: accepts a path.

    Raises:
        IncompatibleStrategy: the verifier cannot judge the policy's trees.
        IncompatibleModels: target and drafter have different vocabularies.
    """

    target: StateBackend = attrs.field(converter=as_backend)
    drafter: Drafter = attrs.field(converter=_as_drafter)
    policy: TreePolicy
    verifier: Verifier

    def __attrs_post_init__(self) -> None:
        check_strategy_fits(self.policy, self.verifier)
        if (PerChild in self.policy.laws) != (self.drafter.drafters > 1):
            raise IncompatibleStrategy(
                f"{type(self.policy).__name__} with the laws {_law_names(self.policy)} cannot use "
                f"{self.drafter.drafters} drafter(s); the PerChild law and several drafters go together."
            )
        if self.drafter.vocab_size != self.target.vocab_size:
            raise IncompatibleModels(
                f"The drafter has {self.drafter.vocab_size} tokens and the target "
                f"{self.target.vocab_size}; they must share one tokenizer and vocabulary."
            )

    def generate(
        self,
        input_ids: Tensor | Sequence[Sequence[int]],
        attention_mask: Tensor | None = None,
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        draft_sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        pad_token_id: int | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        stopping_criteria: Sequence[Any] = (),
        streamer: Any = None,
        trace: bool = False,
        return_dict_in_generate: bool = False,
    ) -> Tensor | Generation:
        """Write up to `max_new_tokens` after every prompt.

        Args:
            input_ids: `[rows, length]` int64, left-padded where `attention_mask` is 0; or a list of
                token lists.
            max_new_tokens: exact; a prompt that reaches the model's context earlier ends there.
            sampling: how the target's tokens are chosen; default greedy.
            draft_sampling: the same for the draft. Default: the target's, or at temperature 0 the
                draft's plain distribution, whose probabilities shape the tree.
            seed: row i draws from `seed + i`, or from `seed[i]`. Default: torch's global generator.
            eos_token_id: default: the target's own. An empty list: none.
            stop_strings: needs `tokenizer`; the token that completes the string is kept.
            stopping_criteria: `transformers.StoppingCriteria`, asked after every token.
            streamer: a `transformers` streamer; one row only, as there.
            trace: keep every round's tree with its probabilities.

        Returns:
            The sequences, or a `Generation` with `return_dict_in_generate`. Ctrl-C ends all rows and
            returns what was written.
        """
        prompts = _prompts(input_ids, attention_mask)
        if streamer is not None and len(prompts) > 1:
            raise InvalidInput(f"A streamer shows one row and {len(prompts)} were given; call once a row.")
        statistics = Statistics(draft_cost=_draft_cost(self.drafter, self.target))
        reasons = ["interrupted"] * len(prompts)
        tokens: list[list[int]] = [[] for _ in prompts]
        if streamer is not None:
            streamer.put(torch.tensor([prompts[0]]))
        try:
            for finished_round in self.stream(
                prompts,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                draft_sampling=draft_sampling,
                seed=seed,
                eos_token_id=eos_token_id,
                stop_strings=stop_strings,
                tokenizer=tokenizer,
                stopping_criteria=stopping_criteria,
                trace=trace,
                statistics=statistics,
            ):
                for record in finished_round.rows:
                    tokens[record.row].extend(record.tokens)
                    reasons[record.row] = record.finished or reasons[record.row]
                    if streamer is not None:
                        streamer.put(torch.tensor(record.tokens))
        except KeyboardInterrupt:
            pass
        if streamer is not None:
            streamer.end()
        pad = pad_token_id if pad_token_id is not None else self.target.pad_token_id
        pad = pad if pad is not None else next(iter(self.target.eos_token_ids), 0)
        sequences = _sequences(prompts, tokens, pad)
        device = input_ids.device if isinstance(input_ids, Tensor) else sequences.device
        generation = Generation(sequences.to(device), tokens, reasons, statistics)
        return generation if return_dict_in_generate else generation.sequences

    def stream(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        draft_sampling: SamplingParams | None = None,
        seed: int | Sequence[int] | None = None,
        eos_token_id: int | Sequence[int] | None = None,
        stop_strings: str | Sequence[str] | None = None,
        tokenizer: Any = None,
        stopping_criteria: Sequence[Any] = (),
        trace: bool = False,
        statistics: Statistics | None = None,
    ) -> Iterator[Round]:
        """The rounds as they happen: `round.rows[i].tokens` are the tokens just committed.

        The arguments are those of `generate`; `statistics`, when given, is filled on the way. Whatever
        ends the iteration (the last row, an error, the caller), the rows' state is released.
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
        _check_prompts(prompts, self.target)
        loop = RoundLoop(
            target=self.target,
            drafter=self.drafter,
            verifier=self.verifier,
            sampling=sampling,
            draft_sampling=draft_sampling,
            stops=_stops(prompts, max_new_tokens, eos_token_id, criteria, self.target),
            rows=[
                Row(
                    i,
                    list(prompt),
                    copy.deepcopy(self.policy) if self.policy.learns else self.policy,
                    streams,
                )
                for i, (prompt, streams) in enumerate(zip(prompts, _streams(seed, len(prompts)), strict=True))
            ],
            trace=trace,
        )
        statistics = statistics if statistics is not None else Statistics()
        if self.target.lengths:
            raise InvalidInput(
                f"The target is already decoding {len(self.target.lengths)} row(s) for another call; let it "
                "end, or load the model into a second backend."
            )
        started = perf_counter()
        try:
            states = [torch.tensor(prompt[:-1], dtype=torch.int64) for prompt in prompts]
            self.target.prefill(states)
            self.drafter.prefill(states)
            statistics.prefill_seconds = perf_counter() - started
            while loop.rows:
                finished_round = loop.run()
                statistics.rounds.append(finished_round)
                statistics.seconds = perf_counter() - started
                if len(statistics.rounds) == 1:
                    statistics.first_token_seconds = statistics.seconds
                yield finished_round
        finally:
            statistics.peak_memory = peak_memory()
            self.target.release()
            self.drafter.release()


def check_strategy_fits(policy: TreePolicy, verifier: Verifier) -> None:
    """Raise `IncompatibleStrategy` unless `verifier` judges the trees of `policy`.

    The message names the registered lossless verifiers that do, built with their default options.
    """
    problem = _misfit(policy, verifier)
    if problem is None:
        return
    fitting = []
    for name in registry.names("verifiers"):
        try:
            other = registry.create("verifiers", name)
        except Exception:  # a third party's module may fail in any way, or need options
            continue
        if other.lossless and _misfit(policy, other) is None:
            fitting.append(name)
    raise IncompatibleStrategy(
        f"{type(verifier).__name__} {problem} of {type(policy).__name__}; "
        f"verifiers that fit: {', '.join(fitting) or 'none'}."
    )


def _misfit(policy: TreePolicy, verifier: Verifier) -> str | None:
    """What keeps `verifier` from judging the trees of `policy`, or None."""
    strange = policy.laws - verifier.laws
    if strange:
        return f"does not verify the law {', '.join(sorted(law.__name__ for law in strange))}"
    if policy.adaptive and not verifier.adaptive:
        return "cannot verify adaptive trees"
    if policy.branches and not verifier.branches:
        return "judges chains alone, not the branching trees"
    if verifier.local and not policy.local:
        return "needs trees whose branches grow apart, not those"
    return None


def _law_names(policy: TreePolicy) -> str:
    return ", ".join(sorted(law.__name__ for law in policy.laws))


def _draft_cost(drafter: Drafter, target: StateBackend) -> float:
    return drafter.weight_bytes / target.weight_bytes if target.weight_bytes else 0.0


def _prompts(input_ids: Tensor | Sequence[Sequence[int]], mask: Tensor | None) -> list[list[int]]:
    """Rows as token lists, padding removed."""
    if isinstance(input_ids, Tensor):
        if input_ids.dim() == 1:
            input_ids = input_ids.unsqueeze(0)
        if mask is None:
            return cast(list[list[int]], input_ids.tolist())
        if mask.shape != input_ids.shape:
            raise InvalidInput(
                f"attention_mask has shape {tuple(mask.shape)} and input_ids {tuple(input_ids.shape)}; "
                "they must agree."
            )
        return [ids[keep.bool()].tolist() for ids, keep in zip(input_ids, mask, strict=True)]
    return [list(row) for row in input_ids]


def _check_prompts(prompts: Sequence[Sequence[int]], target: StateBackend) -> None:
    if not prompts:
        raise InvalidInput("No prompt was given; give at least one row.")
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise InvalidInput(f"The prompt of row {row} is empty; give at least one token.")
        if target.max_length is not None and len(prompt) >= target.max_length:
            raise InvalidInput(
                f"The prompt of row {row} has {len(prompt)} tokens and the target's context holds "
                f"{target.max_length}; shorten it."
            )
        if not 0 <= min(prompt) <= max(prompt) < target.vocab_size:
            bad = next(t for t in prompt if not 0 <= t < target.vocab_size)
            raise InvalidInput(
                f"The prompt of row {row} holds token {bad}, outside the vocabulary of "
                f"{target.vocab_size}; encode it with the target's tokenizer."
            )


def _stops(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    eos_token_id: int | Sequence[int] | None,
    criteria: Sequence[Any],
    target: StateBackend,
) -> StopConditions:
    if max_new_tokens < 1:
        raise InvalidInput(f"max_new_tokens is {max_new_tokens}; ask for at least 1.")
    if eos_token_id is None:
        eos_token_id = target.eos_token_ids
    wanted = [len(prompt) + max_new_tokens for prompt in prompts]
    limit = [min(w, target.max_length or w) for w in wanted]
    return StopConditions(
        eos_token_ids=frozenset([eos_token_id] if isinstance(eos_token_id, int) else eos_token_id),
        limit=limit,
        context_limited=[have < want for have, want in zip(limit, wanted, strict=True)],
        criteria=criteria,
    )


def _streams(seed: int | Sequence[int] | None, rows: int) -> list[Streams]:
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    seeds = [seed + row for row in range(rows)] if isinstance(seed, int) else list(seed)
    if len(seeds) != rows:
        raise InvalidInput(f"{len(seeds)} seeds were given for {rows} rows; give one a row.")
    return [Streams.seeded(s) for s in seeds]


def _sequences(prompts: list[list[int]], tokens: list[list[int]], pad: int) -> Tensor:
    before, after = max(map(len, prompts)), max(map(len, tokens))
    return torch.tensor(
        [
            [pad] * (before - len(prompt)) + prompt + new + [pad] * (after - len(new))
            for prompt, new in zip(prompts, tokens, strict=True)
        ]
    )
