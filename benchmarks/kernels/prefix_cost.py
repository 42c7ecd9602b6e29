"""Cost per round of a processor that reads the prefix, by the length of the text.

A processor that does nothing is timed, so that what is left is the cost of showing it every node's prefix.
"""

from __future__ import annotations

from statistics import median
from typing import Annotated

import torch
import transformers
import typer
from torch import Tensor

from draftwood import SamplingParams, SpeculativeDecoder, StateBackend, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

LENGTHS = (1_000, 5_000, 20_000)


class Nothing(transformers.LogitsProcessor):
    """Reads the prefix, as far as anyone can tell, and changes nothing."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores


def long_llama(*, layers: int) -> StateBackend:
    """A small Llama with random weights for texts of 32,768 tokens."""
    torch.manual_seed(layers)
    config = transformers.LlamaConfig(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=32_768,
        initializer_range=0.2,
    )
    return load(transformers.LlamaForCausalLM(config).eval())


PAIRS = {
    "mamba2-5m": lambda: (load(zoo.path("mamba2-5m")), load(zoo.path("mamba2-draft"))),
    "llama, random": lambda: (long_llama(layers=2), long_llama(layers=1)),
}


def outside_passes(decoder: SpeculativeDecoder, length: int, *, reads: bool, rounds: int) -> list[float]:
    """Milliseconds of every round that are neither draft pass nor target pass, after `length` tokens."""
    sampling = SamplingParams(processors=[Nothing()] if reads else [])
    prompt = torch.randint(5, 4096, (length,), generator=torch.Generator().manual_seed(0)).tolist()
    milliseconds = []
    running = decoder.stream([prompt], max_new_tokens=100 * rounds, sampling=sampling, eos_token_id=[])
    for number, finished in enumerate(running):
        if number:  # the first round warms up
            milliseconds.append(1e3 * (finished.seconds - finished.draft_seconds - finished.target_seconds))
        if number == rounds:
            break
    running.close()
    return milliseconds


def prefix_cost(
    nodes: Annotated[int, typer.Option(help="Nodes of a tree.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=1)] = 15,
    length: Annotated[list[int] | None, typer.Option(help="Tokens before the rounds; repeatable.")] = None,
) -> None:
    """Milliseconds of a round outside its passes, with and without a processor that reads the prefix.

    \b
    Examples:
      python -m benchmarks prefix-cost
      python -m benchmarks prefix-cost --length 1000 --length 2000 --rounds 3
    """
    typer.echo(f"{device_name()}: trees of {nodes} nodes, temperature 0, medians of {rounds} rounds")
    typer.echo(f"{'':16}{'tokens':>8}{'plain, ms':>12}{'reading, ms':>14}{'of the first':>14}")
    for name, made in PAIRS.items():
        target, draft = made()
        decoder = SpeculativeDecoder(target, ModelDrafter(draft), LayeredDySpec(nodes), RecursiveRejection())
        first: float | None = None
        for tokens in length or LENGTHS:
            plain = median(outside_passes(decoder, tokens, reads=False, rounds=rounds))
            reading = median(outside_passes(decoder, tokens, reads=True, rounds=rounds))
            first = first or reading
            typer.echo(f"{name:<16}{tokens:8}{plain:12.1f}{reading:14.1f}{reading / first:14.2f}")
