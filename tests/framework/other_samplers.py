"""Right samplers of chains, trees and batches, each in the manner of the project that it is named for."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from draftwood import Deterministic, SamplingParams, WithoutReplacement, WithReplacement
from draftwood.testing import SamplerCase, sglang_sampler, transformers_sampler, vllm_sampler
from tests.framework import foreign_samplers as foreign


def gpt_fast(case: SamplerCase) -> Any:
    """All ratios at once, the first rejection found, and an exponential race for the last token."""
    tokens, n = case.draft_tokens, len(case.draft_tokens)
    p, q = case.draft_probs[torch.arange(n), tokens], case.target_probs[torch.arange(n), tokens]
    rejected = (torch.rand_like(q) >= q / p).nonzero()
    length = int(rejected[0]) if len(rejected) else n
    weights = case.target_probs[length]
    if length < n:
        left = torch.where(weights > case.draft_probs[length], weights - case.draft_probs[length], 0.0)
        weights = left / left.sum()
    noise = torch.empty_like(weights).exponential_(1)
    return [*tokens[:length].tolist(), int(torch.argmax(weights / noise, dim=-1))]


def hf_vectors(case: SamplerCase) -> Any:
    """The number of matches by a cumulative sum over a vector of coins."""
    tokens, n = case.draft_tokens, len(case.draft_tokens)
    ratio = case.target_probs[torch.arange(n), tokens] / case.draft_probs[torch.arange(n), tokens]
    accepted = torch.rand(n, dtype=torch.float64) < ratio
    matches = int(((~accepted).cumsum(dim=-1) < 1).sum())
    weights = case.target_probs[matches]
    if matches < n:
        weights = (weights - case.draft_probs[matches]).clamp(min=0)
        weights = weights.div(weights.sum())
    return [*tokens[:matches].tolist(), int(torch.multinomial(weights, num_samples=1))]


def jaymody(case: SamplerCase) -> Any:
    """numpy's legacy generator, a token at a time."""
    out = list[int]()
    for index, token in enumerate(case.draft_tokens.tolist()):
        p, q = case.draft_probs[index].numpy(), case.target_probs[index].numpy()
        if np.random.random() < min(1, q[token] / p[token]):
            out.append(token)
        else:
            left = np.maximum(q - p, 0)
            return [*out, int(np.random.choice(len(left), p=left / left.sum()))]
    return [*out, int(np.random.choice(len(q), p=case.target_probs[-1].numpy()))]


def log_space(case: SamplerCase) -> Any:
    """Logarithms of coins, and Gumbel noise on the residual's logarithm."""
    out = list[int]()
    weights = case.target_probs[-1]
    for index, token in enumerate(case.draft_tokens.tolist()):
        target, draft = case.target_probs[index], case.draft_probs[index]
        if not torch.rand((), dtype=torch.float64).log() < target[token].log() - draft[token].log():
            weights = (target - draft).clamp(min=0)
            break
        out.append(token)
    noise = -torch.log(-torch.log(torch.rand_like(weights)))
    return [*out, int((weights.log() + noise).argmax())]


def distributions(case: SamplerCase) -> Any:
    """torch.distributions for coins and tokens."""
    for index, token in enumerate(case.draft_tokens.tolist()):
        target, draft = case.target_probs[index], case.draft_probs[index]
        kept = torch.distributions.Bernoulli((target[token] / draft[token]).clamp(max=1)).sample()
        if not bool(kept > 0):
            left = torch.distributions.Categorical(probs=(target - draft).clamp(min=0))
            return [*case.draft_tokens[:index].tolist(), int(left.sample())]
    bonus = torch.distributions.Categorical(probs=case.target_probs[-1])
    return [*case.draft_tokens.tolist(), int(bonus.sample())]


def recycled(case: SamplerCase) -> Any:
    """One coin: what is left of it after each test is a uniform again, and chooses the last token too."""
    u, out = case.uniforms[0], list[int]()
    weights = case.target_probs[-1]
    for index, token in enumerate(case.draft_tokens.tolist()):
        target, draft = case.target_probs[index], case.draft_probs[index]
        ratio = (target[token] / draft[token]).clamp(max=1)
        if not u < ratio:
            u, weights = (u - ratio) / (1 - ratio), foreign.residual(target, draft)
            break
        u = u / ratio
        out.append(token)
    return [*out, foreign.pick(weights, u)]


def sample_and_match(case: SamplerCase) -> Any:
    """The target's own draw at every row, kept while the draft, or a child in the tree, agrees."""
    row, out = 0, list[int]()
    while True:
        drawn = int(torch.multinomial(case.target_probs[row], 1))
        out.append(drawn)
        matching = [child for child in case.children(row) if int(case.draft_tokens[child]) == drawn]
        if not matching:
            return out
        row = matching[0] + 1


def eagle(case: SamplerCase) -> Any:
    """EAGLE's tree: fixed candidates accepted by the target, each rejected one set to 0."""
    row, out = 0, list[int]()
    while True:
        left = case.target_probs[row].clone()
        for child in case.children(row):
            token = int(case.draft_tokens[child])
            if random.random() < float(left[token]):
                out.append(token)
                row = child + 1
                break
            left[token] = 0
            left = left / left.sum()
        else:
            return [*out, int(torch.multinomial(left, 1))]


def recursive(case: SamplerCase, *, replacing: bool) -> Any:
    """SpecInfer's rule for siblings with replacement; Sequoia's and RSD's without."""
    row, out = 0, list[int]()
    while True:
        left = case.target_probs[row].clone()
        draft = None
        for child in case.children(row):
            token = int(case.draft_tokens[child])
            draft = case.draft_probs[child].clone() if draft is None else draft
            if torch.rand((), dtype=torch.float64) < left[token] / draft[token]:
                out.append(token)
                row = child + 1
                break
            left = (left - draft).clamp(min=0)
            left = left / left.sum() if left.any() else case.target_probs[row]
            if not replacing:
                draft[token] = 0
                draft = draft / draft.sum() if draft.any() else draft
        else:
            return [*out, int(torch.multinomial(left, 1))]


def spectr(case: SamplerCase) -> Any:
    """SpecTr's K-SEQ with division factor K, for K independent drafts of one token."""
    target, draft, count = case.target_probs[0], case.draft_probs[0], len(case.draft_tokens)
    for index, token in enumerate(case.draft_tokens.tolist()):
        if torch.rand((), dtype=torch.float64) < target[token] / (count * draft[token]):
            return [token, int(torch.multinomial(case.target_probs[index + 1], 1))]
    kept = torch.minimum(draft, target / count)
    hit = kept.sum()
    accepted = (1 - (1 - hit) ** count) / hit if hit > 0 else count
    left = target - kept * accepted
    return [int(torch.multinomial(left.clamp(min=0), 1))]


def block(case: SamplerCase) -> Any:
    """Block verification (Sun et al.): the longest prefix that passes its own test."""
    tokens, n = case.draft_tokens.tolist(), len(case.draft_tokens)
    joint, best, at_best = 1.0, 0, 1.0
    for index, token in enumerate(tokens):
        joint = min(joint * float(case.target_probs[index][token] / case.draft_probs[index][token]), 1.0)
        chance = joint
        if index < n - 1:
            ahead = (joint * case.target_probs[index + 1] - case.draft_probs[index + 1]).clamp(min=0).sum()
            chance = float(ahead / (ahead + 1 - joint)) if ahead + 1 - joint > 0 else 1.0
        if torch.rand((), dtype=torch.float64) < chance:
            best, at_best = index + 1, joint
    weights = case.target_probs[best]
    if best < n:
        weights = (at_best * weights - case.draft_probs[best]).clamp(min=0)
    return [*tokens[:best], int(torch.multinomial(weights, 1))]


def lookup(case: SamplerCase) -> Any:
    """Prompt lookup: a draft that was not drawn, accepted by the target and taken out after a rejection."""
    for index, token in enumerate(case.draft_tokens.tolist()):
        left = case.target_probs[index].clone()
        if not torch.rand((), dtype=torch.float64) < left[token]:
            left[token] = 0
            return [*case.draft_tokens[:index].tolist(), int(torch.multinomial(left, 1))]
    return [*case.draft_tokens.tolist(), int(torch.multinomial(case.target_probs[-1], 1))]


def own_filters(case: SamplerCase) -> Any:
    """Leviathan's rule over logits that the sampler tempers and filters itself, greedy rows included."""
    (settings,) = case.settings
    logits = case.target_logits.clone()
    if settings.temperature == 0:
        probs = torch.zeros_like(logits).scatter_(-1, logits.argmax(-1, keepdim=True), 1)
    else:
        logits /= settings.temperature
        if settings.top_k:
            logits[logits < logits.topk(settings.top_k).values[:, -1:]] = -torch.inf
        probs = logits.softmax(-1)
    for index, token in enumerate(case.draft_tokens.tolist()):
        if not torch.rand((), dtype=torch.float64) < probs[index, token] / case.draft_probs[index, token]:
            left = (probs[index] - case.draft_probs[index]).clamp(min=0)
            return [*case.draft_tokens[:index].tolist(), int(torch.multinomial(left, 1))]
    return [*case.draft_tokens.tolist(), int(torch.multinomial(probs[-1], 1))]


def padded_batch(case: SamplerCase, *, shared: bool = False) -> torch.Tensor:
    """All rows at once: a cumulative product of acceptances, and -1 after a row's last token."""
    tokens, (rows, n) = case.draft_tokens, case.draft_tokens.shape
    at = tokens.unsqueeze(-1)
    ratio = (case.target_probs[:, :n].gather(-1, at) / case.draft_probs.gather(-1, at)).squeeze(-1)
    coins = torch.rand(1, n) if shared else torch.rand(rows, n)
    length = (coins < ratio).long().cumprod(-1).sum(-1)
    draft = torch.cat([case.draft_probs, torch.zeros_like(case.draft_probs[:, :1])], 1)
    row = torch.arange(rows)
    left = (case.target_probs[row, length] - draft[row, length]).clamp(min=0)
    left = torch.where(left.sum(-1, keepdim=True) > 0, left, case.target_probs[row, length])
    last = torch.multinomial(left, 1)
    out = torch.cat([tokens, torch.zeros_like(last)], 1).scatter(1, length.unsqueeze(1), last)
    return out.masked_fill(torch.arange(n + 1) > length.unsqueeze(1), -1)


TREE = {"parents": (0, 0, 1)}
SETTINGS = (SamplingParams(0.7), SamplingParams(0.0), SamplingParams(1.3, top_k=2))
BATCH = {"samples": 30_000, "batched": True, "dtype": torch.float32}

RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "gpt-fast": (gpt_fast, {}),
    "vectors, as assisted generation": (hf_vectors, {}),
    "transformers' own": (transformers_sampler(), {"models": "plain"}),
    "numpy": (jaymody, {"models": "plain"}),
    "logarithms and Gumbel noise": (log_space, {}),
    "torch.distributions": (distributions, {}),
    "one recycled coin": (recycled, {"uniforms": 1}),
    "given uniforms": (foreign.chain, {"uniforms": 3}),
    "sample and match, a chain": (sample_and_match, {}),
    "sample and match, a tree": (sample_and_match, TREE | {"law": WithReplacement}),
    "EAGLE": (eagle, TREE | {"law": Deterministic}),
    "SpecInfer": (lambda case: recursive(case, replacing=True), {"parents": (0, 0)}),
    "Sequoia": (lambda case: recursive(case, replacing=False), TREE | {"law": WithoutReplacement}),
    "RSD, two levels": (foreign.tree, TREE | {"law": WithoutReplacement, "uniforms": 4, "models": "plain"}),
    "SpecTr": (spectr, {"parents": (0, 0)}),
    "block verification": (block, {}),
    "prompt lookup": (lookup, {"law": Deterministic}),
    "Medusa's greedy rows": (sample_and_match, {"settings": (SamplingParams(0.0),), "law": Deterministic}),
    "its own filters": (own_filters, {"settings": SETTINGS, "models": "plain"}),
    "SGLang": (
        sglang_sampler(foreign.sglang),
        TREE | {"law": Deterministic, "uniforms": 5, "models": "plain"},
    ),
    "a padded batch": (padded_batch, BATCH),
    "vLLM's ragged batch": (vllm_sampler(foreign.vllm), BATCH),
    "a batch of mixed settings": (padded_batch, BATCH | {"settings": SETTINGS}),
}
