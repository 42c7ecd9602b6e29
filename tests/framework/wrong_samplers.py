"""Wrong samplers: mistakes of public reports, made in samplers of chains, trees and batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import torch

from draftwood import Deterministic, SamplingParams, WithoutReplacement, WithReplacement
from draftwood.testing import SamplerCase, sglang_sampler, transformers_sampler, vllm_sampler
from tests.framework import foreign_samplers as foreign
from tests.framework.other_samplers import BATCH, SETTINGS, TREE, gpt_fast, padded_batch, recursive


def seen_as(change: Callable[[SamplerCase], dict[str, Any]], sampler: Any) -> Any:
    """`sampler`, which sees the case with a change."""
    return lambda case: sampler(attrs.evolve(case, **change(case)))


def leviathan(case: SamplerCase, *, coin: Any = None, kept_after: Any = None) -> Any:
    coin = coin or (lambda: torch.rand((), dtype=torch.float64))
    for index, token in enumerate(case.draft_tokens.tolist()):
        target, draft = case.target_probs[index], case.draft_probs[index]
        if not coin() < target[token] / draft[token]:
            left = foreign.residual(target, draft) if kept_after is None else kept_after(case, index)
            return [*case.draft_tokens[:index].tolist(), int(torch.multinomial(left, 1))]
    return [*case.draft_tokens.tolist(), int(torch.multinomial(case.target_probs[-1], 1))]


def goes_on_after_a_rejection(case: SamplerCase) -> Any:
    """The number of acceptances, not of acceptances before the first rejection."""
    tokens, n = case.draft_tokens, len(case.draft_tokens)
    ratio = case.target_probs[torch.arange(n), tokens] / case.draft_probs[torch.arange(n), tokens]
    length = int((torch.rand(n, dtype=torch.float64) < ratio).sum())
    weights = case.target_probs[length]
    if length < n:
        weights = foreign.residual(weights, case.draft_probs[length])
    return [*tokens[:length].tolist(), int(torch.multinomial(weights, 1))]


def block_with_token_residual(case: SamplerCase) -> Any:
    """Block verification's joint ratio, with the residual of token-wise verification."""
    joint, best, n = 1.0, 0, len(case.draft_tokens)
    for index, token in enumerate(case.draft_tokens.tolist()):
        joint = min(joint * float(case.target_probs[index][token] / case.draft_probs[index][token]), 1.0)
        if torch.rand((), dtype=torch.float64) < joint:
            best = index + 1
    weights = case.target_probs[best]
    if best < n:
        weights = foreign.residual(weights, case.draft_probs[best])
    return [*case.draft_tokens[:best].tolist(), int(torch.multinomial(weights, 1))]


def typical(case: SamplerCase) -> Any:
    """Medusa's typical acceptance: by a threshold of the target's entropy."""
    for index, token in enumerate(case.draft_tokens.tolist()):
        target = case.target_probs[index]
        entropy = -(target * target.clamp(min=1e-30).log()).sum()
        if target[token] < torch.minimum(torch.tensor(0.09), 0.3 * (-entropy).exp()):
            return [*case.draft_tokens[:index].tolist(), int(torch.multinomial(target, 1))]
    return [*case.draft_tokens.tolist(), int(torch.multinomial(case.target_probs[-1], 1))]


def merged_duplicates(case: SamplerCase) -> Any:
    """Siblings with replacement, equal ones tested once."""
    left, draft, seen = case.target_probs[0].clone(), case.draft_probs[0], set[int]()
    for index, token in enumerate(case.draft_tokens.tolist()):
        if token in seen:
            continue
        seen.add(token)
        if torch.rand((), dtype=torch.float64) < left[token] / draft[token]:
            return [token, int(torch.multinomial(case.target_probs[index + 1], 1))]
        left = foreign.residual(left, draft)
    return [int(torch.multinomial(left, 1))]


def likeliest_sibling_first(case: SamplerCase) -> Any:
    """Siblings without replacement, tested by their probability and not as they were drawn."""
    left, draft = case.target_probs[0].clone(), case.draft_probs[0].clone()
    tokens = case.draft_tokens.tolist()
    for index in sorted(range(len(tokens)), key=lambda at: -float(case.draft_probs[0][tokens[at]])):
        token = tokens[index]
        if torch.rand((), dtype=torch.float64) < left[token] / draft[token]:
            return [token, int(torch.multinomial(case.target_probs[index + 1], 1))]
        left = foreign.residual(left, draft)
        draft[token] = 0
        draft = draft / draft.sum() if draft.any() else draft
    return [int(torch.multinomial(left, 1))]


def tree_of_the_parents_rows(case: SamplerCase) -> Any:
    """The target's rows of a tree read by the parent's number, so that a node's own row is another's."""
    rows = torch.cat([case.target_probs[:1], case.target_probs[case.parents]])
    return recursive(attrs.evolve(case, target_probs=rows), replacing=False)


def rejected_sibling_left_in(case: SamplerCase) -> Any:
    """Fixed candidates accepted by the target; after a rejection all of the target is drawn from."""
    for index, token in enumerate(case.draft_tokens.tolist()):
        if torch.rand((), dtype=torch.float64) < case.target_probs[0][token]:
            return [token, int(torch.multinomial(case.target_probs[index + 1], 1))]
    return [int(torch.multinomial(case.target_probs[0], 1))]


def ragged_rows_from_their_ends(*given: Any) -> Any:
    """vLLM's ragged batch, each row beginning where it ends."""
    arguments = list(given)
    arguments[3] = (arguments[3] + torch.tensor(arguments[1])).clamp(max=len(arguments[0]))
    return foreign.vllm(*arguments)


def cooled(weights: torch.Tensor) -> torch.Tensor:
    return weights**2 / (weights**2).sum(-1, keepdim=True)


def top_two(case: SamplerCase, index: int) -> torch.Tensor:
    kept = case.target_probs[index] * (
        case.target_probs[index] >= case.target_probs[index].topk(2).values[-1]
    )
    return foreign.residual(kept / kept.sum(), case.draft_probs[index])


def low_resolution() -> torch.Tensor:
    return torch.rand((), dtype=torch.bfloat16)


def scaled_coin() -> torch.Tensor:
    return torch.rand((), dtype=torch.float64) * 1.1


WITHOUT = {"law": WithoutReplacement}
FIXED = {"law": Deterministic}

WRONG: dict[str, tuple[Any, dict[str, Any]]] = {
    "vllm#47386: noise of the draft used again": (
        partial(foreign.chain, mistake="noise reused"),
        {"uniforms": 3},
    ),
    "vllm#51367: uniforms of few bits": (partial(leviathan, coin=low_resolution), {}),
    "vllm#10198: settings not applied to the target": (
        seen_as(lambda case: {"target_probs": case.target_logits.softmax(-1)}, leviathan),
        {"settings": (SamplingParams(0.5),)},
    ),
    "vllm-ascend#7807: block acceptance, token residual": (block_with_token_residual, {}),
    "sglang#35771: coin <= p": (
        partial(foreign.chain, mistake="coin of zero"),
        {"uniforms": 3, "models": "a target that forbids tokens"},
    ),
    "TensorRT-LLM#15098: rows of parent and child": (tree_of_the_parents_rows, TREE | WITHOUT),
    "transformers#47932: the draft before its temperature": (
        seen_as(lambda case: {"draft_probs": cooled(case.draft_probs)}, gpt_fast),
        {},
    ),
    "ml-recurrent-drafter#6: beams verified with p / q": (
        lambda case: recursive(case, replacing=False),
        TREE | FIXED,
    ),
    "speculative-sampling#3: argmax verified as drawn": (gpt_fast, FIXED),
    "DeepSpec#31: the draft in bfloat16": (
        seen_as(lambda case: {"draft_probs": case.draft_probs.bfloat16().double()}, leviathan),
        {},
    ),
    "a child dropped for its probability": (
        partial(foreign.tree, mistake="pruned"),
        TREE | WITHOUT | {"uniforms": 4},
    ),
    "the residual not divided by its sum": (
        partial(foreign.chain, mistake="not renormalised"),
        {"uniforms": 3},
    ),
    "siblings in another order": (likeliest_sibling_first, WITHOUT | {"parents": (0, 0)}),
    "duplicates merged": (merged_duplicates, {"parents": (0, 0), "models": "flat"}),
    "the bonus of another row": (
        partial(foreign.chain, mistake="bonus of the wrong row"),
        {"uniforms": 3},
    ),
    "the target for the residual": (
        partial(leviathan, kept_after=lambda case, index: case.target_probs[index]),
        {},
    ),
    "top-k after the test": (partial(leviathan, kept_after=top_two), {}),
    "a rejected sibling left in the target": (rejected_sibling_left_in, FIXED | {"parents": (0, 0)}),
    "acceptances after a rejection": (goes_on_after_a_rejection, {}),
    "a scaled coin": (partial(leviathan, coin=scaled_coin), {}),
    "Medusa's typical acceptance": (typical, {}),
    "SGLang's thresholds": (
        sglang_sampler(foreign.sglang, threshold_acc=0.9),
        TREE | FIXED | {"uniforms": 5},
    ),
    "transformers' ensemble": (transformers_sampler(assistant_ensemble_weight=0.9), {}),
    "SpecInfer's rule without replacement": (
        lambda case: recursive(case, replacing=True),
        WITHOUT | {"parents": (0, 0), "models": "flat"},
    ),
    "SGLang's rule with replacement": (
        sglang_sampler(foreign.sglang),
        {"parents": (0, 0), "law": WithReplacement, "uniforms": 4},
    ),
    "greedy rows sampled": (
        seen_as(lambda case: {"target_probs": case.target_logits.softmax(-1)}, padded_batch),
        BATCH | {"settings": (SamplingParams(1.0), SamplingParams(0.0))},
    ),
    "one row's settings for all": (
        seen_as(
            lambda case: {"target_probs": (case.target_logits / case.settings[0].temperature).softmax(-1)},
            padded_batch,
        ),
        BATCH | {"settings": (SamplingParams(0.7), SamplingParams(1.3))},
    ),
    "ragged rows from their ends": (
        vllm_sampler(ragged_rows_from_their_ends, target="probs"),
        BATCH,
    ),
    "vLLM's rule with the target for the residual": (
        vllm_sampler(partial(foreign.vllm, mistake="target for residual"), target="probs"),
        BATCH | {"settings": SETTINGS},
    ),
}
