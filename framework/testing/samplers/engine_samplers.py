"""Adapters for SGLang's and transformers' samplers, by the signatures that these give them.

Each takes the engine's own function and returns a sampler for `prove_sampler`. No engine is imported
before its adapter is called, and only transformers is needed for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.laws.proposals import Deterministic
from draftwood.testing.samplers.sampler_cases import PROMPT, SamplerCase
from draftwood.testing.samplers.sampler_runs import Sampler
from draftwood.testing.samplers.signatures import check_call, named, spelled


def sglang_sampler(
    tree_speculative_sampling_target_only: Callable[..., None],
    *,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    device: torch.device | str = "cpu",
) -> Sampler:
    """A sampler from SGLang's `sgl_kernel.tree_speculative_sampling_target_only`.

    It is called by name with `predicts` `[nodes]`, `accept_index` `[1, depth + 1]` and `accept_token_num`
    `[1]` (int32, written to), `candidates`, `retrive_index`, `retrive_next_token` (first child) and
    `retrive_next_sibling` `[1, nodes]` (int64, -1 for none), `uniform_samples` `[1, nodes]`,
    `uniform_samples_for_final_sampling` `[1]`, `target_probs` and `draft_probs` (zeros) `[1, nodes, vocab]`
    and the three options below. It takes one uniform more than there are nodes, root included:
    `prove_sampler(sglang_sampler(function), parents=(0, 0, 1), uniforms=5, law=Deterministic)`.

    Siblings are accepted by the target's probabilities only, so any law without equal siblings will do. With
    thresholds below 1 it accepts more than it may, and with `WithReplacement` equal siblings count twice.

    Args:
        tree_speculative_sampling_target_only: SGLang's function, or one with its signature.
        threshold_single: SGLang's `speculative_accept_threshold_single`.
        threshold_acc: SGLang's `speculative_accept_threshold_acc`.
        deterministic: passed on.
        device: where the function wants its tensors.
    """

    def sampler(case: SamplerCase) -> Tensor:
        n = len(case.draft_tokens)
        if len(case.uniforms) < n + 2:
            raise InvalidInput(
                f"{len(case.uniforms)} uniforms are too few for {n} drafted tokens; give uniforms={n + 2}."
            )
        first, sibling, depth = [-1] * (n + 1), [-1] * (n + 1), [0] * (n + 1)
        for row in range(n + 1):
            nodes = [index + 1 for index in case.children(row)]
            for node, later in zip(nodes, [*nodes[1:], -1], strict=False):
                sibling[node], depth[node] = later, depth[row] + 1
            first[row] = nodes[0] if nodes else -1
        predicts = torch.full((n + 1,), -1, dtype=torch.int32, device=device)
        accept_index = torch.full((1, max(depth) + 1), -1, dtype=torch.int32, device=device)
        accept_token_num = torch.zeros(1, dtype=torch.int32, device=device)
        target = case.target_probs.unsqueeze(0).contiguous().to(device)
        named = {
            "predicts": predicts,
            "accept_index": accept_index,
            "accept_token_num": accept_token_num,
            "candidates": torch.tensor([[PROMPT[-1], *case.draft_tokens.tolist()]], device=device),
            "retrive_index": torch.arange(n + 1, device=device).unsqueeze(0),
            "retrive_next_token": torch.tensor([first], device=device),
            "retrive_next_sibling": torch.tensor([sibling], device=device),
            "uniform_samples": case.uniforms[: n + 1].unsqueeze(0).to(device),
            "uniform_samples_for_final_sampling": case.uniforms[-1:].to(device),
            "target_probs": target,
            "draft_probs": torch.zeros_like(target),
            "threshold_single": threshold_single,
            "threshold_acc": threshold_acc,
            "deterministic": deterministic,
        }
        named = spelled(tree_speculative_sampling_target_only, named)
        check_call(tree_speculative_sampling_target_only, [], named, name="SGLang's tree sampling")
        tree_speculative_sampling_target_only(**named)
        accepted = accept_index[0, : int(accept_token_num[0]) + 1]
        return predicts[accepted.long()].cpu()

    return named(sampler, "SGLang's target-only tree sampling")


def transformers_sampler(*, assistant_ensemble_weight: float | None = None) -> Sampler:
    """The sampler of transformers' assisted generation, the installed version's own.

    It draws with `torch.rand_like` and `torch.multinomial`, so that it is enumerated:
    `prove_sampler(transformers_sampler())`. The whole of `generate` is enumerated by `torch_law`.

    Args:
        assistant_ensemble_weight: as in the generation config; below 1 it is lossy by intent.
    """
    from transformers.generation import utils

    function: Any = utils._speculative_sampling
    weight = (
        {} if assistant_ensemble_weight is None else {"assistant_ensemble_weight": assistant_ensemble_weight}
    )

    def sampler(case: SamplerCase) -> Tensor:
        if case.law is Deterministic:
            raise InvalidInput("Assisted generation draws its draft; give law=WithReplacement.")
        tokens, _ = function(
            case.draft_tokens.unsqueeze(0),
            case.draft_probs.log().unsqueeze(0),
            len(case.draft_tokens),
            case.target_probs.log().unsqueeze(0),
            **weight,
        )
        return tokens[0]  # type: ignore[no-any-return]

    return named(sampler, "transformers' assisted generation")
