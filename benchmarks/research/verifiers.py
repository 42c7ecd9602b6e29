"""Every verifier on the same trees of the Llama pair: tokens a round, and the time each takes.

The texts are written once; in every round all verifiers judge the tree that was drawn there, several
times each, so that only the rules differ. Intervals are bootstrapped over prompts.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated

import attrs
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.research.prompts import prompts_of
from draftwood import (
    CounterRandomness,
    Outcome,
    Randomness,
    SamplingParams,
    SpeculativeDecoder,
    TokenTree,
    Verifier,
    create,
    zoo,
)
from draftwood.apps.bench import intervals
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched

BASELINE = "recursive-rejection"
# What is compared unless verifiers are named.
CONTENDERS = ("traversal", "class-ordered-rejection", "class-ordered-traversal", "race-traversal")


@attrs.define(eq=False)
class Panel(Verifier):
    """Hands every tree to all `judges` and goes on with the outcome of the first.

    Attributes:
        judges: verifiers by name.
        repetitions: times that each judges a tree.
        tokens: for every judge the mean tokens of every round of the current text.
        seconds: for every judge the time of every verification so far.
    """

    judges: dict[str, Verifier]
    repetitions: int
    tokens: dict[str, list[float]] = attrs.field(init=False)
    seconds: dict[str, list[float]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        first = next(iter(self.judges.values()))
        self.laws = first.laws
        self.seconds = {name: [] for name in self.judges}
        self.start()

    def start(self) -> None:
        """A new text."""
        self.tokens = {name: [] for name in self.judges}

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        for name, judge in self.judges.items():
            emitted = 0
            for _ in range(self.repetitions):
                chance = CounterRandomness.seeded(int(torch.randint(2**62, ())))
                started = perf_counter()
                emitted += len(judge.verify(tree, target_probs, chance).emitted)
                self.seconds[name].append(perf_counter() - started)
            self.tokens[name].append(emitted / self.repetitions)
        return next(iter(self.judges.values())).verify(tree, target_probs, rng)


def interval(totals: Tensor, below: Tensor) -> tuple[float, float, float]:
    """The ratio of two sums over prompts, with a bootstrapped 95 % interval.

    Args:
        totals: tokens of every prompt `[prompts]`.
        below: its rounds, or another verifier's tokens in them, `[prompts]`.
    """
    sums = {"totals": totals.numpy(), "below": below.numpy()}
    figure = intervals.interval(sums, lambda s: s["totals"] / s["below"])
    assert figure  # of several prompts
    assert figure.low is not None
    assert figure.high is not None
    return figure.value, figure.low, figure.high


def verifiers(
    names: Annotated[list[str] | None, typer.Argument(help="Verifiers to compare.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 14,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 64,
    temperature: Annotated[float, typer.Option(help="Of target and draft.")] = 1.0,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
    branching: Annotated[list[int] | None, typer.Option(help="Children of a node, level by level.")] = None,
    repetitions: Annotated[int, typer.Option(help="Times that a tree is judged.", min=1)] = 4,
) -> None:
    """Tokens a round of every verifier on equal trees drawn without replacement.

    \b
    Examples:
      python -m benchmarks verifiers --data data/
      python -m benchmarks verifiers traversal --branching 3 --branching 2 --branching 1
    """
    models.quiet()
    torch.manual_seed(0)
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    levels = tuple(branching or (2, 2, 2, 2))
    policy = create("policies", "fixed-tree", {"depth": len(levels), "branching": levels})
    judges = {name: create("verifiers", name) for name in names or CONTENDERS}
    panel = Panel({BASELINE: create("verifiers", BASELINE), **judges}, repetitions)
    sampling = SamplingParams(temperature=temperature)
    target, drafter = zoo.load(models.TARGET), zoo.load(draft)
    decoder = SpeculativeDecoder(target, drafter, policy, panel)
    emitted: dict[str, list[float]] = {name: [] for name in panel.judges}
    rounds: list[int] = []
    texts = watched(encoded, "judging", total=len(encoded), console=Console(stderr=True))
    for seed, prompt in enumerate(texts):
        panel.start()
        decoder.generate(
            [prompt], max_new_tokens=tokens, sampling=sampling, draft_sampling=sampling, seed=seed
        )
        for name, counts in panel.tokens.items():
            emitted[name].append(sum(counts))
        rounds.append(len(panel.tokens[BASELINE]))

    nodes = 1
    for level in reversed(levels):
        nodes = 1 + level * nodes
    typer.echo(
        f"{device_name()}: {models.TARGET} with {draft}, temperature {temperature}, {len(encoded)} prompts, "
        f"{sum(rounds)} rounds, trees of {nodes - 1} nodes {list(levels)} without replacement"
    )
    typer.echo(f"{'':26}{'tokens/round':>13}{'95 % interval':>17}{'over ' + BASELINE:>26}{'ms, median':>12}")
    counted = torch.tensor(rounds, dtype=torch.float64)
    baseline = torch.tensor(emitted[BASELINE], dtype=torch.float64)
    for name, totals in emitted.items():
        own = torch.tensor(totals, dtype=torch.float64)
        mean, low, high = interval(own, counted)
        ratio, least, most = interval(own, baseline)
        gain = f"{ratio - 1:+.1%} ({least - 1:+.1%} to {most - 1:+.1%})"
        time = median(panel.seconds[name]) * 1e3
        typer.echo(f"{name:<26}{mean:13.3f}{f'{low:.3f} to {high:.3f}':>17}{gain:>26}{time:12.2f}")
