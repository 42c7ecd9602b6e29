"""DySpec against `generate()` and transformers' assisted generation, at temperature 0, in one run.

All contenders write on the same widened pair of the zoo, taking turns, several times over; a prompt counts
with its median time. No figure is printed before every text has been found equal to that of
`generate()` in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console

from draftwood import zoo
from draftwood.apps import models, trace
from draftwood.apps.contenders import (
    DYSPEC,
    PLANS,
    Contender,
    Heat,
    Plan,
    Result,
    contenders,
    race,
    result,
    unassisted,
)
from draftwood.apps.machine import Pair, best_device, device_name, versions, widened_pair
from draftwood.apps.progress import watched
from draftwood.apps.prompts import PROMPTS
from draftwood.errors import DraftwoodError

Prompts = list[tuple[str, list[int]]]


class TextsDiffer(DraftwoodError):
    """A contender's float32 text is not that of `generate()`; its speed means nothing then."""


def prompts_of(data: Path | None, tokenizer: Any, count: int) -> Prompts:
    """(domain, tokens) of `count` prompts a domain: held-out ones from `data`, else built-in ones."""
    if data is None:
        return [
            (domain, tokenizer(text)["input_ids"])
            for domain, texts in PROMPTS.items()
            for text in texts[:count]
        ]
    from draftwood.zoo import held_out

    found = held_out.prompts(data, tokenizer, count=count)
    return [(domain, row.tolist()) for domain, rows in found.items() for row in rows]


def plans(
    budgets: Sequence[int], law: str, draft_temperature: float | None, everything: bool
) -> dict[str, Plan]:
    """DySpec with each budget, or as in the demo; with `everything` the demo's other trees too."""
    base = PLANS[DYSPEC]
    temperature = base.draft_temperature if draft_temperature is None else draft_temperature
    chosen = {
        f"{DYSPEC}, {budget} nodes": Plan(
            base.policy, {**base.options, "budget": budget, "law": law}, temperature
        )
        for budget in budgets or [base.options["budget"]]
    }
    others = {name: plan for name, plan in PLANS.items() if name != DYSPEC}
    return {**others, **chosen} if everything else chosen


def check_equal(entrants: Sequence[Contender], prompts: Prompts, tokens: int) -> None:
    """Raise `TextsDiffer` unless every contender writes what `generate()` writes."""
    heats = list(race(entrants, prompts, tokens=tokens))
    for one in (result(heats, entrant.name) for entrant in entrants):
        if not one.equal:
            raise TextsDiffer(
                f"{one.contender} leaves the text of generate() after {one.agreement:.1%} of the tokens in "
                "float32; its speed is not worth measuring before that is mended."
            )


@attrs.frozen
class Figures:
    """One contender: its figures over all prompts, its ratio in every domain, and their mean."""

    overall: Result
    ratios: dict[str, float]

    @property
    def ratio(self) -> float:
        return mean(self.ratios.values())


def figures(heats: Sequence[Heat]) -> list[Figures]:
    """The figures of every contender, in the order of the first prompt's turn."""
    domains = list(dict.fromkeys(heat.domain for heat in heats))
    names = list(dict.fromkeys(heat.contender for heat in heats))
    return [
        Figures(result(heats, name), {domain: result(heats, name, domain).ratio for domain in domains})
        for name in names
    ]


def decode(
    target: Annotated[str, typer.Option(help="A model of the zoo, of any family.")] = models.TARGET,
    draft: Annotated[str, typer.Option(help="A smaller one.")] = models.DRAFT,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 2,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 64,
    repetitions: Annotated[int, typer.Option(help="A prompt's time is the median.", min=1)] = 3,
    parameters: Annotated[float, typer.Option(help="Size that the target is widened to.")] = 350e6,
    dtype: Annotated[
        models.Dtype, typer.Option(help="auto: where a tree pass is cheapest, by measurement.")
    ] = models.Dtype.auto,
    budget: Annotated[
        list[int] | None, typer.Option(help="Nodes of DySpec's tree; repeatable for a sweep.")
    ] = None,
    law: Annotated[str, typer.Option(help="How children are drawn.")] = "top-k",
    draft_temperature: Annotated[
        float | None, typer.Option(help="Sharpens (below 1) or flattens the draft's distribution.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Chain and fixed tree as well.")] = False,
    to: Annotated[Path | None, typer.Option("--json", help="Write all figures here.")] = None,
) -> None:
    """Race DySpec against generate() and assisted generation at temperature 0.

    \b
    Examples:
      python -m benchmarks --data data/ --prompts 4 --tokens 128
      python -m benchmarks --budget 8 --budget 16 --all --json figures.json
      python -m benchmarks --target mamba2-5m --draft mamba2-draft --all
    """
    if to is not None:
        trace.check_writable(to)
    models.quiet()
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    wanted = plans(budget or [], law, draft_temperature, everything)
    device = best_device()
    small: tuple[Any, Any] = zoo.load(target), zoo.load(draft)
    small = small[0].to(device), small[1].to(device)
    check_equal(contenders(*small, wanted), encoded, tokens)
    typer.echo(f"In float32 all {len(encoded)} texts of {tokens} tokens are those of generate().")
    chosen = {models.Dtype.float32: torch.float32, models.Dtype.bfloat16: torch.bfloat16}.get(dtype)
    nodes = max(plan.options.get("budget", 1) for plan in wanted.values())
    if (reason := unassisted(*small)) is not None:
        typer.echo(f"No assisted generation: {reason}.")
    pair = widened_pair(*small, parameters=parameters, nodes=nodes, dtype=chosen)
    entrants = contenders(pair.target, pair.draft, wanted)
    for one in entrants:
        one.write(encoded[0][1], min(tokens, 8))
    runs = race(entrants, encoded, tokens=tokens, repetitions=repetitions)
    total = len(entrants) * len(encoded) * repetitions
    heats = watched(runs, "racing", total=total, console=Console(stderr=True))
    found = figures(heats)
    _show(found, pair)
    if to is not None:
        names = {"target": target, "draft": draft}
        trace.write_json(to, {**names, **_document(found, pair, wanted, heats, encoded)})


def _show(found: Sequence[Figures], pair: Pair) -> None:
    cost = pair.cost
    typer.echo(
        f"{device_name()}, {cost.precision}: a pass over 1 token {cost.step * 1e3:.1f} ms, over "
        f"{cost.nodes} nodes {cost.tree * 1e3:.1f} ms"
    )
    domains = list(found[0].ratios)
    heads = [f"{'tokens/s':>9}", *(f"{domain:>10}" for domain in domains)]
    heads += [f"{'mean':>6}", f"{'tokens/round':>13}", f"{'accepted':>9}", f"{'overhead':>9}"]
    typer.echo(f"{'ratio of tokens/s to generate()':<32}" + "".join(heads))
    for one in found:
        whole = one.overall
        cells = [f"{whole.tokens_per_second:9.1f}", *(f"{one.ratios[d]:10.2f}" for d in domains)]
        cells += [f"{one.ratio:6.2f}", f"{whole.tokens_per_round:13.2f}"]
        cells += [
            f"{share:9.1%}" if share is not None else "" for share in (whole.acceptance, whole.overhead)
        ]
        typer.echo(f"{whole.contender:<32}" + "".join(cells))


def _document(
    found: Sequence[Figures], pair: Pair, wanted: dict[str, Plan], heats: Sequence[Heat], prompts: Prompts
) -> dict[str, Any]:
    return {
        "versions": versions(),
        "device": device_name(),
        "dtype": pair.cost.precision,
        "parameters": sum(weight.numel() for weight in pair.target.parameters()),
        "pass_seconds": {"1": pair.cost.step, str(pair.cost.nodes): pair.cost.tree},
        "prompt_tokens": [len(tokens) for _, tokens in prompts],
        "plans": {name: attrs.asdict(plan) for name, plan in wanted.items()},
        "contenders": [
            {**attrs.asdict(one.overall), "ratios": one.ratios, "mean_ratio": one.ratio} for one in found
        ],
        "samples": [
            {
                "contender": heat.contender,
                "domain": heat.domain,
                "prompt": heat.prompt,
                "seconds": heat.sample.seconds,
                "tokens": len(heat.sample.tokens),
                "rounds": heat.sample.rounds,
            }
            for heat in heats
        ],
    }
