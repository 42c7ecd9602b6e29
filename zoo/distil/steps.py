"""Steps of training, with a checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput, OutOfMemory
from draftwood.base.machine_faults import machine_fault

from ..pretrain import optimiser_for, rate
from .rows import load_whole, save_whole

_RECENT = 50  # steps over which the loss is averaged


@attrs.frozen
class Trained:
    """The progress of a training.

    Attributes:
        step: steps taken.
        tokens: seen in them.
        loss: the mean of the last 50 steps, about.
    """

    step: int = 0
    tokens: int = 0
    loss: float = 0.0


class Schedule(Protocol):
    """Steps and learning rates of training.

    Attributes:
        steps: in all.
        learning_rate: the peak; see `rate`.
    """

    @property
    def steps(self) -> int: ...

    @property
    def learning_rate(self) -> float: ...


def stepped(
    draft: Any,
    loss: Callable[[int], tuple[Tensor, int]],
    *,
    options: Schedule,
    device: torch.device,
    checkpoint: Path,
    every: int,
) -> Iterator[Trained]:
    """Train `draft` in place, step by step; it learns while the iterator is consumed.

    Every `every` steps and at the end, weights and optimiser are written to `checkpoint` (whole or not at
    all), and a run goes on from what is there: on a CPU to the very weights that it would have had
    without the break.

    Args:
        draft: a module in float32.
        loss: of a step, by its number, and the tokens that it saw.
        options: the steps, and the peak of their learning rate.
        device: of the module.
        checkpoint: the file.
        every: steps between two checkpoints.

    Raises:
        InvalidInput: a checkpoint that is none of this module.
        OutOfMemory: a step did not fit on the device.
    """
    optimiser = optimiser_for(draft, options.learning_rate, decay=0.01)
    state = Trained()
    if checkpoint.exists():
        state = _restored(draft, optimiser, checkpoint)
        yield state
    draft.train()
    while state.step < options.steps:
        for group in optimiser.param_groups:
            group["lr"] = rate(state.step, steps=options.steps, peak=options.learning_rate)
        try:
            value, tokens = loss(state.step)
            value.backward()
        except Exception as error:
            if (fault := machine_fault(error)) is not None and fault.kind == "memory":
                raise OutOfMemory(f"A step did not fit on {device}; give a smaller --batch.") from error
            raise
        descend(draft, optimiser)
        step = state.step + 1
        average = state.loss + (float(value.detach()) - state.loss) / min(step, _RECENT)
        state = Trained(step, state.tokens + tokens, average)
        if step % every == 0 or step == options.steps:
            stored = {"draft": draft.state_dict(), "optimiser": optimiser.state_dict(), **attrs.asdict(state)}
            save_whole(checkpoint, stored)
        yield state
    draft.eval()


def descend(draft: Any, optimiser: torch.optim.Optimizer) -> None:
    """Take a step of `optimiser` by the gradients in `draft`, clipped to a norm of 1, and clear them."""
    torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)


def _restored(draft: Any, optimiser: torch.optim.Optimizer, checkpoint: Path) -> Trained:
    stored = load_whole(checkpoint)
    try:
        draft.load_state_dict(stored["draft"])
        optimiser.load_state_dict(stored["optimiser"])
        return Trained(stored["step"], stored["tokens"], stored["loss"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{str(checkpoint)!r} is of another draft; choose another folder.") from error
