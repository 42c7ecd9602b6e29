"""The writers of a contender's texts, and the measurements of one text."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import attrs
import torch

from draftwood import CounterRandomness, SamplingParams, SpeculativeDecoder, StateBackend
from draftwood.apps.bench.memory import forget_peak, peak_memory
from draftwood.apps.bench.specs import ASSISTED, LOOKUP, ORDINARY, Spec
from draftwood.apps.models import by_name as models
from draftwood.apps.models.costs import costs_for
from draftwood.base.errors import UnsupportedModel
from draftwood.decoding.generation import Generation

_LOOKUP_TOKENS = 10  # that transformers' prompt lookup proposes, as its documentation does


@attrs.frozen
class Text:
    """One text and what it took; times in seconds, None where transformers does not tell.

    Attributes:
        tokens: the new tokens.
        seconds: the whole call, prompt included.
        first_token_seconds: until the first token was known.
        first_tokens: how many tokens came with it.
        rounds: passes of the target that made new tokens.
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


class Writer(Protocol):
    """One contender with its models."""

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        """Exactly `tokens` tokens after `prompt`, past any end-of-text."""
        ...


@attrs.frozen(eq=False)
class Transformers(Writer):
    """`model.generate` with `options`, at a temperature.

    The model's own generation defaults play no part: no end of text, no penalty, no top-k.
    """

    model: Any
    options: dict[str, Any]
    temperature: float

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        from transformers import GenerationConfig

        for one in (self.model, self.options.get("assistant_model")):
            if one is not None:
                one.generation_config = GenerationConfig(pad_token_id=0)
        sampled = self.temperature > 0
        chance = {"temperature": self.temperature, "top_k": 0} if sampled else {}
        ids = torch.tensor([list(prompt)], device=self.model.device)
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
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=tokens,
                do_sample=sampled,
                **chance,
                **self.options,
            )
            new = output[0, ids.shape[1] :].tolist()
            seconds = perf_counter() - started
        except (ValueError, NotImplementedError) as error:
            raise UnsupportedModel(str(error).strip().splitlines()[0]) from error
        finally:
            hook.remove()
        text = Text(new, seconds, passes[0], 1, len(passes), peak_memory())
        if self.options:
            return text
        return attrs.evolve(text, draft_calls=0, draft_cost=0.0, accept_lengths=[1] * len(new))


@attrs.frozen(eq=False)
class TokenByToken(Writer):
    """One token per pass of a backend, for models that `generate()` does not run."""

    backend: StateBackend
    sampling: SamplingParams

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        rng = CounterRandomness.seeded(seed)
        forget_peak()
        started, first, new = perf_counter(), 0.0, list[int]()
        try:
            self.backend.prefill([torch.tensor(prompt[:-1], dtype=torch.int64)])
            while len(new) < tokens:
                root = new[-1] if new else prompt[-1]
                logits = self.backend.extend(torch.tensor([[root]]), torch.tensor([[-1]]))[0, 0]
                self.backend.commit([[0]])
                new.append(rng.choose(self.sampling.distribution(logits)))
                first = first or perf_counter() - started
        finally:
            self.backend.release()
        seconds = perf_counter() - started
        return Text(
            new,
            seconds,
            first,
            1,
            tokens,
            peak_memory(),
            draft_calls=0,
            draft_cost=0.0,
            accept_lengths=[1] * tokens,
        )


@attrs.frozen
class Refused(Writer):
    """A mode of transformers that does not run here, and why."""

    reason: str

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        raise UnsupportedModel(self.reason)


@attrs.frozen(eq=False)
class Speculative(Writer):
    """A `SpeculativeDecoder` at a temperature, and the draft's own."""

    decoder: SpeculativeDecoder
    sampling: SamplingParams
    draft_sampling: SamplingParams | None

    def write(self, prompt: Sequence[int], tokens: int, seed: int) -> Text:
        forget_peak()
        started = perf_counter()
        generation = self.decoder.generate(
            [list(prompt)],
            max_new_tokens=tokens,
            sampling=self.sampling,
            draft_sampling=self.draft_sampling,
            seed=seed,
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        seconds = perf_counter() - started
        assert isinstance(generation, Generation)
        if generation.finish_reasons[0] == "interrupted":
            raise KeyboardInterrupt  # a text that was cut short is no measurement
        s = generation.statistics
        sums = s.sums
        return Text(
            tokens=generation.tokens[0],
            seconds=seconds,
            first_token_seconds=s.first_token_seconds,
            first_tokens=int(sums["first_tokens"]),
            rounds=s.target_calls,
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
            prefill_seconds=s.prefill_seconds,
            accept_lengths=[len(record.tokens) for one in s.rounds for record in one.rows],
            prefill_tokens=int(sums["prefill_tokens"]),
        )


def writer(spec: Spec, loaded: models.Loaded, temperature: float) -> Writer:
    """Returns the writer for `spec` on the models of a pair.

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
        drafter = models.model_drafter(loaded)
    else:
        drafter = models.create_drafter(chosen.drafter, chosen.drafter_options, loaded)
    sampling = SamplingParams(temperature=temperature)
    sharper = chosen.draft_temperature
    return Speculative(
        SpeculativeDecoder(
            loaded.target,
            drafter,
            chosen.policy,
            chosen.verifier,
            pass_costs=costs_for(chosen.policy, loaded.target, drafter),
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
