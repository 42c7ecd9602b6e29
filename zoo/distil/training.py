"""Train a draft on its target's rows, with a checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.errors import InvalidInput, OutOfMemory

from ..pretrain import optimiser_for, rate
from .losses import distribution_loss, greedy_surprise
from .rows import Rows, ends_of_text, load_whole, position_weights, save_whole

_SEEDS = 1_000_003  # between the seeds of two runs, so that no steps of theirs share one
_RECENT = 50  # steps over which the loss is averaged


@attrs.frozen(kw_only=True)
class Recipe:
    """How a draft learns.

    Attributes:
        steps: of the optimiser.
        batch: tokens of a step, about: whole rows of one shard.
        learning_rate: the peak; see `rate`.
        temperatures: at which distributions are compared, on sampled and on real text.
        variation: the weight of the total variation there; that of greedy text's cross-entropy is 1.
        divergence: the weight of the KL divergence beside it.
        real: the share of a prompt's positions, drawn anew in every step, that are learnt too.
        seed: of the order of the rows.
    """

    steps: int = 4000
    batch: int = 3072
    learning_rate: float = 2e-3
    temperatures: tuple[float, ...] = (0.6, 1.0)
    variation: float = 2.0
    divergence: float = 0.5
    real: float = 0.3
    seed: int = 0


@attrs.frozen
class Trained:
    """How far training is.

    Attributes:
        step: steps taken.
        tokens: seen in them.
        loss: the mean of the last 50 steps, about.
    """

    step: int = 0
    tokens: int = 0
    loss: float = 0.0


def trained(
    target: Any, draft: Any, shards: Sequence[Rows], *, recipe: Recipe, checkpoint: Path, every: int = 200
) -> Iterator[Trained]:
    """Train `draft` in place, step by step; it learns while the iterator is consumed.

    Every `every` steps and at the end, weights and optimiser are written to `checkpoint` (whole or not at
    all), and a run goes on from what stands there: on a CPU to the very weights that it would have had
    without the break.

    Args:
        target: a causal language model in eval mode. Where it is in bfloat16, the draft's passes are too.
        draft: one of fewer weights, in float32 on the same device.
        shards: what the target wrote.
        recipe: how it learns; a checkpoint is to be of the same.
        checkpoint: the file.
        every: steps between two checkpoints.

    Raises:
        InvalidInput: there is no shard, or a checkpoint that is none of this draft.
        OutOfMemory: a step did not fit on the device.
    """
    if not shards:
        raise InvalidInput("there is no row to learn from; write some first.")
    optimiser = optimiser_for(draft, recipe.learning_rate, decay=0.01)
    ends, state = ends_of_text(target), Trained()
    if checkpoint.exists():
        state = _restored(draft, optimiser, checkpoint)
        yield state
    draft.train()
    while state.step < recipe.steps:
        for group in optimiser.param_groups:
            group["lr"] = rate(state.step, steps=recipe.steps, peak=recipe.learning_rate)
        rows, places = _batch(shards, recipe, state.step)
        try:
            loss = _loss(target, draft, rows, places, ends=ends, recipe=recipe)
            loss.backward()
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"A step over {rows.tokens.numel()} tokens did not fit on {draft.device}; give a smaller "
                "--batch."
            ) from error
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        step = state.step + 1
        average = state.loss + (float(loss.detach()) - state.loss) / min(step, _RECENT)
        state = Trained(step, state.tokens + rows.tokens.numel(), average)
        if step % every == 0 or step == recipe.steps:
            stored = {"draft": draft.state_dict(), "optimiser": optimiser.state_dict(), **attrs.asdict(state)}
            save_whole(checkpoint, stored)
        yield state
    draft.eval()


def _restored(draft: Any, optimiser: torch.optim.Optimizer, checkpoint: Path) -> Trained:
    stored = load_whole(checkpoint)
    try:
        draft.load_state_dict(stored["draft"])
        optimiser.load_state_dict(stored["optimiser"])
        return Trained(stored["step"], stored["tokens"], stored["loss"])
    except (KeyError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{str(checkpoint)!r} is of another draft; choose another folder.") from error


def _batch(shards: Sequence[Rows], recipe: Recipe, step: int) -> tuple[Rows, Tensor]:
    """The rows of a step and the positions that are learnt; they depend on nothing but it and the seed."""
    generator = Generator().manual_seed(recipe.seed * _SEEDS + step)
    shard = shards[int(torch.randint(len(shards), (1,), generator=generator))]
    count = max(1, recipe.batch // shard.tokens.shape[1])
    pick = torch.randperm(len(shard.tokens), generator=generator)[:count]
    learnt = torch.rand(shard.tokens.shape[1] - 1, generator=generator) < recipe.real
    learnt[shard.prompt - 1 :] = True
    return attrs.evolve(shard, tokens=shard.tokens[pick]), learnt.nonzero().flatten()


def _loss(
    target: Any, draft: Any, rows: Rows, places: Tensor, *, ends: Sequence[int], recipe: Recipe
) -> Tensor:
    device = draft.device
    weights = position_weights(rows, ends=ends, real=1.0)[:, places].to(device)
    tokens, places = rows.tokens[:, :-1].to(device), places.to(device)
    with torch.no_grad():
        wanted = _logits(target, tokens, places)
    half = target.dtype == torch.bfloat16
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        guess = _logits(draft, tokens, places)
    # Of two models with one tokenizer, one may pad its vocabulary further.
    shared = min(wanted.shape[-1], guess.shape[-1])
    guess, wanted = guess[..., :shared], wanted[..., :shared]
    # Places rise, so those of real text, which greedy rows begin with too, come first.
    real = int((places < rows.prompt - 1).sum()) if rows.temperature == 0 else len(places)
    parts = [
        distribution_loss(
            guess[:, :real],
            wanted[:, :real],
            temperatures=recipe.temperatures,
            variation=recipe.variation,
            divergence=recipe.divergence,
        ),
        greedy_surprise(guess[:, real:], wanted[:, real:]),
    ]
    return (weights * torch.cat(parts, 1)).sum() / weights.sum()


def _logits(model: Any, tokens: Tensor, places: Tensor) -> Tensor:
    """`[rows, places, vocab]`."""
    if "logits_to_keep" in signature(model.forward).parameters:
        kept: Tensor = model(tokens, use_cache=False, logits_to_keep=places).logits
        return kept
    logits: Tensor = model(tokens, use_cache=False).logits[:, places]
    return logits
