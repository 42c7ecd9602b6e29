"""The trained head against ordinary `generate()`, on prompts that it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import attrs
import torch

from draftwood import SamplingParams, SpeculativeDecoder
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.method import strategy_of_parts
from draftwood.zoo.distil.rows import Rows
from draftwood.zoo.heads.loops import loop_start

POLICY, OPTION = "layered-dyspec", "budget=16"
_PROMPTS = 4
_LEAST, _MOST = 6, 64  # tokens of a text


def contest(loaded: models.Loaded, head: Path, tests: Sequence[Rows]) -> dict[str, Any] | None:
    """Returns the tokens per round of a tree and the speed over `generate()`, at temperature 0.

    Texts end where the held-out ones run into a loop, which any draft guesses.

    Returns:
        `tree`, `prompts`, `tokens`, `tokens_per_round` and `speed_up`; None if every held-out text runs
        into a loop at once.
    """
    asked = [
        (row[: shard.prompt], min(loop_start(row) - shard.prompt, _MOST))
        for shard in tests
        if shard.temperature == 0
        for row in shard.tokens.tolist()
    ]
    asked = [(prompt, length) for prompt, length in asked if length >= _LEAST][:_PROMPTS]
    if not asked:
        return None
    statistics: list[Any] = []

    def drafted(prompt: list[int], length: int) -> None:
        found: Any = decoder.generate(
            [prompt],
            max_new_tokens=length,
            sampling=SamplingParams(temperature=0),
            eos_token_id=(),
            return_dict_in_generate=True,
        )
        statistics.append(found.statistics)

    def ordinary(prompt: list[int], length: int) -> None:
        ids = torch.tensor([prompt], device=model.device)
        fixed = {"min_new_tokens": length, "max_new_tokens": length, "do_sample": False, "pad_token_id": 0}
        model.generate(ids, attention_mask=torch.ones_like(ids), **fixed)

    model: Any = loaded.target.model
    strategy = strategy_of_parts(POLICY, None, str(head), [OPTION], 0.0)
    drafter = drafters.model_drafter(attrs.evolve(loaded, head=str(head)))
    decoder = SpeculativeDecoder(loaded.target, drafter, strategy.policy, strategy.verifier)
    entrants: list[Callable[[list[int], int], None]] = [drafted, ordinary]
    for one in entrants:
        one(asked[0][0], _LEAST)  # warms up
    statistics.clear()
    seconds = dict.fromkeys(entrants, 0.0)
    for number, (prompt, length) in enumerate(asked):
        for one in entrants if number % 2 else reversed(entrants):  # they take turns
            started = perf_counter()
            one(prompt, length)
            seconds[one] += perf_counter() - started
    rounds, tokens = sum(one.target_calls for one in statistics), sum(length for _, length in asked)
    from_prompts = sum(int(one.sums["prefill_tokens"]) for one in statistics)
    return {
        "tree": f"{POLICY}, {OPTION}",
        "prompts": len(asked),
        "tokens": tokens,
        "tokens_per_round": (tokens - from_prompts) / rounds,
        "speed_up": seconds[ordinary] / seconds[drafted],
    }
