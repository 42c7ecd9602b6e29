"""The pair that `recipes` decodes with, its prompts, and what is measured on others beforehand."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.research import held_out
from draftwood import (
    CounterRandomness,
    Deterministic,
    SamplingParams,
    WithoutReplacement,
    create,
    load,
    zoo,
)
from draftwood.apps.models import by_name as models
from draftwood.strategies.acceptance import acceptance_vector
from draftwood.strategies.shape_search import SiblingShares, measured_shares, probe_shapes
from draftwood.strategies.verifiers.race_traversal import RaceTraversal

WIDTH = 16  # of the acceptance vectors
_CALIBRATION = 10  # further prompts a domain, on which acceptance vectors and shares are measured


@cache
def pair(draft: str) -> tuple[Any, Any]:
    """The target's backend and the draft model, once a process."""
    models.quiet()
    return load(zoo.load(models.TARGET)), zoo.load(draft)


def written(
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    tokens: int,
    draft: str,
    draft_temperature: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Probabilities `[positions, vocab]` of target and draft on what the target writes after `prompts`."""
    target, model = pair(draft)
    sampling = SamplingParams(temperature=temperature)
    writer = create("recipes", "leviathan", {"temperature": temperature})
    decoder = writer.decoder(target, create("drafters", "model", {"backend": model}))
    generation = decoder.generate(
        prompts,
        max_new_tokens=tokens,
        sampling=sampling,
        seed=0,
        eos_token_id=(),
        return_dict_in_generate=True,
    )
    target_probs: list[Tensor] = []
    draft_probs: list[Tensor] = []
    shaped = SamplingParams(temperature=draft_temperature or temperature or 1.0)
    for prompt, new in zip(prompts, generation.tokens, strict=True):
        text = torch.tensor([[*prompt, *new]])
        with torch.inference_mode():
            ours, theirs = (
                network(text).logits[0, len(prompt) - 1 : -1] for network in (target.model, model)
            )
        target_probs.append(sampling.distribution(ours))
        draft_probs.append(shaped.distribution(theirs))
    return torch.cat(target_probs), torch.cat(draft_probs)


def calibrate(
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    tokens: int,
    draft: str,
    draft_temperature: float | None = None,
) -> list[float]:
    """The acceptance vector of the pair, on what the target writes after `prompts`."""
    law = WithoutReplacement if temperature else Deterministic
    both = written(
        prompts, temperature=temperature, tokens=tokens, draft=draft, draft_temperature=draft_temperature
    )
    return acceptance_vector(*both, width=WIDTH, rng=CounterRandomness.seeded(0), law=law)


def calibrated_shares(
    prompts: Sequence[Sequence[int]],
    *,
    temperature: float,
    draft: str,
    largest: int,
    draft_temperature: float | None = None,
) -> SiblingShares:
    """Returns the shares of siblings in race verification, on texts of the pair after `prompts`."""
    target, model = pair(draft)
    return measured_shares(
        target,
        model,
        prompts,
        shapes=probe_shapes(largest),
        verifier=RaceTraversal(),
        sampling=SamplingParams(temperature=temperature),
        draft_sampling=SamplingParams(temperature=draft_temperature or temperature),
    )


def split(data: Path, prompts: int) -> tuple[dict[str, list[list[int]]], list[list[int]]]:
    """`prompts` prompts of every domain, and others for calibration."""
    tokenizer, domains = zoo.tokenizer(), held_out.DOMAINS
    chosen = held_out.prompts(data, tokenizer, count=prompts, domains=domains)
    others = held_out.prompts(data, tokenizer, count=_CALIBRATION, domains=domains, calibration=True)
    by_domain = {domain: [row.tolist() for row in rows] for domain, rows in chosen.items()}
    return by_domain, [row.tolist() for rows in others.values() for row in rows]
