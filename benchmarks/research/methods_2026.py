"""The methods of 2026, and what they are compared with: exact on toy models, and on held-out prompts."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console

from benchmarks.research.expected_tokens import by_shape, expected_tokens
from benchmarks.research.optimum import MIXES
from benchmarks.research.prompts import prompts_of
from benchmarks.research.verifiers import interval
from draftwood import Recipe, SamplingParams, create, load, zoo
from draftwood.apps.bench.writers import Speculative
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.testing import ToyModel, drawn_trees, optimal_tokens
from draftwood.testing.models.small_strategies import toy_drafter

VOCAB = 3  # tokens of the toy models
TEMPERATURES = (0.6, 1.0)


@attrs.frozen
class Method:
    """A method of the table.

    Attributes:
        label: in the table.
        recipe: its name.
        small: options for trees of 6 nodes, on toy models; None: it has no trees there.
        large: options for trees of 14 nodes; of several, the one with the most tokens per pass is shown.
        head: drafts instead of a draft model.
    """

    label: str
    recipe: str
    small: Mapping[str, Any] | None
    large: Sequence[Mapping[str, Any]]
    head: str | None = None

    def build(self, options: Mapping[str, Any]) -> Recipe:
        return create("recipes", self.recipe, options)  # type: ignore[no-any-return]


METHODS = (
    Method("one path, token by token", "leviathan", {"length": 6}, [{"length": 14}]),
    Method("HSD, corrected (block)", "block", {"length": 6}, [{"length": 14}]),
    Method("SVIP", "svip", {"length": 6}, [{"length": 14}]),
    Method("RSD-C", "rsd-c", {"branching": (2, 2)}, [{"branching": (2, 2, 2)}]),
    Method(
        "GBV",
        "gbv",
        {"paths": 2, "length": 3},
        [{"paths": 2, "length": 7}, {"paths": 7, "length": 2}],
    ),
    Method(
        "delayed expansion",
        "delayed-expansion",
        {"trunk": 2, "paths": 2, "length": 2},
        [{"trunk": 2, "paths": 4, "length": 3}, {"trunk": 4, "paths": 5, "length": 2}],
    ),
    Method("UniVer, by its abstract", "univer", {"length": 2}, [{"length": 3}]),
    Method("race", "race", {"shape": "2/1,1/1,1"}, [{"shape": "3/1,1,1/1,1,1/1,1,1/0,1,1"}]),
    Method("DDTree, llama-7m-dspark", "ddtree", {"budget": 6}, [{"budget": 14}], head="llama-7m-dspark"),
    Method("token recycling", "token-recycling", None, [{"budget": 14}]),
)


def exact(method: Method, count: int) -> tuple[float, float] | None:
    """Expected tokens per pass, and the most that any verifier gets on its trees; means over toy models."""
    if method.small is None:
        return None
    recipe, sums = method.build(method.small), torch.zeros(2, dtype=torch.float64)
    for seed in range(count):
        target = ToyModel(VOCAB, seed=2 * seed + 1, sharpness=1.0)
        mix = MIXES[seed % len(MIXES)]
        draft = ToyModel(VOCAB, seed=2 * seed + 2, sharpness=1.0, near=target, mix=mix)
        drawn = drawn_trees(recipe.policy, toy_drafter(recipe.policy, draft))
        sums[0] += expected_tokens(by_shape(drawn), recipe.verifier, target=target)
        sums[1] += optimal_tokens(drawn, target=target)
    tokens, best = (sums / count).tolist()
    return tokens, best


def on_prompts(
    method: Method, prompts: Sequence[Sequence[int]], *, tokens: int, temperature: float, draft: str
) -> tuple[float, float, float]:
    """Tokens per pass with a 95 % interval, of the best of its options."""
    sampling, tried = SamplingParams(temperature=temperature), list[tuple[float, float, float]]()
    for options in method.large:
        recipe, target = method.build(options), load(zoo.load(models.TARGET))
        needs: dict[str, Any] = {"model": {"backend": zoo.load(draft)}}
        needs["token-recycling"] = {"vocab_size": target.vocab_size}
        drafter = (
            create("drafters", recipe.drafter, needs[recipe.drafter])
            if method.head is None
            else create("drafters", "block-heads", {"target": target, "head": zoo.path(method.head)})
        )
        decoder = recipe.decoder(target, drafter)
        writer = Speculative(decoder, sampling, recipe.draft_sampling(sampling))
        texts = [writer.write(prompt, tokens, seed) for seed, prompt in enumerate(prompts)]
        totals, passes = (
            torch.tensor(column, dtype=torch.float64)
            for column in zip(*((tokens - one.prefill_tokens, one.rounds) for one in texts), strict=True)
        )
        tried.append(interval(totals, passes))
    return max(tried)


def methods_2026(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    toys: Annotated[int, typer.Option(help="Random pairs of toy models.", min=1)] = 30,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=2)] = 32,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = "llama-draft-sampled",
    table: Annotated[Path | None, typer.Option("--csv", help="Write the table here.")] = None,
) -> None:
    """Exact tokens a pass of trees of 6 nodes on toy models, and of 14 nodes on held-out prompts.

    \b
    Examples:
      python -m benchmarks methods-2026 --data data/
    """
    models.quiet()
    torch.set_num_threads(1)
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    typer.echo(
        f"{device_name()}: {models.TARGET} with {draft}, {len(encoded)} prompts of {tokens} tokens; "
        f"{toys} pairs of toy models of {VOCAB} tokens"
    )
    steps = watched(METHODS, "methods", total=len(METHODS), console=Console(stderr=True))
    lines = list(_lines(steps, toys, encoded, tokens=tokens, draft=draft))
    for line in lines:
        typer.echo("".join(f"{cell:<26}" for cell in line))
    if table is not None:
        with table.open("w", newline="", encoding="utf-8") as out:
            csv.writer(out, lineterminator="\n").writerows(lines)


def _lines(
    methods: Any, toys: int, prompts: Sequence[Sequence[int]], *, tokens: int, draft: str
) -> Iterator[list[str]]:
    heads = [f"14 nodes, temperature {temperature:g}" for temperature in TEMPERATURES]
    yield ["method", "exact, 6 nodes", "most on these trees", *heads]
    for method in methods:
        of_toys = exact(method, toys)
        measured = [
            on_prompts(method, prompts, tokens=tokens, temperature=temperature, draft=draft)
            for temperature in TEMPERATURES
        ]
        yield [
            method.label,
            *(["", ""] if of_toys is None else [f"{value:.3f}" for value in of_toys]),
            *(f"{mean:.2f} ({low:.2f} to {high:.2f})" for mean, low, high in measured),
        ]
