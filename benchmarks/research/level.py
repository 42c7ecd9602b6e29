"""One level of siblings on real models: what each rule accepts of it, against a bound of the optimum.

The accepted mass of recursive rejection and of class order is a mean over drawn siblings. That of race order
is exact: a sum over the times of arrival, whose density is known. A cut bounds the optimum from above. Take
any tokens U: at most the chance that a sibling lies in U is accepted there, and outside U no more than the
target has. The bound is the least of such cuts over the prefixes of several orders of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.research.prompts import prompts_of
from draftwood import CounterRandomness, WithoutReplacement, zoo
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.orders.race_flows import Tables, flows_of
from draftwood.strategies.verifiers.orders.race_laws import Arrival, Columns, Pair, SetLaw
from draftwood.strategies.verifiers.orders.race_sums import factor_of
from draftwood.strategies.verifiers.orders.sibling_order import DrawnTries, Tries
from draftwood.strategies.verifiers.residual import Residual

STEP = 0.3
"""Between the logarithms of the times."""

ORDERS = 7
"""Orders of the vocabulary whose prefixes are cuts: those that race order takes at as many times."""


def accepted(tries: Tries, target: Tensor) -> float:
    """The chance that one of the siblings is accepted, one after another."""
    residual, failed = Residual.of(target), 1.0
    while candidate := tries.next(residual):
        failed *= 1 - residual.chance(candidate)
        residual.reject(candidate)
    return 1 - failed


def tables_of(law: SetLaw, columns: Columns) -> tuple[Tables, float]:
    """Over all tokens, in the order of `columns`; the logarithm by which their odds are multiplied."""
    nothing = law.light(np.zeros(1))
    factor = 1.0 if isinstance(law, Pair) else factor_of(columns.odds, 0.0, law.count)
    return Tables.of(columns, nothing, law.count, factor), float(np.log(factor))


def set_laws(draft: Tensor, count: int) -> list[tuple[float, SetLaw]]:
    """Laws of the siblings as a set, with the weights by which they make up the drawing law."""
    if count == 2:
        return [(1.0, Pair(draft))]
    weighted: list[tuple[float, SetLaw]] = []
    # Every step's weight first rises, then falls, and sums up to 1.
    for step in range(-40, 200):
        time = float(np.exp(STEP * step))
        law = Arrival(draft, count, time)
        columns = law.at(np.arange(len(draft)))
        tables, factor = tables_of(law, columns)
        density = np.log(tables.whole) - count * factor - np.log1p(columns.odds).sum()
        weight = STEP * float(np.exp(density))
        if weight > 1e-6:
            weighted.append((weight, law))
        elif weighted and sum(weight for weight, _ in weighted) > 0.999:
            break
    return weighted


def race_and_bound(target: Tensor, draft: Tensor, count: int) -> tuple[float, float]:
    """Returns the mean acceptance of race order, and the bound."""
    laws = set_laws(draft, count)
    total = sum(weight for weight, _ in laws)
    race = sum(weight * float(flows_of(law, target).flows.sum()) for weight, law in laws) / total
    shares = np.cumsum([weight for weight, _ in laws]) / total
    chosen = np.unique(np.searchsorted(shares, np.linspace(0.02, 0.98, ORDERS)))
    wanted, bound = target.numpy(), 1.0
    for at in chosen:
        odds = laws[at][1].at(np.arange(len(wanted))).odds
        order = np.argsort(-wanted / np.maximum(odds / (1 + odds), 1e-300))
        reached = np.zeros(len(order) + 1)
        for weight, law in laws:
            arriving = tables_of(law, law.at(order))[0].arriving()
            reached[1:] += weight / total * arriving.cumsum()
        outside = np.append(wanted[order][::-1].cumsum()[::-1], 0.0)
        bound = min(bound, float((reached + outside).min()))
    return race, bound


def level(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
    temperature: Annotated[float, typer.Option(help="Of target and draft.")] = 1.0,
    siblings: Annotated[
        list[int] | None, typer.Option(help="How many; repeatable. Default: 2, 4, 8.")
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain, of two contexts each.", min=1)] = 10,
    draws: Annotated[int, typer.Option(help="Of siblings, for the rules that need them.", min=1)] = 64,
) -> None:
    """Accepted mass of one level of siblings without replacement, and a bound of what could be.

    \b
    Examples:
      python -m benchmarks level --data data/
      python -m benchmarks level --siblings 16 --temperature 0.6
    """
    from draftwood.zoo.train import load_model

    models.quiet()
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    pair = [load_model(name, dtype=torch.float32) for name in (models.TARGET, draft)]
    contexts: list[list[Tensor]] = []
    for prompt in encoded:
        logits = [_logits(model, prompt) for model in pair]
        contexts += [[(of[at] / temperature).softmax(-1) for of in logits] for at in (len(prompt) // 2, -1)]
    typer.echo(
        f"{device_name()}: {models.TARGET} with {draft}, temperature {temperature}, {len(contexts)} contexts"
    )
    typer.echo(
        f"{'siblings':>8}{'recursive':>11}{'class order':>13}{'race order':>12}{'bound':>9}{'short':>9}"
    )
    for count in siblings or (2, 4, 8):
        rows = [
            _figures(target, proposed, count, draws, seed)
            for seed, (target, proposed) in enumerate(
                watched(contexts, f"{count} siblings", total=len(contexts), console=Console(stderr=True))
            )
        ]
        recursive, classes, race, bound = np.mean(rows, 0)
        typer.echo(f"{count:8}{recursive:11.4f}{classes:13.4f}{race:12.4f}{bound:9.4f}{bound - race:9.4f}")


def _logits(model: torch.nn.Module, prompt: Sequence[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([prompt])).logits[0].double()
    return logits


def _figures(target: Tensor, draft: Tensor, count: int, draws: int, seed: int) -> tuple[float, ...]:
    """Accepted by recursive rejection, by class order, by race order; and the bound."""
    rng, law = CounterRandomness.seeded(seed), WithoutReplacement(draft)
    drawn = [rng.without_replacement(draft, count) for _ in range(draws)]
    recursive = np.mean([accepted(DrawnTries(tokens, law), target) for tokens in drawn])
    classes = np.mean([accepted(ClassOrder().tries(tokens, law, rng), target) for tokens in drawn])
    return float(recursive), float(classes), *race_and_bound(target, draft, count)
