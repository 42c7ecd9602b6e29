"""Train Medusa heads on text that their target wrote itself; the target stays as it is.

Head k, counted from 0, learns the token k + 2 places after the one whose hidden state it reads (Medusa,
arXiv 2401.10774, section 2.2.1, Medusa-1). The text is that of `distil.rows`: prompts cut from real text,
most of them continued greedily, the others by sampling (self-distillation, section 2.3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Generator, Tensor
from torch.nn.functional import cross_entropy

from draftwood.base.errors import InvalidInput
from draftwood.strategies.drafters.medusa import Heads

from .distil.rows import Rows, ends_of_text, position_weights
from .pretrain import optimiser_for, rate

GREEDY_AND_SAMPLED = (0.0, 0.0, 0.0, 1.0)
"""The temperatures of the text, for `RowPlan`."""


@attrs.frozen(kw_only=True)
class MedusaOptions:
    """Options for heads. Head k has the weight `decay ** k` in the loss; `real` weighs prompts' tokens."""

    heads: int = 3
    decay: float = 0.8
    real: float = 0.15
    steps: int = 300
    batch: int = 8
    learning_rate: float = 4e-3
    seed: int = 0


def new_heads(target: Any, count: int) -> Heads:
    """`count` heads that begin as copies of the target's LM head, float32 on its device."""
    weight = target.get_output_embeddings().weight
    vocab, width = weight.shape
    heads = Heads(count, width, vocab)
    with torch.no_grad():
        heads.output.copy_(weight.expand(count, -1, -1))
    return heads.to(weight.device)


@torch.no_grad()
def states(target: Any, tokens: Tensor) -> Tensor:
    """Returns the LM head's inputs, float32 `[rows, length, hidden]`, for int64 `[rows, length]`."""
    read: list[Tensor] = []
    hook = target.get_output_embeddings().register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        target(tokens, use_cache=False)
    finally:
        hook.remove()
    return read[0].float()


def heads_loss(logits: Tensor, tokens: Tensor, weights: Tensor, *, decay: float) -> Tensor:
    """Sum over heads of `decay ** k` times head k's mean cross-entropy over weighted positions.

    Args:
        logits: `[heads, rows, length, vocab]`; head k at position t guesses token t + k + 2.
        tokens: int64 `[rows, length]`.
        weights: `[rows, length - 1]`, of the prediction of every token from the second on.
        decay: in (0, 1].
    """
    total = logits.new_zeros(())
    for k, guess in enumerate(logits):
        wanted, weight = tokens[:, k + 2 :], weights[:, k + 1 :]
        losses = cross_entropy(guess[:, : wanted.shape[1]].transpose(1, 2), wanted, reduction="none")
        total = total + decay**k * (weight * losses).sum() / weight.sum()
    return total


def train_heads(
    target: Any, shards: Sequence[Rows], *, options: MedusaOptions
) -> tuple[Heads, dict[str, Any]]:
    """Train on all `shards` of the target's text but the last, which is held out.

    Returns:
        The heads, float32, and the record for training.json; its `top1` is the share of the target's own
        continuations that each head guesses right on the held-out shard.
    """
    if len(shards) < 2:
        raise InvalidInput(f"There are {len(shards)} shards of rows; write at least 2.")
    if options.heads < 1:
        raise InvalidInput(f"heads is {options.heads}; train at least 1.")
    *train, unseen = shards
    device = next(target.parameters()).device
    heads = new_heads(target, options.heads)
    generator = Generator().manual_seed(options.seed)
    optimiser = optimiser_for(heads, options.learning_rate, decay=0.0)
    average = 0.0
    for step in range(options.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps=options.steps, peak=options.learning_rate)
        shard = train[int(torch.randint(len(train), (1,), generator=generator))]
        pick = torch.randperm(len(shard.tokens), generator=generator)[: options.batch]
        rows = attrs.evolve(shard, tokens=shard.tokens[pick])
        weights = position_weights(rows, ends=ends_of_text(target), real=options.real).to(device)
        tokens = rows.tokens.to(device)
        read = states(target, tokens)
        with torch.autocast(device.type, dtype=torch.bfloat16):
            logits = heads(read.flatten(0, 1))
        loss = heads_loss(logits.float().unflatten(1, tokens.shape), tokens, weights, decay=options.decay)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(heads.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        average += (float(loss.detach()) - average) / min(step + 1, 50)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{options.steps}: loss {average:.3f}", flush=True)
    return heads, {
        "params": sum(weight.numel() for weight in heads.parameters()),
        "rows": sum(len(shard.tokens) for shard in train),
        "loss": average,
        "top1": top1(target, heads, unseen),
        **attrs.asdict(options),
    }


@torch.no_grad()
def top1(target: Any, heads: Heads, shard: Rows) -> list[float]:
    """Returns how often each head's first guess is the next token, over the shard's continuations."""
    right, total = torch.zeros(heads.count), torch.zeros(heads.count)
    device = next(target.parameters()).device
    for tokens in shard.tokens.split(8):
        rows = attrs.evolve(shard, tokens=tokens)
        weights = position_weights(rows, ends=ends_of_text(target), real=0.0)
        guesses = heads(states(target, tokens.to(device)).flatten(0, 1)).argmax(-1).cpu()
        for k, guess in enumerate(guesses.unflatten(1, tokens.shape)):
            wanted, weight = tokens[:, k + 2 :], weights[:, k + 1 :]
            right[k] += (weight * (guess[:, : wanted.shape[1]] == wanted)).sum()
            total[k] += weight.sum()
    shares: list[float] = (right / total).tolist()
    return shares
