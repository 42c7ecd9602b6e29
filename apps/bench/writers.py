"""The writers of a contender's texts, and the measurements of one text or batch."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import attrs
import torch

from draftwood import CounterRandomness, SamplingParams, SpeculativeDecoder, StateBackend
from draftwood.apps.bench.inputs import Inputs, leave_out_defaults
from draftwood.apps.bench.memory import forget_peak, peak_memory
from draftwood.apps.bench.specs import ASSISTED, LOOKUP, ORDINARY, Spec
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.costs import costs_for
from draftwood.base.errors import UnsupportedModel
from draftwood.decoding.generation import Generation
from draftwood.decoding.round_records import Statistics

Prompts = Sequence[Sequence[int]] | Inputs
"""The prompts of one call."""

_LOOKUP_TOKENS = 10  # that transformers' prompt lookup proposes, as its documentation does


@attrs.frozen
class Text:
    """The texts of a call, most often one, and what it took; times in seconds, None where nobody tells.

    Attributes:
        tokens: the new tokens; in a batch, the tokens of all rows in order, equally many of each.
        seconds: the whole call, prompt included.
        first_token_seconds: until the first token was known.
        first_tokens: how many tokens came with it.
        rounds: passes of the target that made new tokens, counted for every row that took part.
        prefill_tokens: tokens that came without a round, with the prompt's passes.
        draft_calls: passes of the draft.
        draft_cost: bytes that a draft pass reads over bytes that a target pass reads.
        drafted: draft tokens in all trees.
        accepted: those that were accepted, before the cut at the end.
        depth: of all trees, added up.
        round_seconds: in the rounds, the prompt's passes not included.
        draft_seconds: in the draft's passes.
        target_seconds: in the target's, the prompt's not included.
        verify_seconds: in verification.
        prefill_seconds: in the prompt's passes, of target and draft.
        peak_memory: bytes, of the accelerator where there is one, else of the process.
        accept_lengths: tokens that each round gave.
        text_seconds: of every row until its text was there, added up; None: all took the whole call.
    """

    tokens: list[int]
    seconds: float
    first_token_seconds: float
    first_tokens: int
    rounds: int
    peak_memory: int
    draft_calls: int | None = None
    draft_cost: float | None = None
    drafted: int | None = None
    accepted: int | None = None
    depth: int | None = None
    round_seconds: float | None = None
    draft_seconds: float | None = None
    target_seconds: float | None = None
    verify_seconds: float | None = None
    prefill_seconds: float | None = None
    accept_lengths: list[int] | None = None
    prefill_tokens: int = 0
    text_seconds: float | None = None


class Writer(Protocol):
    """One contender with its models."""

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        """Exactly `tokens` tokens after `prompt`, past any end-of-text."""
        return self.write_batch([prompt], tokens, seed)

    def write_batch(self, prompts: Prompts, tokens: int, seed: int) -> Text:
        """Exactly `tokens` tokens after each of several prompts, which are written together."""
        ...


@attrs.frozen(eq=False)
class Transformers(Writer):
    """`model.generate` with `options`, at a temperature.

    The model's own generation defaults play no part, see `leave_out_defaults`.
    """

    model: Any
    options: dict[str, Any]
    temperature: float

    def write_batch(self, prompts: Prompts, tokens: int, seed: int) -> Text:
        for one in (self.model, self.options.get("assistant_model")):
            if one is not None:
                leave_out_defaults(one)
        sampled = self.temperature > 0
        chance = {"temperature": self.temperature, "top_k": 0} if sampled else {}
        given = prompts.given if isinstance(prompts, Inputs) else _padded(prompts, self.model.device)
        passes: list[float] = []

        def count(*_: object) -> None:
            if not passes and self.model.device.type == "cuda":
                torch.cuda.synchronize()  # the first token is there when the pass is over, not begun
            passes.append(perf_counter() - started)

        torch.manual_seed(seed)
        forget_peak()
        hook = self.model.register_forward_hook(count)
        started = perf_counter()
        try:
            output = self.model.generate(
                **given,
                max_new_tokens=tokens,
                do_sample=sampled,
                **chance,
                **self.options,
            )
            new = output[:, -tokens:].flatten().tolist()
            seconds = perf_counter() - started
        except (ValueError, NotImplementedError) as error:
            raise UnsupportedModel(str(error).strip().splitlines()[0]) from error
        finally:
            hook.remove()
        rows = len(prompts)
        text = Text(new, seconds, passes[0], rows, rows * len(passes), peak_memory())
        if self.options:
            return text
        return attrs.evolve(text, draft_calls=0, draft_cost=0.0, accept_lengths=[1] * len(new))


@attrs.frozen(eq=False)
class TokenByToken(Writer):
    """One token of every row per pass of a backend, for models that `generate()` does not run."""

    backend: StateBackend
    sampling: SamplingParams

    def write_batch(self, prompts: Prompts, tokens: int, seed: int) -> Text:
        assert not isinstance(prompts, Inputs)  # whose target is a transformers model
        rng, rows = CounterRandomness.seeded(seed), len(prompts)
        forget_peak()
        started, first = perf_counter(), 0.0
        texts = [list(prompt) for prompt in prompts]
        try:
            self.backend.prefill([torch.tensor(text[:-1], dtype=torch.int64) for text in texts])
            for _ in range(tokens):
                roots = torch.tensor([[text[-1]] for text in texts])
                logits = self.backend.extend(roots, torch.full_like(roots, -1))[:, 0]
                self.backend.commit([[0]] * rows)
                for text, of_row in zip(texts, logits, strict=True):
                    text.append(rng.choose(self.sampling.distribution(of_row)))
                first = first or perf_counter() - started
        finally:
            self.backend.release()
        seconds = perf_counter() - started
        new = [token for text in texts for token in text[-tokens:]]
        return Text(
            new,
            seconds,
            first,
            rows,
            rows * tokens,
            peak_memory(),
            draft_calls=0,
            draft_cost=0.0,
            accept_lengths=[1] * len(new),
        )


@attrs.frozen
class Refused(Writer):
    """A mode of transformers that does not run here, and why."""

    reason: str

    def write_batch(self, prompts: Prompts, tokens: int, seed: int) -> Text:
        raise UnsupportedModel(self.reason)


@attrs.frozen(eq=False)
class Speculative(Writer):
    """A `SpeculativeDecoder` at a temperature, and the draft's own."""

    decoder: SpeculativeDecoder
    sampling: SamplingParams
    draft_sampling: SamplingParams | None

    def write_batch(self, prompts: Prompts, tokens: int, seed: int) -> Text:
        model = self.decoder.target.model
        if isinstance(prompts, Inputs):
            leave_out_defaults(model)
        forget_peak()
        started = perf_counter()
        read = prompts.prompt(model) if isinstance(prompts, Inputs) else [list(prompt) for prompt in prompts]
        encoded = perf_counter() - started
        generation = self.decoder.generate(
            read,
            max_new_tokens=tokens,
            sampling=self.sampling,
            draft_sampling=self.draft_sampling,
            seed=seed,
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        seconds = perf_counter() - started
        assert isinstance(generation, Generation)
        if "interrupted" in generation.finish_reasons:
            raise KeyboardInterrupt  # a text that was cut short is no measurement
        s = generation.statistics
        sums = s.sums
        return Text(
            tokens=[token for text in generation.tokens for token in text],
            seconds=seconds,
            first_token_seconds=encoded + s.first_token_seconds,
            first_tokens=int(sums["first_tokens"]),
            rounds=int(sums["rounds"]),
            peak_memory=s.peak_memory,
            draft_calls=s.draft_calls,
            draft_cost=s.draft_cost,
            drafted=int(sums["drafted"]),
            accepted=int(sums["accepted"]),
            depth=int(sums["depth"]),
            round_seconds=sums["round_seconds"],
            draft_seconds=sums["draft_seconds"],
            target_seconds=sums["target_seconds"],
            verify_seconds=sums["verify_seconds"],
            prefill_seconds=encoded + s.prefill_seconds,
            accept_lengths=[len(record.tokens) for one in s.rounds for record in one.rows],
            prefill_tokens=int(sums["prefill_tokens"]),
            text_seconds=_text_seconds(s, seconds),
        )


def _padded(prompts: Sequence[Sequence[int]], device: torch.device) -> dict[str, torch.Tensor]:
    """Returns the tokens `[rows, longest]`, padded at the left, and their attention mask."""
    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    ids = [[0] * more + list(prompt) for more, prompt in zip(padding, prompts, strict=True)]
    mask = [[0] * more + [1] * (longest - more) for more in padding]
    return {
        "input_ids": torch.tensor(ids, device=device),
        "attention_mask": torch.tensor(mask, device=device),
    }


def _text_seconds(statistics: Statistics, seconds: float) -> float:
    """Returns the seconds until each row's text was there, added up, of a call that took `seconds`."""
    after, ended = 0.0, dict[int, float]()
    for one in reversed(statistics.history):
        for record in one.rows:
            ended.setdefault(record.row, seconds - after)
        after += one.seconds
    return sum(ended.values())


def writer(
    spec: Spec,
    loaded: models.Loaded,
    temperature: float,
    rows: Sequence[int] = (1,),
    text: Sequence[int] = (),
) -> Writer:
    """Returns the writer for `spec` on the models of a pair.

    Args:
        spec: the contender.
        loaded: the models.
        temperature: of the target.
        rows: that batches will have, for strategies that weigh what their passes cost.
        text: tokens of prompts, on which these passes are timed.

    Raises:
        DraftwoodError: the strategy and the models do not fit.
    """
    if spec.name == ASSISTED and loaded.token_map is not None and temperature > 0:
        return Refused(
            "transformers cuts the output head of a draft with another tokenizer in place, and the other "
            "contenders draft with it."
        )
    if spec.name == ASSISTED and loaded.head is not None:
        return Refused("it drafts with a model, and this pair has a head.")
    if spec.is_transformers and not _by_generate(loaded.target):
        if spec.name == ORDINARY:
            return TokenByToken(loaded.target, SamplingParams(temperature=temperature))
        return Refused(f"transformers does not run {type(loaded.target).__name__}.")
    if spec.is_transformers:
        return Transformers(_model(loaded.target), _generate_options(spec, loaded), temperature)
    chosen = spec.strategy(temperature)
    if chosen.drafter is None:
        drafter = drafters.model_drafter(loaded)
    else:
        drafter = drafters.create_drafter(chosen.drafter, chosen.drafter_options, loaded)
    sampling = SamplingParams(temperature=temperature)
    sharper = chosen.draft_temperature
    costs = costs_for(chosen.policy, loaded.target, drafter, temperature=temperature, rows=rows, text=text)
    return Speculative(
        SpeculativeDecoder(
            loaded.target,
            drafter,
            chosen.policy,
            chosen.verifier,
            pass_costs=costs,
        ),
        sampling,
        None if sharper is None else attrs.evolve(sampling, temperature=sharper),
    )


def _generate_options(spec: Spec, loaded: models.Loaded) -> dict[str, Any]:
    if spec.name == ASSISTED:
        options = {"assistant_model": _model(loaded.draft)}
        if loaded.draft_tokenizer is not None:
            options |= {"tokenizer": loaded.tokenizer, "assistant_tokenizer": loaded.draft_tokenizer}
        return options
    return {"prompt_lookup_num_tokens": _LOOKUP_TOKENS} if spec.name == LOOKUP else {}


def _by_generate(backend: Any) -> bool:
    """Whether `generate()` runs the model of a backend."""
    return callable(getattr(getattr(backend, "model", None), "generate", None))


def _model(backend: Any) -> Any:
    """The transformers model below a backend; what has none is no contender of `generate`."""
    if not _by_generate(backend):
        raise UnsupportedModel(
            f"{type(backend).__name__} has no transformers model below it, so generate() has nothing to run; "
            "bench a pair of transformers models."
        )
    return backend.model
