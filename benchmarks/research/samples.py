"""Several samples of every prompt: what a cache of the texts so far brings, sample by sample."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer

from benchmarks.research import held_out
from draftwood import Recipe, SamplingParams, SpeculativeDecoder, load, zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.protocols import registry

TEMPERATURES = (0.6, 1.0)
RECIPES = ("prompt-lookup", "suffix-decoding")


@attrs.frozen
class Sample:
    """One text: its tokens, the rounds it took and what was drafted in them."""

    recipe: str
    temperature: float
    number: int
    tokens: int
    rounds: int
    drafted: int


def samples(
    data: Annotated[Path, typer.Argument(help="Folder with gsm8k_test.jsonl.")],
    prompts: Annotated[int, typer.Option(help="Prompts of GSM8K.", min=1)] = 50,
    count: Annotated[int, typer.Option("--samples", help="Samples of each prompt.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens a text, at most.", min=2)] = 32,
    budget: Annotated[int, typer.Option(help="Nodes of a tree.", min=1)] = 16,
    to: Annotated[Path | None, typer.Option(help="A JSON file for all figures.")] = None,
) -> None:
    """Tokens a round of llama-7m by sample number: first samples of all prompts, then second ones, and so on.

    `suffix-decoding` with a cache that begins empty and keeps all texts, compared with `prompt-lookup`.

    \b
    Examples:
      python -m benchmarks samples data/
    """
    from rich.console import Console

    models.quiet()
    torch.set_num_threads(1)
    rows = held_out.prompts(data, zoo.tokenizer(), count=prompts, domains=["gsm8k"])["gsm8k"]
    jobs = [(name, temperature) for name in RECIPES for temperature in TEMPERATURES]
    steps = (
        sample
        for name, temperature in jobs
        for sample in written(name, temperature, rows, count=count, tokens=tokens, budget=budget)
    )
    total = len(jobs) * len(rows) * count
    done = list(watched(steps, "texts", total=total, console=Console(stderr=True)))
    for line in table(done, count):
        typer.echo(line)
    if to:
        to.write_text(json.dumps([attrs.asdict(one) for one in done], indent=1) + "\n", encoding="utf-8")


def written(
    name: str, temperature: float, prompts: list[torch.Tensor], *, count: int, tokens: int, budget: int
) -> Any:
    """One `Sample` after another; seeds depend only on prompt and number."""
    target = load(zoo.load("llama-7m"))
    size = "length" if name == "prompt-lookup" else "budget"
    recipe: Recipe = registry.create("recipes", name, {size: budget})
    drafter = registry.create("drafters", recipe.drafter, {"vocab_size": target.vocab_size})
    decoder = SpeculativeDecoder(target, drafter, recipe.policy, recipe.verifier)
    sampling = SamplingParams(temperature=temperature)
    for number in range(count):
        for place, prompt in enumerate(prompts):
            out: Any = decoder.generate(
                [prompt.tolist()],
                max_new_tokens=tokens,
                sampling=sampling,
                draft_sampling=recipe.draft_sampling(sampling),
                seed=place * count + number,
                return_dict_in_generate=True,
            )
            outcomes = [r.rows[0] for r in out.statistics.history if not r.prefill]
            yield Sample(
                name,
                temperature,
                number + 1,
                tokens=sum(len(record.tokens) for record in outcomes),
                rounds=len(outcomes),
                drafted=sum(record.outcome.drafted for record in outcomes),
            )


def table(done: list[Sample], count: int) -> list[str]:
    """Tokens a round, and the nodes a round after them, by sample number."""
    numbers = range(1, count + 1)
    lines = [f"{'sample':28}" + "".join(f"{number:7}" for number in numbers) + f"{'all':>7}{'nodes':>7}"]
    for name, temperature in dict.fromkeys((one.recipe, one.temperature) for one in done):
        some = [one for one in done if (one.recipe, one.temperature) == (name, temperature)]
        by_number = [[one for one in some if one.number == number] for number in numbers]
        cells = "".join(f"{tokens_per_round(each):7.2f}" for each in (*by_number, some))
        nodes = sum(one.drafted for one in some) / max(sum(one.rounds for one in some), 1)
        lines.append(f"{f'{name}, T={temperature:g}':28}{cells}{nodes:7.1f}")
    return lines


def tokens_per_round(some: list[Sample]) -> float:
    return sum(one.tokens for one in some) / max(sum(one.rounds for one in some), 1)
