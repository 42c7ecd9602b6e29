"""Train a small model from scratch, like the zoo's models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from .text import windows

BATCH, WARMUP, DECAY = 8, 100, 0.4


def new_model(folder: Path, *, seed: int) -> Any:
    """A model of the architecture in `folder`, with new float32 weights drawn from `seed`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    factory: Any = AutoModelForCausalLM
    return factory.from_config(AutoConfig.from_pretrained(folder), dtype=torch.float32)


def rate(step: int, *, steps: int, peak: float) -> float:
    """Learning rate of `step`: linear warm-up, constant, linear decay over the last 40 %."""
    left = (steps - step) / (DECAY * steps)
    return peak * min(1.0, (step + 1) / WARMUP, left)


def optimiser_for(model: Any, learning_rate: float, *, decay: float = 0.1) -> torch.optim.AdamW:
    """AdamW with betas (0.9, 0.95) that decays matrices only."""
    matrices = [weight for weight in model.parameters() if weight.dim() > 1]
    others = [weight for weight in model.parameters() if weight.dim() <= 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": others, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def train(
    model: Any,
    streams: dict[str, Tensor],
    *,
    steps: int,
    learning_rate: float,
    length: int = 384,
    seed: int = 0,
) -> dict[str, Any]:
    """Train `model` in place on all `streams` joined; returns the record for training.json.

    The last 1 % of every stream is held out; `valid_loss` is the loss there in nats a token.
    """
    cuts = {name: len(stream) * 99 // 100 for name, stream in streams.items()}
    seen = torch.cat([stream[: cuts[name]] for name, stream in streams.items()])
    unseen = torch.cat([stream[cuts[name] :] for name, stream in streams.items()])
    generator = Generator().manual_seed(seed)
    optimiser = optimiser_for(model, learning_rate)
    model.train()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps=steps, peak=learning_rate)
        rows = windows(seen, rows=BATCH, length=length + 1, generator=generator)
        loss = _loss(model, rows)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{steps}: loss {float(loss.detach()):.3f}", flush=True)
    model.eval()
    with torch.no_grad():
        losses = [
            float(_loss(model, windows(unseen, rows=BATCH, length=length + 1, generator=generator)))
            for _ in range(16)
        ]
    return {
        "params": sum(weight.numel() for weight in model.parameters()),
        "tokens": steps * BATCH * length,
        "steps": steps,
        "valid_loss": sum(losses) / len(losses),
    }


def _loss(model: Any, rows: Tensor) -> Tensor:
    device = next(model.parameters()).device
    rows = rows.to(device)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        logits = model(rows[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), rows[:, 1:].flatten())
