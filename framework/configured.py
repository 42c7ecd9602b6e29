"""Penalties, suppressed tokens and the like that a model's generation config asks for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakSet

from draftwood.protocols import StateBackend

log = logging.getLogger(__name__)

_SUPPORTED: Mapping[str, tuple[str, Any]] = {
    # In the order of `generate`: the option, transformers' class for it, and its value when it is off.
    "sequence_bias": ("SequenceBiasLogitsProcessor", None),
    "repetition_penalty": ("RepetitionPenaltyLogitsProcessor", 1.0),
    "no_repeat_ngram_size": ("NoRepeatNGramLogitsProcessor", 0),
    "bad_words_ids": ("NoBadWordsLogitsProcessor", None),
    "suppress_tokens": ("SuppressTokensLogitsProcessor", None),
}
# These count the tokens of a prompt, or need more than the text.
_LEFT_OUT: Mapping[str, Any] = {
    "min_length": 0,
    "min_new_tokens": 0,
    "begin_suppress_tokens": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1,
    "watermarking_config": None,
    "stop_strings": None,
}
_told: WeakSet[Any] = WeakSet()


def configured_processors(target: StateBackend, ends: Sequence[int]) -> tuple[Any, ...]:
    """The logits processors that the generation config of the target's model asks for.

    Penalties, forbidden repetitions and words, biases and suppressed tokens. What else it asks for is told
    once per model: options that depend on the length of the prompt or on more than the text. How tokens are
    drawn (temperature and filters) and how long a text gets is up to the caller.

    Args:
        target: a backend; one without a transformers model asks for nothing.
        ends: the tokens that end a text.
    """
    config = getattr(target.model, "generation_config", None)
    if config is None:
        return ()
    _tell(target.model, config)
    chosen = {name: getattr(config, name, off) for name, (_, off) in _SUPPORTED.items()}
    if not any(_asks(value, _SUPPORTED[name][1]) for name, value in chosen.items()):
        return ()
    import transformers

    processors = []
    for name, value in chosen.items():
        kind, off = _SUPPORTED[name]
        if _asks(value, off):
            make: Callable[..., Any] = getattr(transformers, kind)
            processors.append(make(value, list(ends) or None) if name == "bad_words_ids" else make(value))
    return tuple(processors)


def _tell(model: Any, config: Any) -> None:
    values = {name: getattr(config, name, off) for name, off in _LEFT_OUT.items()}
    left_out = [f"{name}={value!r:.60}" for name, value in values.items() if _asks(value, _LEFT_OUT[name])]
    if left_out and model not in _told:
        _told.add(model)
        log.warning(
            "The generation config of %s asks for %s, which is left out here; generate(custom_generate=...) "
            "applies it.",
            type(model).__name__,
            " and ".join(left_out),
        )


def _asks(value: Any, off: Any) -> bool:
    """Whether an option is on."""
    return value is not None and value != off
