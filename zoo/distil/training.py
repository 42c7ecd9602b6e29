"""Train a draft on its target's rows, with a checkpoint to go on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Generator, Tensor

from draftwood.base.errors import InvalidInput

from .losses import distribution_loss, greedy_surprise
from .rows import Rows, ends_of_text, position_weights
from .steps import Trained, stepped

SEEDS = 1_000_003  # between the seeds of two runs, so that no steps of theirs share one


@attrs.frozen(kw_only=True)
class TrainingOptions:
    """Options for training a draft.

    Attributes:
        steps: of the optimiser.
        batch: tokens of a step, about: whole rows of one shard.
        learning_rate: the peak; see `rate`.
        temperatures: at which distributions are compared, on sampled and on real text.
        variation: the weight of the total variation there; that of greedy text's cross-entropy is 1.
        divergence: the weight of the KL divergence.
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


def trained(
    target: Any,
    draft: Any,
    shards: Sequence[Rows],
    *,
    options: TrainingOptions,
    checkpoint: Path,
    every: int = 200,
) -> Iterator[Trained]:
    """Train `draft` in place, step by step; it learns while the iterator is consumed.

    Every `every` steps and at the end, weights and optimiser are written to `checkpoint` (whole or not at
    all), and a run goes on from what is there: on a CPU to the very weights that it would have had
    without the break.

    Args:
        target: a causal language model in eval mode. Where it is in bfloat16, the draft's passes are too.
        draft: one of fewer weights, in float32 on the same device.
        shards: what the target wrote.
        options: how it learns; a checkpoint is to be of the same.
        checkpoint: the file.
        every: steps between two checkpoints.

    Raises:
        InvalidInput: there is no shard, or a checkpoint that is none of this draft.
        OutOfMemory: a step did not fit on the device.
    """
    ends = ends_of_text(target)

    def loss(step: int) -> tuple[Tensor, int]:
        rows, places = batch(shards, options, step)
        return _loss(target, draft, rows, places, ends=ends, options=options), rows.tokens.numel()

    yield from stepped(draft, loss, options=options, device=draft.device, checkpoint=checkpoint, every=every)


def batch(shards: Sequence[Rows], options: TrainingOptions, step: int) -> tuple[Rows, Tensor]:
    """The rows of a step and the positions that are learnt; they depend on nothing but it and the seed.

    Raises:
        InvalidInput: there is no shard.
    """
    if not shards:
        raise InvalidInput("there is no row to learn from; write some first.")
    generator = Generator().manual_seed(options.seed * SEEDS + step)
    shard = shards[int(torch.randint(len(shards), (1,), generator=generator))]
    count = max(1, options.batch // shard.tokens.shape[1])
    pick = torch.randperm(len(shard.tokens), generator=generator)[:count]
    learnt = torch.rand(shard.tokens.shape[1] - 1, generator=generator) < options.real
    learnt[shard.prompt - 1 :] = True
    return attrs.evolve(shard, tokens=shard.tokens[pick]), learnt.nonzero().flatten()


def _loss(
    target: Any, draft: Any, rows: Rows, places: Tensor, *, ends: Sequence[int], options: TrainingOptions
) -> Tensor:
    weights = position_weights(rows, ends=ends, real=1.0)[:, places]
    # Places rise, so places of real text, which greedy rows begin with too, come first.
    real = int((places < rows.prompt - 1).sum()) if rows.temperature == 0 else len(places)
    return text_loss(target, draft, rows.tokens, places, weights=weights, real=real, options=options)


def text_loss(
    target: Any,
    draft: Any,
    tokens: Tensor,
    places: Tensor,
    *,
    weights: Tensor,
    real: int,
    options: TrainingOptions,
) -> Tensor:
    """Returns the mean loss of `draft` against `target` at places of texts; only the draft gets a gradient.

    Args:
        target: a causal language model. Where it is in bfloat16, the draft's passes are too.
        draft: one in float32.
        tokens: int64 `[rows, length]`; padding, if any, follows the text.
        places: int64 `[n]`, ascending and below `length - 1`; what is predicted is the next token.
        weights: of the predictions, `[rows, n]`; 0 where nothing is learnt.
        real: the first places that are learnt by distributions; the others by the target's token.
        options: how distributions are compared.
    """
    device = draft.device
    tokens, places, weights = (part.to(device) for part in (tokens[:, :-1], places, weights))
    with torch.no_grad():
        wanted = _logits(target, tokens, places)
    half = target.dtype == torch.bfloat16
    with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        guess = _logits(draft, tokens, places)
    # Of two models with one tokenizer, one may pad its vocabulary further.
    shared = min(wanted.shape[-1], guess.shape[-1])
    guess, wanted = guess[..., :shared], wanted[..., :shared]
    return (weights * losses(guess, wanted, real, options=options)).sum() / weights.sum()


def losses(guess: Tensor, wanted: Tensor, real: int, *, options: TrainingOptions) -> Tensor:
    """Returns the losses of `guess` against `wanted`, both logits `[rows, places, vocab]`: `[rows, places]`.

    By their distributions in the first `real` places, and by the target's token in the others.
    """
    parts = [
        distribution_loss(
            guess[:, :real],
            wanted[:, :real],
            temperatures=options.temperatures,
            variation=options.variation,
            divergence=options.divergence,
        ),
        greedy_surprise(guess[:, real:], wanted[:, real:]),
    ]
    return torch.cat(parts, 1)


def _logits(model: Any, tokens: Tensor, places: Tensor) -> Tensor:
    """`[rows, places, vocab]`."""
    if "logits_to_keep" in signature(model.forward).parameters:
        kept: Tensor = model(tokens, use_cache=False, logits_to_keep=places).logits
        return kept
    logits: Tensor = model(tokens, use_cache=False).logits[:, places]
    return logits
