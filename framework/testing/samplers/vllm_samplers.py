"""Adapters for vLLM's two rejection samplers: that of its first runner and that of its newer one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.distributions.sampling import SamplingParams
from draftwood.testing.samplers.sampler_cases import SamplerCase
from draftwood.testing.samplers.sampler_runs import Sampler
from draftwood.testing.samplers.signatures import check_call, named


@attrs.frozen(eq=False)
class VllmMetadata:
    """The part of `SamplingMetadata` that vLLM's rejection sampler reads."""

    temperature: Tensor
    all_greedy: bool = False
    all_random: bool = True
    generators: dict[int, torch.Generator] = attrs.field(factory=dict)
    top_k: Tensor | None = None
    top_p: Tensor | None = None

    @classmethod
    def of(
        cls, settings: Sequence[SamplingParams], *, vocab: int, seeded: bool, device: torch.device | str
    ) -> VllmMetadata:
        """Returns the metadata of rows with these settings; `seeded` gives every third its own generator."""
        seeds = torch.randint(2**60, (len(settings),)).tolist() if seeded else []
        greedy = [one.temperature == 0 for one in settings]

        def each(values: list[float], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=device)

        return cls(
            each([one.temperature for one in settings], torch.float32),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            generators={
                row: torch.Generator(device).manual_seed(seed)
                for row, seed in enumerate(seeds)
                if row % 3 == 0
            },
            top_k=each([one.top_k or vocab for one in settings], torch.int32)
            if any(one.top_k for one in settings)
            else None,
            top_p=each([one.top_p or 1.0 for one in settings], torch.float32)
            if any(one.top_p for one in settings)
            else None,
        )


def vllm_sampler(
    rejection_sample: Callable[..., Tensor],
    *,
    target: Literal["probs", "logits"] | None = None,
    constraints: Callable[..., Tensor] | None = None,
    drafted: bool = False,
    ragged: bool = True,
    padded: bool = False,
    seeded: bool = False,
    device: torch.device | str = "cpu",
) -> Sampler:
    """A batched sampler from vLLM's `vllm.v1.sample.rejection_sampler.rejection_sample`.

    It is called by position as `(draft_token_ids [tokens], num_draft_tokens (a list), max_spec_len,
    cu_num_draft_tokens [rows], draft_probs [tokens, vocab], target_probs [tokens, vocab], bonus_token_ids
    [rows, 1], sampling_metadata)` and returns `[rows, max_spec_len + 1]`, filled up with -1. It draws
    exponential noise, so that it is proved by samples: `prove_sampler(vllm_sampler(rejection_sample),
    samples=200_000, batched=True, dtype=torch.float32)`. Rows at temperature 0 are greedy ones for it.

    Args:
        rejection_sample: vLLM's function, or one with its signature.
        target: whether the sixth argument is the target's "probs" or its "logits", which differs by version;
            None: it is found out by one call.
        constraints: vLLM's `apply_sampling_constraints`, which takes logits and applies each row's
            temperature, top-k and top-p. None: the sampler gets the distribution after the settings.
        drafted: give None for the draft's probabilities, as for drafts that have none (n-grams); prove it
            with `law=Deterministic`.
        ragged: cut the drafts of every other row to 0, 1, 2, ... tokens, so that rows differ in length. Which
            row is cut does not depend on its tokens, so a lossless sampler stays lossless.
        padded: fill the rows that `ragged` cut up to the full length with the token -1 and draft
            probabilities of 0, as padded drafts are, instead of handing over fewer tokens.
        seeded: give every third row its own generator, as requests with a seed have.
        device: where the function wants its tensors.
    """
    if target not in (None, "probs", "logits"):
        raise InvalidInput(f"target is {target!r}; give 'probs' or 'logits'.")
    check_call(rejection_sample, [*range(8)], {}, name="vLLM's rejection_sample")
    _check_padded(padded, ragged)
    told = target or ("logits" if _takes_logits(rejection_sample, device) else "probs")
    if constraints is not None and told == "probs":
        raise InvalidInput("constraints gives logits, and this sampler takes probabilities; leave it out.")

    def sampler(case: SamplerCase) -> Tensor:
        lengths, kept = _drafted_tokens(case, ragged)
        rows, n = case.draft_tokens.shape
        if padded:
            case = attrs.evolve(
                case,
                draft_tokens=case.draft_tokens.masked_fill(~kept, -1),
                draft_probs=case.draft_probs.masked_fill(~kept.unsqueeze(-1), 0),
            )
            lengths, kept = torch.full((rows,), n), torch.ones_like(kept)
        ends = lengths.cumsum(0).to(torch.int32).to(device)
        metadata = VllmMetadata.of(
            case.settings, vocab=case.target_probs.shape[-1], seeded=seeded, device=device
        )
        if constraints is not None:
            if any(one.min_p for one in case.settings):
                raise InvalidInput(
                    "vLLM's apply_sampling_constraints has no min_p; leave it out of settings."
                )
            given = constraints(case.target_logits[:, :n][kept].to(device), ends, metadata)
        else:
            given = case.target_probs[:, :n][kept].to(device)
            given = given.log() if told == "logits" else given
        # vLLM draws the bonus token, for a fully accepted draft, beforehand and passes it in.
        bonus = torch.multinomial(case.target_probs[torch.arange(rows), lengths], 1)
        emitted = rejection_sample(
            case.draft_tokens[kept].to(device),
            lengths.tolist(),
            n,
            ends,
            None if drafted else case.draft_probs[kept].to(device),
            given,
            bonus.to(device),
            metadata,
        )
        return emitted.cpu()

    return named(sampler, "vLLM's rejection sampler")


def vllm_runner_sampler(
    rejection_sample: Callable[..., tuple[Tensor, Tensor]],
    *,
    block: bool = False,
    drafted: bool = False,
    ragged: bool = True,
    padded: bool = False,
    device: torch.device | str = "cpu",
) -> Sampler:
    """A batched sampler from that of vLLM's newer runner.

    It is `vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils.rejection_sample`. It is called by position
    with the target's logits after temperature and filters `[logits, vocab]`, the draft's before its
    temperature `[requests, steps, vocab]` (or None), the token that each row of logits follows `[logits]`,
    where a request's rows begin and end `[requests + 1]`, positions `[logits]`, three mappings, temperatures
    and seeds `[requests]` and the number of steps; and returns tokens `[requests, steps + 1]` and how many of
    them are valid. Its only chance are a request's seed and the position, which are drawn anew for each row:
    `prove_sampler(vllm_runner_sampler(rejection_sample), samples=N, batched=True, dtype=torch.float32)`.

    Args:
        rejection_sample: vLLM's function, or one with its signature.
        block: verify the draft as one block.
        drafted: give None for the draft's logits, as for drafts that have none (n-grams); prove it with
            `law=Deterministic`.
        ragged: as for `vllm_sampler`.
        padded: give the rows that `ragged` cut the full length, with the token -1 and draft logits of 0 at
            the end, as the runner does with placeholders. Its function must end a row at the first -1.
        device: where the function wants its tensors.
    """
    more = {"use_block_verification": True} if block else {}
    check_call(rejection_sample, [*range(11)], more, name="the rejection_sample of vLLM's newer runner")
    _check_padded(padded, ragged)

    def sampler(case: SamplerCase) -> Tensor:
        lengths, kept = _drafted_tokens(case, ragged)
        rows, n = case.draft_tokens.shape
        tokens = case.draft_tokens.masked_fill(~kept, -1)
        if padded:
            lengths = torch.full((rows,), n)
        row = torch.arange(rows, dtype=torch.int32)
        # A request's row of logits follows its last token, then one row follows each drafted token.
        step = torch.arange(n + 1)
        valid = step <= lengths.unsqueeze(1)
        followed = torch.cat([torch.zeros(rows, 1, dtype=torch.int64), tokens], 1)
        requests = row.unsqueeze(1).expand(rows, n + 1)[valid]
        begin = torch.randint(1, 10_000, (rows, 1))
        temperature = torch.tensor([one.temperature for one in case.settings], dtype=torch.float32)
        before_temperature = case.draft_probs.log() * temperature.view(-1, 1, 1)
        draft_logits = torch.where(temperature.view(-1, 1, 1) > 0, before_temperature, case.draft_probs.log())
        draft_logits = draft_logits.masked_fill(~kept.unsqueeze(-1), 0)
        ends = torch.cat([torch.zeros(1, dtype=torch.int64), (lengths + 1).cumsum(0)]).to(torch.int32)
        sampled, count = rejection_sample(
            case.target_probs.log()[valid].contiguous().to(device),
            None if drafted else draft_logits.contiguous().to(device),
            followed[valid].to(device),
            ends.to(device),
            (begin + step)[valid].to(device),
            row.to(device),
            requests.contiguous().to(device),
            step.expand(rows, n + 1)[valid].to(torch.int32).to(device),
            temperature.to(device),
            torch.randint(2**62, (rows,)).to(device),
            n,
            **more,
        )
        written = torch.arange(n + 1, device=sampled.device) < count.unsqueeze(1)
        return sampled.masked_fill(~written, -1).cpu()

    return named(sampler, "the rejection sampler of vLLM's newer runner")


def _check_padded(padded: bool, ragged: bool) -> None:
    if padded and not ragged:
        raise InvalidInput("padded=True fills the rows that ragged=True cuts; leave ragged=False out.")


def _drafted_tokens(case: SamplerCase, ragged: bool) -> tuple[Tensor, Tensor]:
    """Returns the rows' numbers of drafted tokens `[rows]`, and which tokens are theirs `[rows, n]`."""
    if case.draft_tokens.ndim != 2:
        raise InvalidInput("vLLM's sampler judges batches; give samples=N and batched=True.")
    rows, n = case.draft_tokens.shape
    number = torch.arange(rows)
    lengths = torch.where(number % 2 == 0, n, number // 2 % (n + 1)) if ragged else torch.full((rows,), n)
    return lengths, torch.arange(n) < lengths.unsqueeze(1)


def _takes_logits(rejection_sample: Callable[..., Tensor], device: torch.device | str) -> bool:
    """Returns whether the sampler takes logits: a one-hot target of probabilities is then not certain."""
    rows, certain = 512, torch.tensor([0.0, 1.0, 0.0])

    def certain_as(target: Tensor) -> bool:
        emitted = rejection_sample(
            (torch.arange(rows) % 3).to(device),
            [1] * rows,
            1,
            torch.arange(1, rows + 1, dtype=torch.int32).to(device),
            torch.full((rows, 3), 1 / 3).to(device),
            target.repeat(rows, 1).to(device),
            torch.ones(rows, 1, dtype=torch.int64).to(device),
            VllmMetadata(torch.ones(rows, device=device)),
        )
        return bool((emitted[:, 0] == 1).all())

    return not certain_as(certain) and certain_as(100 * (certain - 1))
