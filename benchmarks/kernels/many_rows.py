"""Tokens a second of many rows at once: `generate()`, fixed trees, and trees that follow what pays."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from benchmarks.kernels.captured import named_model
from benchmarks.research.prompts import prompts_of
from draftwood import SamplingParams, SpeculativeDecoder, TreePolicy, create, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.decoding.pass_time import PassTime
from draftwood.policies import Chain, CostAware, LayeredDySpec, ThroughputDySpec
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.zoo.widen import parameter_count, widen_to

Way = Callable[[list[list[int]], int], int]
"""Writes tokens after each of some prompts, and returns how many in all."""


def by_generate(model: Any, *, temperature: float, tokens: int) -> Way:
    """Transformers' `generate()` on the whole batch, padded at the left."""

    def write(prompts: list[list[int]], seed: int) -> int:
        torch.manual_seed(seed)
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
        return tokens * len(prompts)

    return write


def by_policy(decoder: SpeculativeDecoder, *, temperature: float, tokens: int) -> Way:
    """Draft trees for all prompts at once."""
    sampling = SamplingParams(temperature=temperature)

    def write(prompts: list[list[int]], seed: int) -> int:
        seeds = [1000 * seed + row for row in range(len(prompts))]
        decoder.generate(prompts, max_new_tokens=tokens, sampling=sampling, seed=seeds, eos_token_id=[])
        return tokens * len(prompts)

    return write


def policies(target_time: PassTime, draft_time: PassTime, *, law: str) -> dict[str, TreePolicy]:
    """Policies by what the table calls them."""
    return {
        "ordinary decoding": CostAware(budgets=(0,)),
        "chain of 2": Chain(2),
        "chain of 4": Chain(4),
        "trees of 4": LayeredDySpec(4, law=law),
        "trees of 8": LayeredDySpec(8, law=law),
        "trees of 16": LayeredDySpec(16, law=law),
        "what pays": ThroughputDySpec(16, law=law, target_time=target_time, draft_time=draft_time),
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
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
    output: Annotated[Path | None, typer.Option(help="A CSV file for every time.")] = None,
) -> None:
    """Compare tokens a second of whole batches, interleaved: `generate()`, fixed trees and what pays.

    \b
    Examples:
      python -m benchmarks many-rows --data DATA
      python -m benchmarks many-rows --data DATA --widen 350e6 --dtype bfloat16 --rows 1,4,16
    """
    torch.set_num_threads(threads)
    model, small = (named_model(name, "cpu", dtype) for name in (target, draft))
    if widen:
        model = widen_to(model, parameters=widen, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    backends = load(model), load(small)
    times = [PassTime.measured(backend, sizes=(1, 2, 4, 8, 16, 32, 64, 128, 256)) for backend in backends]
    sizes = [int(size) for size in rows.split(",")]
    texts = prompts_of(data, zoo.tokenizer(), -(-max(sizes) // 3))
    verifier = create("verifiers", "recursive-rejection")
    law = "without-replacement" if temperature else "top-k"
    ways = {"generate()": by_generate(model, temperature=temperature, tokens=tokens)}
    for name, policy in policies(*times, law=law).items():
        decoder = SpeculativeDecoder(backends[0], ModelDrafter(backends[1]), policy, verifier)
        ways[name] = by_policy(decoder, temperature=temperature, tokens=tokens)
    typer.echo(
        f"{device_name()}, {threads} threads: {target}"
        + (f" widened to {parameter_count(model) / 1e6:.0f}M parameters" if widen else "")
        + f" and {draft}, {dtype}, temperature {temperature:g}, {tokens} tokens a text; a pass of n tokens "
        f"takes {1e3 * times[0].constant:.2f} + {1e3 * times[0].linear:.3f} n ms"
    )
    typer.echo(f"{'rows':>5}  {'way':<20}{'tokens/s':>10}{'least':>9}{'most':>9}{'over generate()':>17}")
    found: list[tuple[int, str, int, float]] = []
    for size in sizes:
        batch = [texts[number % len(texts)] for number in range(size)]
        for write in ways.values():
            write(batch, 0)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for repetition in range(repetitions):
            for name, write in ways.items():
                started = perf_counter()
                written = write(batch, 1 + repetition)
                rates[name].append(written / (perf_counter() - started))
                found.append((size, name, repetition, rates[name][-1]))
        base = median(rates["generate()"])
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
