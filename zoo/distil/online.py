"""Distillation of a draft while its target changes: it learns from the texts that were just written."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.base.errors import InvalidInput, OutOfMemory
from draftwood.base.machine_faults import machine_fault
from draftwood.base.validators import at_least

from ..pretrain import optimiser_for
from .steps import descend
from .training import TrainingOptions, text_loss

_WIDTH_TIMES_RATE = 0.096  # half of the peak of `draftwood distil`, which falls to 0 later


def _a_model(_: object, field: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, torch.nn.Module):
        raise InvalidInput(
            f"{field.name} is {value!r:.60}; give the transformers model that drafts, the same object as "
            "drafter=."
        )
    if not all(weight.is_floating_point() for weight in value.parameters()):
        raise InvalidInput(f"{field.name} is quantized; give a draft with floating-point weights.")


def _sampled(_: object, field: attrs.Attribute[Any], value: tuple[float, ...]) -> None:
    if not value or not all(temperature > 0 for temperature in value):
        raise InvalidInput(f"{field.name} is {value!r:.60}; give one or more above 0.")


@attrs.frozen(eq=False)
class _Text:
    """The tokens of a prompt and of the text after it."""

    tokens: list[int]
    prompt: int


@attrs.define(eq=False, kw_only=True)
class OnlineDistillation:
    """A draft that follows its target while the target is trained, as in the rollouts of GRPO.

    Given as `custom_generate(learner=...)`, or called after each generation with the target, the prompts and
    the new tokens, it makes a few steps of the loss of `draftwood distil` on them: the target reads
    the texts once more, and the draft learns its distributions. The steps are made on a copy of the draft in
    float32, whose weights are then written into `draft`. The distribution of the texts does not change: only
    the proposals do.

    Attributes:
        draft: the transformers model that drafts, on the device of the target.
        every: calls from one learning to the next, which is about the texts of all of them.
        steps: of the optimiser each time.
        batch: tokens of a step, about: whole texts, at least one, drawn anew for every step.
        learning_rate: of AdamW; default: 0.096 / the draft's width.
        temperatures: at which distributions are compared; give the temperature of the rollouts.
        seed: of the choice of texts.
        taken: steps taken so far.
        loss: the last one; None before the first step.

    Source: Online Speculative Decoding, Liu et al. 2023 (arXiv 2310.07177), with the loss of `losses`.
    """

    draft: Any = attrs.field(validator=_a_model, repr=False)
    every: int = attrs.field(default=1, validator=at_least(1))
    steps: int = attrs.field(default=1, validator=at_least(1))
    batch: int = attrs.field(default=3072, validator=at_least(1))
    learning_rate: float | None = None
    temperatures: tuple[float, ...] = attrs.field(default=(1.0,), converter=tuple, validator=_sampled)
    seed: int = 0
    taken: int = attrs.field(default=0, init=False)
    loss: float | None = attrs.field(default=None, init=False)
    _calls: int = attrs.field(default=0, init=False)
    _waiting: list[_Text] = attrs.field(factory=list, init=False, repr=False)
    _copy: Any = attrs.field(init=False, repr=False)
    _optimiser: torch.optim.Optimizer = attrs.field(init=False, repr=False)
    _options: TrainingOptions = attrs.field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._copy = deepcopy(self.draft).float().requires_grad_(True).train()
        width = self.draft.get_input_embeddings().weight.shape[1]
        rate = self.learning_rate or _WIDTH_TIMES_RATE / width
        self._optimiser = optimiser_for(self._copy, rate, decay=0.01)
        self._options = TrainingOptions(learning_rate=rate, temperatures=self.temperatures)

    def __call__(self, target: Any, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]]) -> None:
        """Learn from `texts`, the new tokens of every row after its prompt, or keep them for a later call.

        Raises:
            OutOfMemory: a step did not fit on the device.
        """
        self._calls += 1
        self._waiting += [
            _Text([*prompt, *text], len(prompt)) for prompt, text in zip(prompts, texts, strict=True) if text
        ]
        if self._calls % self.every or not self._waiting:
            return
        # `generate` calls a loop without gradients.
        with torch.inference_mode(False), torch.enable_grad():
            for _ in range(self.steps):
                self._step(target)
        with torch.no_grad():
            for weight, learnt in zip(self.draft.parameters(), self._copy.parameters(), strict=True):
                weight.copy_(learnt)
        self._waiting = []

    def _step(self, target: Any) -> None:
        tokens, weights = _padded(self._chosen())
        places = weights.any(0).nonzero().flatten()
        try:
            value = text_loss(
                target,
                self._copy,
                tokens,
                places,
                weights=weights[:, places],
                real=len(places),
                options=self._options,
            )
            value.backward()
        except Exception as error:
            if (fault := machine_fault(error)) is not None and fault.kind == "memory":
                raise OutOfMemory(
                    f"A step of {tokens.numel()} tokens did not fit on {self._copy.device}; give a smaller "
                    f"batch than {self.batch}."
                ) from error
            raise
        descend(self._copy, self._optimiser)
        self.taken, self.loss = self.taken + 1, float(value.detach())

    def _chosen(self) -> list[_Text]:
        """Texts of a step: in an order drawn anew, as many as `batch` holds."""
        generator = Generator().manual_seed(self.seed + self.taken)
        chosen: list[_Text] = []
        room = self.batch
        for number in torch.randperm(len(self._waiting), generator=generator).tolist():
            text = self._waiting[number]
            if chosen and len(text.tokens) > room:
                break
            chosen.append(text)
            room -= len(text.tokens)
        return chosen


def _padded(texts: Sequence[_Text]) -> tuple[Tensor, Tensor]:
    """Returns the texts, int64 `[rows, longest]`, and weights of their predictions, `[rows, longest - 1]`.

    Padding follows a text, where no token of it looks; only the new tokens have a weight.
    """
    longest = max(len(text.tokens) for text in texts)
    tokens = torch.zeros(len(texts), longest, dtype=torch.int64)
    weights = torch.zeros(len(texts), longest - 1)
    for row, text in enumerate(texts):
        tokens[row, : len(text.tokens)] = torch.tensor(text.tokens)
        weights[row, text.prompt - 1 : len(text.tokens) - 1] = 1.0
    return tokens, weights
