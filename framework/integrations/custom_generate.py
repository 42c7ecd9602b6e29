"""Decoding through transformers' own `generate`: loops for its argument `custom_generate`."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from os import PathLike
from typing import Any, Literal, cast

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import DraftwoodError, InvalidInput, UnsupportedModel, stop_iteration_as_it_is
from draftwood.base.model_key import ModelKey
from draftwood.decoding.decoder import SpeculativeDecoder, as_drafter
from draftwood.decoding.generation import Generation, PartialGeneration
from draftwood.decoding.given_cache import GivenCache, filled_cache
from draftwood.decoding.kept_text import KeptText, Turn
from draftwood.decoding.prompts import as_prompts
from draftwood.decoding.round_records import Statistics, TokenDetails
from draftwood.decoding.stopping import stop_string_criteria
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams
from draftwood.integrations.followed_processors import follow
from draftwood.integrations.generate_call import Call, watch
from draftwood.integrations.generate_inputs import prompt_of
from draftwood.integrations.generate_options import limits, refuse_unserved
from draftwood.integrations.inner_outputs import inner_outputs
from draftwood.laws.randomness import row_seeds
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier, policy_states, registry
from draftwood.protocols.model_prompt import ModelPrompt
from draftwood.protocols.named_heads import NamedHead
from draftwood.protocols.pass_costs import PassCosts

Learner = Callable[[Any, Sequence[Sequence[int]], Sequence[Sequence[int]]], None]
"""Learns from a call: given the model, the prompts and the new tokens of every row, both without padding."""


def custom_generate(
    *,
    drafter: Any,
    policy: TreePolicy,
    verifier: Verifier,
    draft_sampling: SamplingParams | None = None,
    constraint: Constraint | Sequence[Constraint] | None = None,
    streamer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
    engine: Literal["auto", "eager", "inductor", "openvino"] = "eager",
    pass_costs: PassCosts | None = None,
    learner: Learner | None = None,
) -> CustomGenerate:
    """A decoding loop for `model.generate(..., custom_generate=...)`; no other argument changes.

    All other options of the call keep their meaning; an option that is not supported is refused in one
    sentence. The result is the one of `generate`; with `return_dict_in_generate` it has an additional
    attribute `statistics`. For one row, its `past_key_values` can be given to the next call of this loop: a
    text that begins with this one is not read again. A `DynamicCache` of another call is read but not
    extended.

    Args:
        drafter: a `Drafter`, or a model or a head, each as an object, a folder or a hub name.
        policy: grows the trees.
        verifier: accepts a path.
        draft_sampling: how the draft's tokens are drawn; default: with the call's settings.
        constraint: the tokens that may be written: one constraint for all rows, or one per row.
        streamer: receives the tokens as they are committed, unless the call names a streamer.
        stop_strings: strings that end the text, in addition to the call's; they need `tokenizer`.
        engine: runs the target, and `drafter` if that is a model, folder or hub name; see `draftwood.load`.
        pass_costs: for a policy that weighs what passes cost; see `draftwood.measure_costs`.
        learner: called after each call with the model, the prompts and the new tokens of every row; see
            `draftwood.zoo.distil.online.OnlineDistillation`.
    """
    if engine != "eager" and isinstance(drafter, (str, PathLike, torch.nn.Module)):
        drafter = registry.load(drafter, engine=engine)
    return CustomGenerate(
        as_drafter(drafter),
        policy,
        verifier,
        draft_sampling,
        constraint,
        streamer,
        stop_strings,
        tokenizer,
        engine,
        pass_costs,
        learner,
    )


@attrs.define(eq=False)
class CustomGenerate:
    """A loop for `generate`, with the strategies it was made with; see `custom_generate`."""

    drafter: Drafter | NamedHead
    policy: TreePolicy
    verifier: Verifier
    draft_sampling: SamplingParams | None = None
    constraint: Constraint | Sequence[Constraint] | None = None
    streamer: Any = None
    stop_strings: str | Sequence[str] | None = None
    tokenizer: Any = None
    engine: Literal["auto", "eager", "inductor", "openvino"] = "eager"
    pass_costs: PassCosts | None = None
    learner: Learner | None = None
    _decoder: SpeculativeDecoder | None = attrs.field(default=None, init=False)
    _model: Any = attrs.field(default=None, init=False)
    _key: ModelKey | None = attrs.field(default=None, init=False)
    _text_refused: str = attrs.field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        watch(type(self))

    @property
    def target(self) -> StateBackend | None:
        """The backend of the model of the last call; None before the first."""
        return None if self._decoder is None else self._decoder.target

    def generate(self, model: Any, inputs: Tensor | None = None, **arguments: Any) -> Any:
        """Calls `model.generate` with these arguments and this loop, and returns what it returns.

        As `model.generate(inputs, custom_generate=loop, **arguments)`, but every argument is seen here,
        whatever a version of transformers tells a custom loop.
        """
        if arguments.get("custom_generate") not in (None, self):
            raise InvalidInput("custom_generate= was given to the generate() of a loop; leave it out.")
        arguments["custom_generate"] = self
        tokenizer = arguments.get("tokenizer") or self.tokenizer
        if strings := arguments.pop("stop_strings", None):
            criteria = [*(arguments.get("stopping_criteria") or ()), stop_string_criteria(strings, tokenizer)]
            arguments["stopping_criteria"] = criteria
        Call.of(arguments).note()
        try:
            # A family's own generate() may call its first argument otherwise.
            return model.generate(*(() if inputs is None else (inputs,)), **arguments)
        finally:
            Call.taken()

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        tokenizer: Any = None,
        inputs_tensor: Tensor | None = None,
        **model_kwargs: Any,
    ) -> Any:
        """Decode as `generate` would; it passes all arguments itself."""
        call = Call.taken()
        if call is None:
            call = _untold()
        streamer = streamer or call.streamer or self.streamer
        prompt_is_shown = call.streamer is not None
        try:
            refuse_unserved(call, model, generation_config, model_kwargs, synced_gpus=synced_gpus)
            prompt = prompt_of(
                call,
                model,
                model_kwargs,
                input_ids,
                generation_config,
                source=inputs_tensor,
                reads_padding=lambda: self._decoder_of(model, by_forward=False).target.reads_padding,
                decodes_text=lambda: self._decodes_text(model),
            )
            if prompt is not None and self.learner is not None:
                raise InvalidInput(
                    "custom_generate(learner=...) learns from tokens, and the model's own forward has to "
                    "read this prompt; leave one of the two out."
                )
            if streamer is not None and len(input_ids) > 1:
                raise InvalidInput(
                    f"A streamer shows one row and {len(input_ids)} were given; call once per row."
                )
            if streamer is not None and not prompt_is_shown:
                streamer.put(input_ids.cpu())
            turn = _turn(
                model_kwargs, generation_config, input_ids, prompt, lambda: self._decodes_text(model)
            )
            generation = self._generate(
                model,
                input_ids,
                model_kwargs.get("attention_mask"),
                prompt=prompt,
                processors=logits_processor or (),
                criteria=stopping_criteria or (),
                tokenizer=tokenizer or call.tokenizer or self.tokenizer,
                config=generation_config,
                streamer=streamer,
                turn=turn,
            )
        finally:
            if streamer is not None:
                streamer.end()  # whoever waits for the text must learn that none follows
        if self.learner is not None:
            self.learner(model, as_prompts(input_ids, model_kwargs.get("attention_mask")), generation.tokens)
        if not generation_config.return_dict_in_generate:
            return generation.sequences
        inner = inner_outputs(
            model,
            generation.sequences,
            generation_config,
            model_kwargs,
            prompt=input_ids.shape[1],
            columns=None if prompt is None else prompt.columns,
        )
        return _as_output(model, generation, None if turn is None else turn.kept, inner)

    def _generate(
        self,
        model: Any,
        input_ids: Tensor,
        mask: Tensor | None,
        *,
        prompt: ModelPrompt | None,
        processors: Sequence[Any],
        criteria: Sequence[Any],
        tokenizer: Any,
        config: Any,
        streamer: Any,
        turn: Turn | None,
    ) -> Generation:
        asked, longest, ends = limits(criteria)
        processors, constraint = self._constrained(processors, rows=len(input_ids), ends=ends)
        prompts = as_prompts(input_ids, mask) if prompt is None else prompt
        room = (longest if longest is not None else config.max_length) - input_ids.shape[1]
        keep = TokenDetails(
            logits=bool(config.return_dict_in_generate and config.output_logits),
            scores=bool(config.return_dict_in_generate and config.output_scores),
        )
        states = policy_states.row_states(self.policy, None, len(prompts))
        statistics, written = Statistics(), PartialGeneration.nothing(states)
        # A greedy call leaves torch's generator as it was, as that of `generate` does.
        seeds = row_seeds(None if config.do_sample else 0, len(prompts))
        pad = getattr(config, "_pad_token_tensor", None)
        pad = config.pad_token_id if pad is None else int(pad)
        pad = pad if pad is not None else 0
        rounds = self._decoder_of(model, by_forward=prompt is not None).stream(
            prompts,
            max_new_tokens=max(room, 1),  # `generate` asks its criteria after a first token
            # It has put temperature, top-k and their kin among the processors already.
            sampling=SamplingParams(temperature=1.0 if config.do_sample else 0.0, processors=processors),
            draft_sampling=self.draft_sampling,
            constraint=constraint,
            seed=seeds,
            eos_token_id=sorted(ends),
            pad_token_id=pad,
            stopping_criteria=asked,
            stop_strings=self.stop_strings,
            tokenizer=tokenizer,
            keep=keep,
            statistics=statistics,
            padded=input_ids,
            turn=turn,
        )
        with closing(rounds), stop_iteration_as_it_is:
            for finished_round in rounds:
                written.add(finished_round)
                if streamer is not None:
                    for token in finished_round.rows[0].tokens:
                        streamer.put(torch.tensor([token]))
        for number, row in enumerate(written.rows):
            if row.finish_reason == "context":
                raise InvalidInput(
                    f"The text of row {number} reached the end of the target's context after "
                    f"{len(row.tokens)} new tokens; ask for no more (max_new_tokens)."
                )
        return written.generation(input_ids, statistics, seeds, pad=pad, keep=keep)

    def _constrained(
        self, processors: Sequence[Any], *, rows: int, ends: frozenset[int]
    ) -> tuple[list[Any], Constraint | Sequence[Constraint] | None]:
        """The processors without those that hold a grammar, and the constraint of the call."""
        others, followed = follow(processors, rows=rows, ends=ends)
        if followed is not None and self.constraint is not None:
            raise InvalidInput(
                "custom_generate(constraint=...) and a logits processor with a grammar were given; leave one "
                "of the two out."
            )
        return others, self.constraint if followed is None else followed

    def _decoder_of(self, model: Any, *, by_forward: bool) -> SpeculativeDecoder:
        """The decoder of the last model, or a new one: for another model, or another structure of it.

        Args:
            model: the target.
            by_forward: whether its own forward reads the prompt. Then trees after the prompt are checked
                there, and a model that reads text otherwise than it decodes is not refused for that.

        Raises:
            UnsupportedModel: no backend reads a text of `model` token by token, and it is not `by_forward`.
        """
        key = ModelKey.of(model)
        if self._decoder is None or self._model is not model or self._key_of_verdict(key) != self._key:
            self._decoder, self._text_refused = None, ""
            target = self._target_of(model)
            self._decoder = SpeculativeDecoder(
                target,
                cast(Drafter, self.drafter),
                self.policy,
                self.verifier,
                follows_defaults=False,  # generate() has made processors of them
                pass_costs=self.pass_costs,
            )
            self._model, self._key = model, self._key_of_verdict(key)
        if self._text_refused and not by_forward:
            raise UnsupportedModel(self._text_refused)
        return self._decoder

    def _key_of_verdict(self, key: ModelKey) -> ModelKey:
        """The part that decides on the decoder; a backend that reads text takes up other contents itself."""
        return key if self._text_refused else attrs.evolve(key, contents=())

    def _target_of(self, model: Any) -> StateBackend:
        try:
            return registry.load(model, engine=self.engine)
        except UnsupportedModel as error:
            with suppress(DraftwoodError):
                target: StateBackend = registry.get("loaders", "auto")(model, attention="mask")
                self._text_refused = str(error)
                return target
            raise

    def _decodes_text(self, model: Any) -> bool:
        """Returns whether a backend reads a text of `model` token by token."""
        try:
            self._decoder_of(model, by_forward=False)
        except UnsupportedModel:
            return False
        return True


def _untold() -> Call:
    """The call of a version of transformers that tells a loop too little, which is said once."""
    warnings.warn(
        "This version of transformers does not tell a custom loop the streamer, tokenizer and "
        "assistant_model of generate(); if you give one, call the loop's own generate(model, ...) instead.",
        stacklevel=3,
    )
    return Call()


def _turn(
    model_kwargs: Mapping[str, Any],
    config: Any,
    ids: Tensor,
    prompt: ModelPrompt | None,
    decodes_text: Callable[[], bool],
) -> Turn | None:
    """Returns the cache that the call continues, if any, and whether it leaves one; None for neither."""
    keeps = len(ids) == 1 and config.return_dict_in_generate and config.use_cache is not False
    if prompt is not None:
        # A next turn gives tokens only, and has to read them as these were read.
        return Turn(pictured=True) if keeps and prompt.continues_in_tokens and decodes_text() else None
    past = _past(model_kwargs, config, ids)
    pictured = isinstance(past, KeptText) and past.pictured
    return Turn(past, pictured) if keeps or past is not None else None


def _past(model_kwargs: Mapping[str, Any], config: Any, ids: Tensor) -> KeptText | GivenCache | None:
    rows, mask = len(ids), model_kwargs.get("attention_mask")
    past = next((value for value in model_kwargs.values() if isinstance(value, KeptText)), None)
    if past is not None and rows > 1:
        raise InvalidInput(f"past_key_values holds one text and {rows} rows were given; call once per row.")
    if past is not None or (cache := filled_cache(model_kwargs)) is None:
        return past
    return GivenCache(cache, [0] * rows if mask is None else (mask == 0).sum(1).tolist())


def _as_output(model: Any, generation: Generation, kept: KeptText | None, inner: Mapping[str, Any]) -> Any:
    from transformers.generation import GenerateDecoderOnlyOutput, GenerateEncoderDecoderOutput

    kind: Any = GenerateEncoderDecoderOutput if model.config.is_encoder_decoder else GenerateDecoderOnlyOutput
    # Up to transformers 5.23 the field of the cache has its older name.
    fields = {field.name for field in dataclasses.fields(kind)}
    cache: Any = {"cache" if "cache" in fields else "past_key_values": kept}
    output = kind(
        sequences=generation.sequences, scores=generation.scores, logits=generation.logits, **cache, **inner
    )
    output.statistics = generation.statistics
    return output
