"""The other way in: what transformers' own `generate` takes as `custom_generate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor

from draftwood.decoder import Generation, SpeculativeDecoder
from draftwood.protocols import TreePolicy, Verifier
from draftwood.sampling import SamplingParams


def custom_generate(
    *,
    drafter: Any,
    policy: TreePolicy,
    verifier: Verifier,
    streamer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    tokenizer: Any = None,
) -> Callable[..., Any]:
    """What `model.generate(..., custom_generate=...)` takes, so that one argument changes.

    Sampling settings, logits processors, stopping criteria and token ids are those that `generate`
    prepared. Returns what `generate` returns; with `return_dict_in_generate` the output has an
    additional attribute `statistics`.

    Args:
        drafter: a `Drafter`, or a model, folder or hub name that drafts.
        policy: grows the trees.
        verifier: accepts a path.
        streamer: shown the tokens as they are committed. transformers (seen in 5.23) hands neither
            its own `streamer` nor its `tokenizer` on to a custom loop, so give them here.
        stop_strings: strings that end the text; they need `tokenizer`.
    """
    decoders: dict[int, SpeculativeDecoder] = {}

    def decode(
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = streamer,
        **model_kwargs: Any,
    ) -> Any:
        if id(model) not in decoders:
            decoders[id(model)] = SpeculativeDecoder(model, drafter, policy, verifier)
        config = generation_config
        processors = [_without_padding(processor) for processor in logits_processor or ()]
        # `generate` has put temperature, top-k and their kin among the processors already.
        sampling = SamplingParams(temperature=1.0 if config.do_sample else 0.0, processors=processors)
        eos = config.eos_token_id
        generation = decoders[id(model)].generate(
            input_ids,
            model_kwargs.get("attention_mask"),
            max_new_tokens=config.max_length - input_ids.shape[1],
            sampling=sampling,
            eos_token_id=[] if eos is None else eos,
            pad_token_id=config.pad_token_id,
            stopping_criteria=_without_the_loops_own(stopping_criteria),
            streamer=streamer,
            stop_strings=stop_strings,
            tokenizer=tokenizer,
            return_dict_in_generate=True,
        )
        assert isinstance(generation, Generation)
        if not config.return_dict_in_generate:
            return generation.sequences
        from transformers.generation import GenerateDecoderOnlyOutput

        output = GenerateDecoderOnlyOutput(sequences=cast(torch.LongTensor, generation.sequences))
        output.statistics = generation.statistics
        return output

    return decode


def _without_the_loops_own(criteria: Any) -> list[Any]:
    """The criteria that the loop does not apply itself (its own ones assume rows of one length)."""
    ours = {"MaxLengthCriteria", "EosTokenCriteria"}
    return [c for c in criteria or () if type(c).__name__ not in ours]


def _without_padding(processor: Any) -> Any:
    """The processor for rows without padding: `generate` tells the repetition penalty each row's."""
    if type(processor).__name__ != "RepetitionPenaltyLogitsProcessor":
        return processor
    if not isinstance(processor.prompt_ignore_length, Tensor):
        return processor
    unpadded = copy.copy(processor)
    unpadded.prompt_ignore_length = None
    return unpadded
