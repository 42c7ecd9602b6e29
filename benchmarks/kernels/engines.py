"""Tokens a second by engine: transformers' own decoding, and trees over every engine, interleaved.

All write the same number of tokens for the same prompts with the same weights, greedily, on the CPU.
"""

from __future__ import annotations

import csv
import importlib.util
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any, Literal

import attrs
import torch
import typer

from benchmarks.kernels.captured import named_model
from benchmarks.research.prompts import prompts_of
from draftwood import SpeculativeDecoder, StateBackend, create, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.base.errors import InvalidInput
from draftwood.zoo.widen import parameter_count, widen_to

Engine = Literal["eager", "inductor", "openvino"]
ENGINES: tuple[Engine, ...] = ("eager", "inductor", "openvino")

NOISE = 1e-15
"""What zeros of a widened model are filled with: an engine may store and read equal constants once."""


@attrs.frozen
class Written:
    """One text.

    Attributes:
        tokens: written after the prompt.
        passes: of the target; 0 where that is not known.
    """

    tokens: list[int]
    passes: int = 0


Writer = Callable[[list[int], int], Written]
"""Writes so many tokens after a prompt."""


@attrs.define
class Line:
    """The time of one engine and method over all prompts.

    Attributes:
        seconds: by repetition.
        cpu: seconds of all threads, in all.
        equal: texts equal to the texts of `generate()`, of all repetitions.
        tokens: written in all.
        passes: of the target in all.
    """

    seconds: list[float] = attrs.field(factory=list)
    cpu: float = 0.0
    equal: int = 0
    tokens: int = 0
    passes: int = 0


def by_generate(model: Any, draft: Any = None) -> Writer:
    """Transformers' `generate()`, assisted by `draft` where there is one."""

    def write(prompt: list[int], count: int) -> Written:
        ids = torch.tensor([prompt])
        more = {} if draft is None else {"assistant_model": draft}
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            **more,
        )
        return Written(out[0, len(prompt) :].tolist(), 0 if more else count)

    return write


def by_trees(target: StateBackend, draft: StateBackend, *, budget: int, depth: int, recipe: str) -> Writer:
    """Draft trees of `budget` nodes; of none, one token a pass."""
    if budget:
        policy = create("recipes", recipe, {"budget": budget, "depth": depth}).policy
        drafter = create("drafters", "model", {"backend": draft})
    else:
        policy = create("policies", "cost-aware", {"budgets": (0,)})
        drafter = create("drafters", "prompt-lookup", {"vocab_size": target.vocab_size})
    decoder = SpeculativeDecoder(target, drafter, policy, create("verifiers", "greedy"))

    def write(prompt: list[int], count: int) -> Written:
        out: Any = decoder.generate(
            [prompt], max_new_tokens=count, eos_token_id=[], return_dict_in_generate=True
        )
        return Written(out.tokens[0], out.statistics.target_calls + 1)

    return write


def measured(
    ways: dict[str, Writer], texts: list[list[int]], *, count: int, repetitions: int
) -> dict[str, Line]:
    """Every way over all prompts, in turns prompt by prompt, after one turn that is not timed."""
    lines = {name: Line() for name in ways}
    expected: dict[int, list[int]] = {}
    for write in ways.values():
        for prompt in texts:  # meets every shape
            write(prompt, count)
    for _ in range(repetitions):
        for line in lines.values():
            line.seconds.append(0.0)
        for number, prompt in enumerate(texts):
            for name, write in ways.items():
                line = lines[name]
                started, busy = perf_counter(), process_time()
                written = write(prompt, count)
                line.seconds[-1] += perf_counter() - started
                line.cpu += process_time() - busy
                line.equal += written.tokens == expected.setdefault(number, written.tokens)
                line.tokens += len(written.tokens)
                line.passes += written.passes
    return lines


def engines(
    target: Annotated[str, typer.Option(help="A model of the zoo, a folder or a hub name.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    widen: Annotated[
        float, typer.Option(help="Parameters that a target of the zoo is widened to; 0: as it is.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Of both: float32 or bfloat16.")] = "float32",
    weights: Annotated[
        str | None, typer.Option(help="int8 or int4: what OpenVINO rounds the target's weights to.")
    ] = None,
    names: Annotated[
        str, typer.Option("--engines", help="Engines of draftwood, with commas; default: all that are here.")
    ] = "",
    recipe: Annotated[str, typer.Option(help="How trees are grown.")] = "opt-tree",
    budgets: Annotated[
        str, typer.Option(help="Nodes of the trees, excluding the root; 0: one token a pass.")
    ] = "0,4,8",
    depth: Annotated[int, typer.Option(help="Their levels, and calls of the draft.", min=1)] = 6,
    tokens: Annotated[int, typer.Option(help="Written after every prompt.", min=2)] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 4,
    repetitions: Annotated[int, typer.Option(help="Of all.", min=1)] = 3,
    threads: Annotated[int, typer.Option(help="Of torch and of the engine.", min=1)] = 2,
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
    output: Annotated[
        Path | None, typer.Option(help="A CSV file for the seconds of every repetition.")
    ] = None,
) -> None:
    """Compare `generate()`, assisted generation and trees over every engine: tokens a second, interleaved.

    \b
    Examples:
      python -m benchmarks engines
      python -m benchmarks engines --widen 350e6 --dtype bfloat16 --engines eager,openvino
      python -m benchmarks engines --widen 350e6 --dtype bfloat16 --engines openvino --weights int8
    """
    torch.set_num_threads(threads)
    here = [name for name in ENGINES if name != "openvino" or importlib.util.find_spec("openvino")]
    chosen: Any = names.split(",") if names else here
    if unknown := [name for name in chosen if name not in here]:
        raise InvalidInput(f"The engine {unknown[0]!r} is not here; name some of {', '.join(here)}.")
    model, small = (named_model(name, "cpu", dtype) for name in (target, draft))
    if widen:
        model = widen_to(model, parameters=widen, dtype=getattr(torch, dtype))
        _without_zeros(model)
    for one in (model, small):
        one.generation_config.eos_token_id = None
    texts = prompts_of(data, zoo.tokenizer(), prompts)
    ways = {"generate()": by_generate(model), "assisted generation": by_generate(model, small)}
    for engine in chosen:
        started = perf_counter()
        few_bits: Any = weights if engine == "openvino" else None
        backends = load(model, engine=engine, weights=few_bits), load(small, engine=engine)
        name = f"{engine}, {few_bits}" if few_bits else engine
        typer.echo(f"{name}: loaded in {perf_counter() - started:.1f} s", err=True)
        for budget in map(int, budgets.split(",")):
            ways[f"draftwood, {name}, {budget} nodes"] = by_trees(
                *backends, budget=budget, depth=depth, recipe=recipe
            )
    typer.echo(
        f"{device_name()}, {threads} threads: {target}"
        + (f" widened to {parameter_count(model) / 1e6:.0f}M parameters" if widen else "")
        + f" and {draft}, {dtype}, {recipe} of {depth} levels; {len(texts)} prompts, {tokens} tokens each"
    )
    lines = measured(ways, texts, count=tokens, repetitions=repetitions)
    whole = tokens * len(texts)
    base = median(lines["generate()"].seconds)
    typer.echo(
        f"{'way':<34}{'tokens/s':>10}{'least':>9}{'most':>9}{'ratio':>8}{'a CPU s':>9}{'a pass':>8}"
        f"{'equal':>11}"
    )
    for name, line in lines.items():
        rates = [whole / seconds for seconds in line.seconds]
        a_pass = f"{line.tokens / line.passes:.2f}" if line.passes else ""
        typer.echo(
            f"{name:<34}{whole / median(line.seconds):>10.1f}{min(rates):>9.1f}{max(rates):>9.1f}"
            f"{base / median(line.seconds):>7.2f}x{line.tokens / line.cpu:>9.1f}{a_pass:>8}"
            f"{line.equal:>5} of {len(texts) * repetitions}"
        )
    if output is not None:
        with output.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["way", "repetition", "seconds"])
            for name, line in lines.items():
                table.writerows([name, number, f"{took:.4f}"] for number, took in enumerate(line.seconds))


def _without_zeros(model: Any) -> None:
    """Fill the zeros of the weights with numbers too small to matter, which no engine can leave out."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=draws).mul_(NOISE).to(weight.dtype)
            weight.copy_(torch.where(weight == 0, noise, weight))
