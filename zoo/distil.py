"""Distil a draft from its target, on text that the target wrote itself.

A draft is judged on the target's own text: at temperature 0 on its greedy continuations. So most
training rows are a prompt cut from real text, continued greedily by the target, and the others are
continued by sampling at temperature 1 (on-policy distillation as in DistillSpec, Zhou et al. 2023,
section 4, with the target's text in place of the draft's). The prompt is the real text of a row.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from .pretrain import optimiser_for, rate
from .text import windows

PROMPT_LENGTHS = (32, 96, 160)


@attrs.frozen(kw_only=True)
class Recipe:
    """How a draft is distilled.

    `greedy` is the share of rows continued at temperature 0. `hard` is the weight of the
    cross-entropy to the target's most likely token; the rest is the KL divergence from the target's
    distribution. `real` is the weight of a prompt's positions, where a continuation's have 1.
    """

    rows: int = 12_288
    new_tokens: int = 128
    greedy: float = 0.75
    hard: float = 0.6
    real: float = 0.15
    steps: int = 1500
    batch: int = 12
    learning_rate: float = 2e-3
    seed: int = 0


@torch.inference_mode()
def continuations(
    target: Any, prompts: Tensor, *, new_tokens: int, temperature: Tensor, generator: Generator
) -> Tensor:
    """Continue int64 `prompts[rows, length]` by `new_tokens` tokens; returns both, concatenated.

    `temperature[rows]` is 0 (greedy) or 1 for each row. Rows do not stop at the end of text.
    """
    from transformers import StaticCache

    rows, length = prompts.shape
    cache = StaticCache(config=target.config, max_cache_len=length + new_tokens)
    tokens, fed = [prompts], prompts
    sampled = (temperature > 0).to(prompts.device)
    for step in range(new_tokens):
        first = 0 if step == 0 else length + step - 1
        positions = torch.arange(first, length + step, device=prompts.device)[None]
        output = target(
            fed,
            past_key_values=cache,
            position_ids=positions.expand(rows, -1),
            logits_to_keep=1,
        )
        logits = output.logits[:, -1].float()
        fed = logits.argmax(-1, keepdim=True)
        if sampled.any():
            drawn = torch.multinomial(logits[sampled].softmax(-1).cpu(), 1, generator=generator)
            fed[sampled] = drawn.to(fed.device)
        tokens.append(fed)
    return torch.cat(tokens, 1)


def write_rows(
    target: Any, streams: list[Tensor], folder: Path, *, recipe: Recipe, shares: list[float]
) -> None:
    """Write `recipe.rows` rows to `folder` in shards of 128 rows; shards already there are kept.

    `streams` are the token streams of the real text and `shares` how often each is drawn from.
    A shard holds `tokens` int32 `[128, length]`, `prompt` (its length) and `temperature[128]`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    device = next(target.parameters()).device
    for index in range(math.ceil(recipe.rows / 128)):
        file = folder / f"{index:05d}.pt"
        if file.exists():
            continue
        generator = Generator().manual_seed(recipe.seed * 1_000_003 + index)
        prompt = PROMPT_LENGTHS[index % len(PROMPT_LENGTHS)]
        choice = torch.multinomial(torch.tensor(shares), 128, replacement=True, generator=generator).bincount(
            minlength=len(streams)
        )
        prompts = torch.cat(
            [
                windows(stream, rows=int(count), length=prompt, generator=generator)
                for stream, count in zip(streams, choice, strict=True)
            ]
        )
        temperature = (torch.rand(128, generator=generator) >= recipe.greedy).float()
        tokens = continuations(
            target,
            prompts.to(device),
            new_tokens=recipe.new_tokens,
            temperature=temperature,
            generator=generator,
        )
        part = file.with_suffix(".part")
        torch.save({"tokens": tokens.int().cpu(), "prompt": prompt, "temperature": temperature}, part)
        part.rename(file)
        print(f"shard {index}: 128 rows of {tokens.shape[1]} tokens", flush=True)


def position_weights(tokens: Tensor, *, prompt: int, end: int, real: float) -> Tensor:
    """Weight of each position's prediction, float `[rows, length - 1]`.

    `real` inside the prompt, 1 in the continuation, 0 after the continuation's first end of text.
    """
    following = tokens[:, 1:]
    weights = torch.ones(following.shape)
    weights[:, : prompt - 1] = real
    ended = following == end
    ended[:, : prompt - 1] = False
    past_end = ended.cumsum(1) - ended.int() > 0
    return weights.masked_fill(past_end, 0.0)


def distillation_loss(draft_logits: Tensor, target_logits: Tensor, weights: Tensor, *, hard: float) -> Tensor:
    """Weighted mean over positions of `(1 - hard) KL(target || draft) + hard CE(argmax target)`.

    Logits are `[rows, positions, vocab]`, `weights` is `[rows, positions]`.
    """
    log_draft = F.log_softmax(draft_logits.float(), -1)
    log_target = F.log_softmax(target_logits.float(), -1)
    soft = (log_target.exp() * (log_target - log_draft)).sum(-1)
    best = target_logits.argmax(-1, keepdim=True)
    sharp = -log_draft.gather(-1, best).squeeze(-1)
    return (weights * ((1 - hard) * soft + hard * sharp)).sum() / weights.sum()


def train_on_rows(target: Any, draft: Any, folder: Path, *, recipe: Recipe) -> dict[str, Any]:
    """Train `draft` in place on the shards of `folder`; returns the record for training.json."""
    shards = [torch.load(file) for file in sorted(folder.glob("*.pt"))]
    if not shards:
        raise FileNotFoundError(f"no shard stands in {str(folder)!r}; write the rows first")
    device = next(draft.parameters()).device
    end = target.config.eos_token_id
    generator = Generator().manual_seed(recipe.seed)
    optimiser = optimiser_for(draft, recipe.learning_rate, decay=0.01)
    draft.train()
    seen, average = 0, 0.0
    for step in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = rate(step, steps=recipe.steps, peak=recipe.learning_rate)
        shard = shards[int(torch.randint(len(shards), (1,), generator=generator))]
        pick = torch.randperm(len(shard["tokens"]), generator=generator)[: recipe.batch]
        tokens = shard["tokens"][pick].long()
        weights = position_weights(tokens, prompt=shard["prompt"], end=end, real=recipe.real)
        tokens, weights = tokens.to(device), weights.to(device)
        with torch.no_grad():
            target_logits = target(tokens[:, :-1], use_cache=False).logits
        with torch.autocast(device.type, dtype=torch.bfloat16):
            draft_logits = draft(tokens[:, :-1], use_cache=False).logits
        loss = distillation_loss(draft_logits, target_logits, weights, hard=recipe.hard)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        seen += tokens.numel()
        average += (float(loss.detach()) - average) / min(step + 1, 50)
        if (step + 1) % 50 == 0:
            print(f"step {step + 1}/{recipe.steps}: loss {average:.3f}", flush=True)
    draft.eval()
    params = sum(weight.numel() for weight in draft.parameters())
    return {"params": params, "tokens": seen, "loss": average, **attrs.asdict(recipe)}


@attrs.frozen(kw_only=True)
class Agreement:
    """How well a draft guesses the target's greedy text.

    `top1` and `top4` say how often its first or first four tokens hold the target's; `chain4`
    is the tokens a round with a chain of four draft tokens yields, bonus token included.
    """

    top1: float
    top4: float
    chain4: float


@torch.inference_mode()
def agreement(target: Any, draft: Any, prompts: list[Tensor], *, new_tokens: int = 128) -> Agreement:
    """Compare along the target's greedy continuations of int64 `prompts` (`[length]` each)."""
    first, fourth, rounds, total = 0, 0, 0, 0
    for prompt in prompts:
        row = continuations(
            target,
            prompt[None],
            new_tokens=new_tokens,
            temperature=torch.zeros(1),
            generator=Generator(),
        )[0]
        ended = (row[len(prompt) :] == target.config.eos_token_id).nonzero()
        row = row[: len(prompt) + int(ended[0]) + 1] if len(ended) else row
        logits = draft(row[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :]
        best = logits.topk(4).indices == row[len(prompt) :, None]
        hits: list[bool] = best[:, 0].tolist()
        start = 0
        while start < len(hits):
            run = next((i for i, hit in enumerate(hits[start : start + 4]) if not hit), 4)
            start, rounds = start + run + 1, rounds + 1
        first, fourth, total = first + sum(hits), fourth + int(best.sum()), total + len(hits)
    return Agreement(top1=first / total, top4=fourth / total, chain4=total / rounds)


def save(model: Any, folder: Path, *, record: dict[str, Any]) -> None:
    """Write `model` as bf16 safetensors and `record` as training.json into `folder`."""
    model.to(torch.bfloat16).save_pretrained(folder)
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
