"""Adapters: the samplers of other engines, by the signatures that these give them.

Each takes the engine's own function and returns a sampler for `prove_sampler`. No engine is imported
before its adapter is called, and only transformers is needed for its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.laws.proposals import Deterministic
from draftwood.testing.samplers.sampler_cases import PROMPT, SamplerCase
from draftwood.testing.samplers.sampler_runs import Sampler


@attrs.frozen(eq=False)
class VllmMetadata:
    """The part of `SamplingMetadata` that vLLM's rejection sampler reads: temperature 1, no seeds."""

    temperature: Tensor
    all_greedy: bool = False
    all_random: bool = True
    generators: dict[int, torch.Generator] = attrs.field(factory=dict)
    top_k: Tensor | None = None
    top_p: Tensor | None = None


def vllm_sampler(
    rejection_sample: Callable[..., Tensor],
    *,
    target: Literal["probs", "logits"] | None = None,
    drafted: bool = False,
    ragged: bool = True,
    device: torch.device | str = "cpu",
) -> Sampler:
    """A batched sampler from vLLM's `vllm.v1.sample.rejection_sampler.rejection_sample`.

    It is called by position as `(draft_token_ids [tokens], num_draft_tokens (a list), max_spec_len,
    cu_num_draft_tokens [rows], draft_probs [tokens, vocab], target_probs [tokens, vocab], bonus_token_ids
    [rows, 1], sampling_metadata)` and returns `[rows, max_spec_len + 1]`, filled up with -1. It draws
    exponential noise, so that it is proved by samples: `prove_sampler(vllm_sampler(rejection_sample),
    samples=200_000, batched=True, dtype=torch.float32)`.

    Args:
        rejection_sample: vLLM's function, or one with its signature.
        target: whether the sixth argument is the target's "probs" or its "logits", which differs by version;
            None: it is found out by one call.
        drafted: give None for the draft's probabilities, as for drafts that have none (n-grams); prove it
            with `law=Deterministic`.
        ragged: cut the drafts of every other row to 0, 1, 2, ... tokens, so that rows differ in length. Which
            row is cut does not depend on its tokens, so a lossless sampler stays lossless.
        device: where the function wants its tensors.
    """
    if target not in (None, "probs", "logits"):
        raise InvalidInput(f"target is {target!r}; give 'probs' or 'logits'.")
    check_call(rejection_sample, [*range(8)], {}, name="vLLM's rejection_sample")
    told = target or ("logits" if _takes_logits(rejection_sample, device) else "probs")

    def sampler(case: SamplerCase) -> Tensor:
        if case.draft_tokens.ndim != 2:
            raise InvalidInput("vLLM's sampler judges batches; give samples=N and batched=True.")
        rows, n = case.draft_tokens.shape
        number = torch.arange(rows)
        lengths = torch.where(number % 2 == 0, n, number // 2 % (n + 1)) if ragged else torch.full((rows,), n)
        kept = torch.arange(n) < lengths.unsqueeze(1)
        target_probs = case.target_probs[:, :n][kept]
        # vLLM draws the bonus token, for a fully accepted draft, beforehand and passes it in.
        bonus = torch.multinomial(case.target_probs[number, lengths], 1)
        emitted = rejection_sample(
            case.draft_tokens[kept].to(device),
            lengths.tolist(),
            n,
            lengths.cumsum(0).to(torch.int32).to(device),
            None if drafted else case.draft_probs[kept].to(device),
            (target_probs.log() if told == "logits" else target_probs).to(device),
            bonus.to(device),
            VllmMetadata(torch.ones(rows, device=device)),
        )
        return emitted.cpu()

    return _named(sampler, "vLLM's rejection sampler")


def _takes_logits(rejection_sample: Callable[..., Tensor], device: torch.device | str) -> bool:
    """Returns whether the sampler takes logits: a one-hot target of probabilities is then not certain."""
    rows, certain = 512, torch.tensor([0.0, 1.0, 0.0])

    def certain_as(target: Tensor) -> bool:
        emitted = rejection_sample(
            (torch.arange(rows) % 3).to(device),
            [1] * rows,
            1,
            torch.arange(1, rows + 1, dtype=torch.int32).to(device),
            torch.full((rows, 3), 1 / 3).to(device),
            target.repeat(rows, 1).to(device),
            torch.ones(rows, 1, dtype=torch.int64).to(device),
            VllmMetadata(torch.ones(rows, device=device)),
        )
        return bool((emitted[:, 0] == 1).all())

    return not certain_as(certain) and certain_as(100 * (certain - 1))


def check_call(function: Callable[..., Any], args: list[Any], named: Mapping[str, Any], *, name: str) -> None:
    """Raise `InvalidInput` where `function` does not take these arguments, if its signature can be read."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*args, **named)
    except TypeError as error:
        raise InvalidInput(
            f"The adapter calls {name} as its versions do that are known here, and this function does not "
            f"take that ({error}); its signature is {signature}. Write a function of a SamplerCase yourself."
        ) from error


def spelled(function: Callable[..., Any], named: Mapping[str, Any]) -> dict[str, Any]:
    """`named` arguments as `function` spells them: SGLang's `retrive_` became `retrieve_`."""
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return dict(named)
    others = {"retrive": "retrieve", "retrieve": "retrive"}
    found = {}
    for name, value in named.items():
        begin, _, end = name.partition("_")
        other = f"{others.get(begin, begin)}_{end}"
        found[other if name not in known and other in known else name] = value
    return found


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

    return _named(sampler, "SGLang's target-only tree sampling")


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

    return _named(sampler, "transformers' assisted generation")


def _named(sampler: Sampler, name: str) -> Sampler:
    sampler.__name__ = name
    return sampler
