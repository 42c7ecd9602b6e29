"""Tokens a second of many rows at once: `generate()`, fixed trees, and trees that follow what pays."""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from benchmarks.kernels.captured import named_model
from benchmarks.research.prompts import prompts_of
from draftwood import (
    PassCosts,
    Request,
    Round,
    SamplingParams,
    SpeculativeDecoder,
    TreePolicy,
    create,
    load,
    measure_costs,
    zoo,
)
from draftwood.apps.files.machine import device_name
from draftwood.policies import Chain, LayeredDySpec, Ordinary, ThroughputDySpec
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.zoo.widen import parameter_count, widen_to

Way = Callable[[list[list[int]], int], float]
"""Writes tokens after each of some prompts, and returns the seconds that it took."""


def by_generate(model: Any, *, temperature: float, tokens: int) -> Way:
    """Transformers' `generate()` on the whole batch, padded at the left."""

    def write(prompts: list[list[int]], seed: int) -> float:
        torch.manual_seed(seed)
        started = perf_counter()
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=tokens,
            eos_token_id=None,
            pad_token_id=0,
            **sampling or {"do_sample": False},
        )
        return perf_counter() - started

    return write


class WatchedDrafter(ModelDrafter):
    """A draft model that notes the nodes of its calls, of the row that asks for the most."""

    sizes: tuple[int, ...] = ()

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        self.sizes += (max(0 if request is None else len(request) for request in requests),)
        return super().distributions(requests)


def by_policy(decoder: SpeculativeDecoder, *, temperature: float, tokens: int, modelled: bool) -> Way:
    """Draft trees for all prompts at once; timed by the decoder's costs where `modelled`, or by the clock."""
    sampling = SamplingParams(temperature=temperature)

    def write(prompts: list[list[int]], seed: int) -> float:
        seeds = [1000 * seed + row for row in range(len(prompts))]
        started, modelled_seconds = perf_counter(), 0.0
        context = sum(map(len, prompts)) / len(prompts)
        drafter = decoder.drafter
        for one in decoder.stream(
            prompts, max_new_tokens=tokens, sampling=sampling, seed=seeds, eos_token_id=[]
        ):
            if isinstance(drafter, WatchedDrafter) and isinstance(decoder.pass_costs, PassCosts):
                modelled_seconds += round_seconds(decoder.pass_costs, one, drafter.sizes, context)
                drafter.sizes = ()
        return modelled_seconds if modelled else perf_counter() - started

    return write


def round_seconds(costs: PassCosts, one: Round, calls: Sequence[int], context: float) -> float:
    """Returns the seconds of a round by `costs`, without reading prompts; `calls` are the draft's nodes."""
    if one.prefill:
        return 0.0
    at: Any = {"rows": len(one.rows), "context": context}
    nodes = 1 + max(row.outcome.drafted for row in one.rows)
    drafting = sum(costs.draft_seconds(size, **at) for size in calls)
    return float(costs.target(nodes, **at) + costs.rest_seconds(nodes, **at) + drafting)


def policies(*, law: str) -> dict[str, TreePolicy]:
    """Policies by what the table calls them."""
    return {
        "ordinary decoding": Ordinary(),
        "chain of 2": Chain(2, law),
        "chain of 4": Chain(4, law),
        "trees of 4": LayeredDySpec(4, law=law),
        "trees of 8": LayeredDySpec(8, law=law),
        "trees of 16": LayeredDySpec(16, law=law),
        "what pays": ThroughputDySpec(16, law=law),
    }


def many_rows(
    rows: Annotated[str, typer.Option(help="Batch sizes, with commas.")] = "1,4,16,64",
    target: Annotated[str, typer.Option(help="A model of the zoo, a folder or a hub name.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    widen: Annotated[
        float, typer.Option(help="Parameters that a target of the zoo is widened to; 0: as it is.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Of both: float32 or bfloat16.")] = "float32",
    temperature: Annotated[float, typer.Option(help="Of target and draft.", min=0)] = 0.0,
    tokens: Annotated[int, typer.Option(help="Of every text.", min=2)] = 96,
    repetitions: Annotated[int, typer.Option(help="Of every batch, in turns.", min=1)] = 3,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
    modelled: Annotated[
        bool, typer.Option(help="Time rounds by measured costs of passes, as on a busy machine.")
    ] = False,
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
    output: Annotated[Path | None, typer.Option(help="A CSV file for every time.")] = None,
) -> None:
    """Compare tokens a second of whole batches, interleaved: `generate()`, fixed trees and what pays.

    \b
    Examples:
      python -m benchmarks many-rows --data DATA
      python -m benchmarks many-rows --rows 1,4 --modelled
      python -m benchmarks many-rows --data DATA --widen 350e6 --dtype bfloat16 --rows 1,4,16
    """
    torch.set_num_threads(threads)
    model, small = (named_model(name, "cpu", dtype) for name in (target, draft))
    if widen:
        model = widen_to(model, parameters=widen, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    backends = load(model), load(small)
    sizes = [int(size) for size in rows.split(",")]
    texts = prompts_of(data, zoo.tokenizer(), -(-max(sizes) // 3))
    costs = measure_costs(
        backends[0],
        ModelDrafter(backends[1]),
        rows=sizes,
        tokens=[token for text in texts for token in text],
        temperature=temperature,
        machine=device_name(),
    )
    verifier = create("verifiers", "recursive-rejection" if temperature else "greedy")
    law = "without-replacement" if temperature else "top-k"
    ways: dict[str, Way] = {}
    if not modelled:
        ways["generate()"] = by_generate(model, temperature=temperature, tokens=tokens)
    for name, policy in policies(law=law).items():
        drafter = WatchedDrafter(backends[1]) if modelled else ModelDrafter(backends[1])
        decoder = SpeculativeDecoder(backends[0], drafter, policy, verifier, pass_costs=costs)
        ways[name] = by_policy(decoder, temperature=temperature, tokens=tokens, modelled=modelled)
    first = next(iter(ways))
    typer.echo(
        f"{costs.machine}, {threads} threads: {target}"
        + (f" widened to {parameter_count(model) / 1e6:.0f}M parameters" if widen else "")
        + f" and {draft}, {dtype}, temperature {temperature:g}, {tokens} tokens a text"
        + (", rounds timed by measured costs of passes" if modelled else "")
    )
    over = f"over {'ordinary' if modelled else first}"
    typer.echo(f"{'rows':>5}  {'way':<20}{'tokens/s':>10}{'least':>9}{'most':>9}{over:>17}")
    found: list[tuple[int, str, int, float]] = []
    for size in sizes:
        batch = [texts[number % len(texts)] for number in range(size)]
        for write in ways.values() if not modelled else ():
            write(batch, 0)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for repetition in range(repetitions):
            for name, write in ways.items():
                rates[name].append(size * tokens / write(batch, 1 + repetition))
                found.append((size, name, repetition, rates[name][-1]))
        base = median(rates[first])
        for name, of_way in rates.items():
            typer.echo(
                f"{size:>5}  {name:<20}{median(of_way):>10.1f}{min(of_way):>9.1f}{max(of_way):>9.1f}"
                f"{median(of_way) / base:>16.2f}x"
            )
    if output is not None:
        with output.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["rows", "way", "repetition", "tokens a second"])
            table.writerows([*line[:3], f"{line[3]:.2f}"] for line in found)
