"""Program of every process of `test_ranks.py`: a sharded target, and texts by several strategies as JSON."""

import json
import os
import sys
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, MaxTimeCriteria
from transformers.distributed import DistributedConfig

from draftwood import Drafter, SamplingParams, SpeculativeDecoder, StateBackend, create, load, zoo

PROMPTS = [[5, 6, 7], [9]]
STRATEGIES = {
    "layered-dyspec": ({"budget": 12}, "recursive-rejection"),
    "sequoia": ({"budget": 12}, "class-ordered-traversal"),
    "chain": ({"length": 4}, "block"),
}


def drafter(changed: float = 0.0) -> Drafter:
    """The zoo's draft, whose weights are off by `changed`."""
    model: Any = zoo.load("llama-draft")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(changed * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    drafts: Drafter = create("drafters", "model", {"backend": load(model)})
    return drafts


def texts(
    target: StateBackend, drafts: Drafter, *, policies: Sequence[str] = tuple(STRATEGIES), **options: Any
) -> dict[str, list[list[int]]]:
    """Returns the texts of these strategies, greedy and sampled."""
    written = {}
    for policy in policies:
        given, verifier = STRATEGIES[policy]
        decoder = SpeculativeDecoder(
            target, drafts, create("policies", policy, given), create("verifiers", verifier)
        )
        for temperature in (0.0, 0.8):
            generation: Any = decoder.generate(
                PROMPTS,
                max_new_tokens=7,
                sampling=SamplingParams(temperature=temperature),
                return_dict_in_generate=True,
                eos_token_id=[],
                **options,
            )
            written[f"{policy} at {temperature}"] = generation.tokens
    return written


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=240))
    rank = dist.get_rank()
    model = AutoModelForCausalLM.from_pretrained(
        zoo.path("llama-7m"), distributed_config=DistributedConfig(tp_plan="auto"), dtype=torch.float32
    ).eval()
    target = load(model)
    if "dies" in sys.argv:
        texts(target, drafter(), seed=3, policies=["chain"])
        if rank == 1:
            print(time.time(), flush=True)
            os._exit(9)  # as if killed
        while True:
            texts(target, drafter(), seed=3)
    same, one = drafter(), ["layered-dyspec"]
    torch.manual_seed(rank)  # whatever a process draws for itself is its own
    said = {
        "seeded": texts(target, same, seed=3),
        "unseeded": texts(target, same, policies=one),
        "other draft": texts(target, drafter(0.02 * rank), policies=one),
        "until": texts(
            target,
            same,
            policies=one,
            seed=3,
            stopping_criteria=[MaxTimeCriteria(max_time=1e9 if rank else 0.0)],
        ),
        "bytes": target.weight_bytes,
    }
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, said)
    if rank == 0:
        for one in everyone:
            print(json.dumps(one), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
