"""Functions with the signatures of SGLang's verification, each written down with its version and date.

The bodies are our own: `tests.framework.foreign_samplers.sglang`, and the three below.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.framework import foreign_samplers as foreign


def last_coin_used_again(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    deterministic: bool = True,
    *,
    mends: bool = False,
) -> None:
    """sgl-kernel 0.0.3.post2, February 2025 (pull request 3373): no thresholds, no coin for the last token.

    The last coin also chose the last token, and is not uniform after a rejection. `mends` makes it so again.
    """
    for row in range(len(candidates)):
        node, accepted, last = 0, 0, retrive_index[row, 0]
        accept_index[row, 0] = last
        while True:
            coin, heard = uniform_samples[row, node], torch.zeros(())
            left = target_probs[row, node].clone()
            child = int(retrive_next_token[row, node])
            while child >= 0:
                token = candidates[row, child]
                p = left[token].clone()
                heard = heard + p
                if coin < heard:
                    break
                left[token] = 0
                child = int(retrive_next_sibling[row, child])
            if child < 0:
                break
            predicts[last] = token
            accepted += 1
            last = accept_index[row, accepted] = retrive_index[row, child]
            node = child
        accept_token_num[row] = accepted
        if mends and heard > 0:
            coin = (coin - heard) / (1 - heard)
        predicts[last] = foreign.pick(left, coin)


def with_thresholds(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """sgl-kernel, March 2025 (pull request 4383): thresholds, still without a coin for the last token."""
    last_coin_used_again(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        uniform_samples,
        target_probs,
        draft_probs,
        mends=True,
    )


def with_a_last_coin(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """sgl-kernel since June 2025 (pull request 7207), and SGLang 0.5.23's own kernel of October 2026."""
    foreign.sglang(**locals())


def without_draft_probs(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Pull request 15687 of December 2025, not merged."""
    foreign.sglang(draft_probs=None, **locals())


def newer_spelling(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool = True,
) -> None:
    """The spelling of the CUDA code, and of SGLang 0.5.23's Triton functions (October 2026)."""
    given = {name.replace("retrieve_", "retrive_"): value for name, value in locals().items()}
    foreign.sglang(**given)


def by_position(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    /,
) -> None:
    """The operator of `torch.ops.sgl_kernel`, whose arguments go by position."""
    foreign.sglang(**locals())


def any_names(**given: Any) -> None:
    """A wrapper that hands on what it is given."""
    foreign.sglang(**given)


def any_places(*given: Any) -> None:
    """A wrapper that hands on what it is given, in its order."""
    with_a_last_coin(*given)


@functools.wraps(with_a_last_coin)
def wrapped(*args: Any, **kwargs: Any) -> None:
    """The wrapper that logs calls of SGLang 0.5.23's kernels."""
    with_a_last_coin(*args, **kwargs)


def chain(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_samples_for_final_sampling: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    *,
    block_verification: bool = False,
    mistake: str = "",
) -> None:
    """SGLang 0.5.23, October 2026: `chain_speculative_sampling_triton`, rejection sampling (26312)."""
    for row, tokens in enumerate(candidates[:, 1:].tolist()):
        out: list[int] = []
        left = target_probs[row, -1]
        for index, token in enumerate(tokens):
            target, draft = target_probs[row, index], draft_probs[row, index]
            if not (draft[token] > 0 and uniform_samples[row, index] * draft[token] < target[token]):
                left = target if mistake == "target for residual" else foreign.residual(target, draft)
                break
            out.append(token)
        out.append(foreign.pick(left, uniform_samples_for_final_sampling[row]))
        accept_token_num[row] = len(out) - 1
        accept_index[row, : len(out)] = retrive_index[row, : len(out)]
        predicts[retrive_index[row, : len(out)]] = torch.tensor(out, dtype=predicts.dtype)


def seeded_chain(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    uniform_samples: Tensor | None,
    uniform_samples_for_final_sampling: Tensor | None,
    target_probs: Tensor,
    draft_probs: Tensor,
    threshold_single: float,
    threshold_acc: float,
    deterministic: bool,
    sampling_seed: Tensor | None = None,
    positions: Tensor | None = None,
    *,
    mistake: str = "",
) -> None:
    """A fork of 2026 whose rows have seeds: numbers are a function of seed, position and purpose."""
    if sampling_seed is not None and positions is not None:
        seeds = sampling_seed.unsqueeze(1) + 7919 * positions
        coins = [[_number(int(seed), 1) for seed in row] for row in seeds]
        # The last token is drawn at the position of the first rejection, or after the draft.
        last = [
            _last(row, coins[row], seeds[row], candidates, target_probs, draft_probs, mistake)
            for row in range(len(seeds))
        ]
        uniform_samples, uniform_samples_for_final_sampling = torch.tensor(coins), torch.tensor(last)
    assert uniform_samples is not None
    assert uniform_samples_for_final_sampling is not None
    chain(
        predicts,
        accept_index,
        accept_token_num,
        candidates,
        retrive_index,
        retrive_next_token,
        retrive_next_sibling,
        uniform_samples,
        uniform_samples_for_final_sampling,
        target_probs,
        draft_probs,
        threshold_single,
        threshold_acc,
        deterministic,
    )


def _number(seed: int, purpose: int) -> float:
    generator = torch.Generator().manual_seed((2 * seed + purpose) % 2**63)
    return float(torch.rand((), generator=generator))


def _last(
    row: int,
    coins: list[float],
    seeds: Tensor,
    candidates: Tensor,
    target_probs: Tensor,
    draft_probs: Tensor,
    mistake: str,
) -> float:
    place = 0
    for token in candidates[row, 1:].tolist():
        if not coins[place] * draft_probs[row, place, token] < target_probs[row, place, token]:
            break
        place += 1
    return _number(int(seeds[place]), 1 if mistake == "coin used again" else 2)


def greedy(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
    topk: int = -1,
    *,
    mistake: str = "",
) -> None:
    """SGLang's `verify_tree_greedy` since March 2025 (pull request 4383)."""
    for row in range(len(candidates)):
        node, accepted, last = 0, 0, retrive_index[row, 0]
        accept_index[row, 0] = last
        child = int(retrive_next_token[row, 0])
        while child >= 0:
            if candidates[row, child] != target_predict[row, node] and mistake != "first child":
                child = int(retrive_next_sibling[row, child])
                continue
            predicts[last] = candidates[row, child]
            accepted += 1
            last = accept_index[row, accepted] = retrive_index[row, child]
            node, child = child, int(retrive_next_token[row, child])
        accept_token_num[row] = accepted
        predicts[last] = target_predict[row, node]


TREES: dict[str, Callable[..., None]] = {
    "March 2025, thresholds": with_thresholds,
    "June 2025 to October 2026": with_a_last_coin,
    "without draft_probs": without_draft_probs,
    "retrieve_": newer_spelling,
    "by position": by_position,
    "any names": any_names,
    "any places": any_places,
    "a wrapper": wrapped,
    "February 2025, mended": functools.partial(last_coin_used_again, mends=True),
}
