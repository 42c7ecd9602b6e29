"""Settings of single rows, as values: what they bring to `Session.add` is made of them anew each time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import attrs
import tokenizers
import torch
import transformers as hf
from hypothesis import strategies as st
from transformers.generation.logits_process import (
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from draftwood import Constraint, SamplingParams

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@cache
def tokenizer() -> Any:
    """Every token is a letter."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: n for n, w in enumerate(LETTERS)}, "a"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Split(tokenizers.Regex("."), "isolated")
    inner.decoder = tokenizers.decoders.Fuse()
    return hf.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="a")


class OddThenEven(Constraint):
    """After an odd new token comes an even one, and after an even one any."""

    def start(self, prompt: Sequence[int]) -> int:
        return 0

    def advance(self, state: int, token: int) -> int | None:
        return None if (state % 2 and token % 2) else token

    def masks(self, states: Sequence[int], vocab_size: int) -> torch.Tensor:
        even = torch.arange(vocab_size) % 2 == 0
        return torch.stack([even if state % 2 else torch.ones_like(even) for state in states])


class Fails(OddThenEven):
    """Raises after a few tokens."""

    def __init__(self) -> None:
        self.left = 5

    def advance(self, state: int, token: int) -> int | None:
        self.left -= 1
        if not self.left:
            raise ZeroDivisionError("the grammar has a bug")
        return super().advance(state, token)


CONSTRAINTS: dict[str, Callable[[], Constraint]] = {"odd then even": OddThenEven, "fails": Fails}


class EndsAt(hf.StoppingCriteria):
    """Ends a text at a token."""

    def __init__(self, token: int) -> None:
        self.token = token

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> torch.Tensor:
        return input_ids[:, -1] == self.token


PROCESSORS: dict[str, Callable[[], Any]] = {
    "repetition": lambda: RepetitionPenaltyLogitsProcessor(1.7),
    "suppression": lambda: SuppressTokensLogitsProcessor([1], device="cpu"),
}
WORDS = ("ab", "c", "fg")


@attrs.frozen
class RowOptions:
    """The settings of a row, besides its budget and constraint; None: the session's.

    Attributes:
        temperature: of the target; the filters below count only where it is given.
        draft_temperature: of the draft.
        processor: one of `PROCESSORS`.
        ends_at: a token that a criterion of the row ends it at.
        stop: one of `WORDS`.
        logprobs: as in `Session.add`.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    draft_temperature: float | None = None
    processor: str | None = None
    ends_at: int | None = None
    stop: str | None = None
    logprobs: int | None = None

    def greedily(self) -> RowOptions:
        """Returns these options at temperature 0."""
        return self if self.temperature is None else attrs.evolve(self, temperature=0.0)

    @property
    def arguments(self) -> dict[str, Any]:
        """For `Session.add`."""
        sampling = draft_sampling = None
        if self.temperature is not None:
            processors = [] if self.processor is None else [PROCESSORS[self.processor]()]
            sampling = SamplingParams(
                self.temperature,
                top_k=self.top_k,
                top_p=self.top_p,
                min_p=self.min_p,
                processors=processors,
            )
        if self.draft_temperature is not None:
            draft_sampling = SamplingParams(self.draft_temperature)
        return {
            "sampling": sampling,
            "draft_sampling": draft_sampling,
            "stopping_criteria": [] if self.ends_at is None else [EndsAt(self.ends_at)],
            "stop_strings": self.stop,
            "logprobs": self.logprobs,
        }


def _sometimes(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from([None, None, *values])


drawn_options: st.SearchStrategy[RowOptions] = st.just(RowOptions()) | st.builds(
    RowOptions,
    temperature=st.sampled_from([0.0, 0.3, 1.0, 1.6]),
    top_k=_sometimes(1, 2, 5),
    top_p=_sometimes(0.4, 0.9),
    min_p=_sometimes(0.1, 0.5),
    draft_temperature=_sometimes(0.5, 1.5),
    processor=_sometimes(*PROCESSORS),
    ends_at=_sometimes(4),
    stop=_sometimes(*WORDS),
    logprobs=_sometimes(0, 2),
)
