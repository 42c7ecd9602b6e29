"""Faults that callers of a decoder bring, and those that its parts raise."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import transformers as hf

from draftwood import OutOfMemory, SamplingParams
from draftwood.base.errors import DraftwoodError
from tests.framework.row_options import OddThenEven


class Bug(Exception):
    """Raised by nobody else."""


def _raises(kind: type[BaseException], *args: Any) -> Callable[[], Any]:
    def call() -> None:
        raise kind(*args)

    return call


MEMORY: dict[str, Callable[[], Any]] = {
    "a tensor of 2^50 bytes": lambda: torch.empty(2**50),
    "an array of 2^50 numbers": lambda: np.zeros(2**50),
    "2^50 bytes": lambda: bytearray(2**50),
    "MemoryError": _raises(MemoryError),
    "CUDA out of memory": _raises(torch.OutOfMemoryError, "CUDA out of memory. Tried to allocate 2 GiB."),
    "cuBLAS": _raises(RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"),
    "OutOfMemory": _raises(OutOfMemory, "The pass does not fit."),
}
PARTS = MEMORY | {"a bug": _raises(Bug, "mine"), "an error of draftwood": _raises(DraftwoodError, "No.")}
"""Errors that the decoder's parts raise."""
CALLERS = PARTS | {
    "StopIteration": _raises(StopIteration),
    "SystemExit": _raises(SystemExit, 3),
    "KeyboardInterrupt": _raises(KeyboardInterrupt),
    "GeneratorExit": _raises(GeneratorExit),
}
"""Errors that the code of callers raises."""


class BadConstraint(OddThenEven):
    """Fails in one of its methods, after a few calls."""

    def __init__(self, where: str, left: int, failing: Callable[[], Any]) -> None:
        self.where, self.left, self.failing = where, left, failing

    def _passing(self, where: str) -> None:
        if where == self.where:
            if not self.left:
                self.failing()
            self.left -= 1

    def start(self, prompt: Sequence[int]) -> int:
        self._passing("start")
        return super().start(prompt)

    def advance(self, state: int, token: int) -> int | None:
        self._passing("advance")
        return super().advance(state, token)

    def masks(self, states: Sequence[int], vocab_size: int) -> torch.Tensor:
        self._passing("masks")
        return super().masks(states, vocab_size)


class WrongMasks(OddThenEven):
    """Answers with something that is no mask."""

    def __init__(self, answer: Callable[[int, int], Any]) -> None:
        self.answer = answer

    def masks(self, states: Sequence[int], vocab_size: int) -> Any:
        return self.answer(len(states), vocab_size)


class BadCriterion(hf.StoppingCriteria):
    """Fails after a few calls."""

    def __init__(self, left: int, failing: Callable[[], Any]) -> None:
        self.left, self.failing = left, failing

    def __call__(self, input_ids: Any, scores: Any, **options: Any) -> Any:
        if not self.left:
            return self.failing()
        self.left -= 1
        return torch.zeros(len(input_ids), dtype=torch.bool)


class BadProcessor(hf.LogitsProcessor):
    """Fails on texts of some tokens or more."""

    def __init__(self, length: int, failing: Callable[[Any], Any]) -> None:
        self.length, self.failing = length, failing

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        return self.failing(scores) if input_ids.shape[1] >= self.length else scores


def brought(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """The arguments of a caller whose text cannot be written, or breaks off; and what they are."""
    name = rng.choice(list(CALLERS))
    failing, left = CALLERS[name], rng.randrange(6)
    shapes: list[Callable[[int, int], Any]] = [
        lambda states, vocab: torch.ones(states, vocab + 1, dtype=torch.bool),
        lambda states, vocab: torch.zeros(states, vocab, dtype=torch.bool),
        lambda states, vocab: None,
    ]
    processed: list[Callable[[Any], Any]] = [
        lambda scores: failing(),
        lambda scores: scores[:, :-1],
        lambda scores: scores * torch.nan,
        lambda scores: "scores",
    ]
    where = rng.choice(["start", "advance", "masks"])
    cases: list[tuple[str, dict[str, Any]]] = [
        (f"constraint, {where}: {name}", {"constraint": BadConstraint(where, left, failing)}),
        ("constraint: an int", {"constraint": 5}),
        ("constraint: no mask", {"constraint": WrongMasks(rng.choice(shapes))}),
        (f"criterion: {name}", {"stopping_criteria": [BadCriterion(left, failing)]}),
        ("criterion: no answer", {"stopping_criteria": [BadCriterion(left, lambda: None)]}),
        ("criterion: None", {"stopping_criteria": [None]}),
        (
            f"processor: {name}",
            {
                "sampling": SamplingParams(
                    rng.choice([0.0, 0.9]), processors=[BadProcessor(left + 4, rng.choice(processed))]
                )
            },
        ),
        ("sampling: an int", {"sampling": 3}),
        ("max_new_tokens", {"max_new_tokens": rng.choice([0, -1, "8", 2.5])}),
        ("prompt", {"prompt": rng.choice([[], [10**6], [-1], None, "words", [0.5], [None]])}),
        ("logprobs", {"logprobs": rng.choice([-1, "all"])}),
        ("stop strings without a tokenizer", {"stop_strings": "a"}),
        ("seed", {"seed": rng.choice([-1, "none", 1.5])}),
    ]
    return rng.choice(cases)
