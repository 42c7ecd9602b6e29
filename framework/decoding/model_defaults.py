"""Defaults of a model's generation config for every text, applied as `generate` applies them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import attrs
import torch

# Settings that other kinds of decoding or the length of the prompt decide, with what each is when it is off.
_LEFT_OUT: dict[str, tuple[Any, ...]] = {
    "num_beams": (None, 1),
    "guidance_scale": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "token_healing": (None, False),
    "watermarking_config": (None,),
    "encoder_repetition_penalty": (None, 1),
    "encoder_no_repeat_ngram_size": (None, 0),
    "min_new_tokens": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "exponential_decay_length_penalty": (None,),
    "begin_suppress_tokens": (None, []),
    "stop_strings": (None, []),
    "max_time": (None,),
}
_SAMPLING: dict[str, tuple[Any, ...]] = {
    "temperature": (None,),
    "top_k": (None, 0),
    "top_p": (None, 1),
    "min_p": (None,),
    "top_h": (None,),
    "typical_p": (None, 1),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
}


_OF_BEGINNINGS = ("forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens")
"""Settings that count from the first token that an encoder-decoder writes."""


@attrs.frozen(eq=False)
class ModelDefaults:
    """Defaults of a model's generation config for every text, except for its end.

    Attributes:
        processors: transformers' own, in the order in which `generate` applies them: sequence bias,
            repetition penalty, repeated n-grams, bad words, least length, forced tokens, invalid values,
            suppressed tokens.
        left_out: settings that these processors do not apply, as `name=value`.
        sampling: settings for sampling if the caller gives none, as `name=value`; empty: greedy decoding.
    """

    processors: tuple[Any, ...] = ()
    left_out: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        model: Any,
        *,
        ends: Collection[int],
        device: torch.device,
        begins: int | None = None,
        longest: int = 0,
    ) -> ModelDefaults:
        """Returns the defaults of `model`, from its present generation config.

        Args:
            model: of transformers; anything else has none.
            ends: tokens that end a text.
            device: of the scores.
            begins: tokens with which the decoder of an encoder-decoder begins; None for other models, whose
                prompts differ in length, and whose forced tokens are left out.
            longest: tokens of an encoder-decoder's text at most, these among them.
        """
        config = getattr(model, "generation_config", None)
        if config is None:
            return cls()
        sampled = bool(getattr(config, "do_sample", False))
        left_out = {
            name: off for name, off in _LEFT_OUT.items() if begins is None or name not in _OF_BEGINNINGS
        }
        return cls(
            tuple(_processors(config, sorted(ends), device, begins, longest)),
            _set(config, left_out),
            ("do_sample=True", *_set(config, _SAMPLING)) if sampled else (),
        )


def _set(config: Any, settings: dict[str, tuple[Any, ...]]) -> tuple[str, ...]:
    values = {name: getattr(config, name, None) for name in settings}
    return tuple(f"{name}={value!r}" for name, value in values.items() if value not in settings[name])


def _processors(
    config: Any, ends: list[int], device: torch.device, begins: int | None, longest: int
) -> list[Any]:
    import transformers as hf

    end = torch.tensor(ends, device=device) if ends else None
    made: list[Any] = []
    if config.sequence_bias is not None:
        made.append(hf.SequenceBiasLogitsProcessor(config.sequence_bias))
    if config.repetition_penalty not in (None, 1):
        made.append(hf.RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if config.no_repeat_ngram_size:
        made.append(hf.NoRepeatNGramLogitsProcessor(config.no_repeat_ngram_size))
    if config.bad_words_ids is not None:
        made.append(hf.NoBadWordsLogitsProcessor(config.bad_words_ids, end))
    if config.min_length and end is not None:
        made.append(hf.MinLengthLogitsProcessor(config.min_length, end, device=str(device)))
    forced = None if begins is None else config.forced_bos_token_id
    if forced is not None:
        made.append(hf.ForcedBOSTokenLogitsProcessor(forced))
    if begins is not None and config.forced_eos_token_id is not None:
        last = config.forced_eos_token_id
        made.append(hf.ForcedEOSTokenLogitsProcessor(longest, last, device=str(device)))
    if config.remove_invalid_values:
        made.append(hf.InfNanRemoveLogitsProcessor())
    if config.suppress_tokens is not None:
        made.append(hf.SuppressTokensLogitsProcessor(config.suppress_tokens, device=str(device)))
    if begins is not None and config.begin_suppress_tokens is not None:
        # As generate() counts: after a forced first token.
        first = begins if begins > 1 or forced is None else begins + 1
        made.append(
            hf.SuppressTokensAtBeginLogitsProcessor(config.begin_suppress_tokens, first, device=str(device))
        )
    return made
