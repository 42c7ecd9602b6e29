"""DySpec's exact tree: the heap's, node for node, and what it costs to grow it on the zoo's draft model."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence
from hashlib import blake2b
from pathlib import Path
from statistics import mean, median
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.research.prompts import prompts_of
from draftwood import (
    CounterRandomness,
    Drafter,
    Randomness,
    Request,
    RequestLog,
    SamplingParams,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    create,
    zoo,
)
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.trees.growth import by_distributions


@attrs.frozen
class OneByOne(TreePolicy):
    """Algorithm 1 as the paper runs it: the draft is asked for every node as it is drawn."""

    budget: int
    laws = frozenset({WithoutReplacement})
    adaptive = True

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        heap, order = [(-1.0, 0, 0, 1.0, probs[0].double())], 1  # slot's value, its order, its node
        while len(tree) <= self.budget:
            _, _, node, reach, rest = heapq.heappop(heap)
            token = rng.choose(rest)
            chance = reach * float(rest[token])
            child = tree.add(node, token)
            rest[token] = 0
            heapq.heappush(heap, (-reach * float(rest.sum()), order, node, reach, rest))
            probs = yield tree.request([child])
            heapq.heappush(
                heap, (-chance * float(probs[0].double().sum()), order + 1, child, chance, probs[0].double())
            )
            order += 2
        return tree.finish()


class Tied(Randomness):
    """Randomness that draws only by its weights: equal weights give equal tokens, in any order."""

    def __init__(self, seed: int) -> None:
        self.seed = seed.to_bytes(8, "little")

    def choose(self, weights: Tensor) -> int:
        digest = blake2b(weights.double().numpy().tobytes(), digest_size=7, key=self.seed).digest()
        heights = weights.double().cumsum(0)
        u = int.from_bytes(digest, "little") / 2**56
        return int((heights <= u * float(heights[-1])).sum())


@attrs.frozen
class Grown:
    """A tree, the draft calls that it took, and the time."""

    tree: TokenTree
    calls: int
    seconds: float


@attrs.define
class Draft:
    """The draft model after one prompt. With `known`, a text's distribution is computed once and kept, so
    that two policies see the same bits; passes of other shapes round otherwise."""

    drafter: Drafter
    prompt: Sequence[int]
    sampling: SamplingParams
    known: dict[tuple[int, ...], Tensor] | None = None

    def grow(self, policy: TreePolicy, rng: Any) -> Grown:
        """One tree of `policy` after the prompt."""
        self.drafter.prefill([torch.tensor(self.prompt[:-1])])
        started, calls = perf_counter(), 0
        asked = RequestLog()
        try:
            growing = by_distributions(policy.grow(self.prompt[-1], rng), rng)
            request = next(growing)
            while True:
                logits = self.drafter.distributions([request])[0]
                probs = self.sampling.distribution(logits, may_be_empty=True)
                calls += 1
                if self.known is not None:
                    paths = map(asked.path, asked.take(request))
                    probs = torch.stack(
                        [self.known.setdefault(path, p) for path, p in zip(paths, probs, strict=True)]
                    )
                request = growing.send(probs)
        except StopIteration as finished:
            return Grown(finished.value, calls, perf_counter() - started)
        finally:
            self.drafter.release()


def shape(tree: TokenTree) -> dict[tuple[int, ...], list[int]]:
    """Every node's path and its children in drawn order."""
    tokens = tree.tokens.tolist()
    return {
        tuple(tokens[above] for above in tree.path(node)): [tokens[child] for child in tree.children(node)]
        for node in range(len(tree))
    }


def growth(
    data: Annotated[
        Path | None,
        typer.Option(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 4,
    budget: Annotated[list[int] | None, typer.Option(help="Nodes; repeatable.")] = None,
    temperature: Annotated[float, typer.Option(help="Of the draft.")] = 0.6,
    draft: Annotated[str, typer.Option(help="A model of the zoo.")] = models.DRAFT,
    repetitions: Annotated[int, typer.Option(help="Trees of each kind after a prompt.", min=1)] = 3,
) -> None:
    """Whether the layered tree is the heap's, and the time to grow both.

    \b
    Examples:
      python -m benchmarks growth --data data/ --budget 64 --budget 768
    """
    models.quiet()
    torch.set_num_threads(1)
    drafter = create("drafters", "model", {"backend": zoo.load(draft)})
    sampling = SamplingParams(temperature=temperature)
    encoded = prompts_of(data, zoo.tokenizer(), prompts)
    typer.echo(f"{device_name()}, one thread: {draft} at temperature {temperature}, {len(encoded)} prompts")
    for size in budget or (16, 64, 256, 768):
        rivals: dict[str, TreePolicy] = {
            "heap, a call a node": OneByOne(size),
            "heap": DySpec(size),
            "exact, by layers": LayeredDySpec(size),
            "threshold 1/N": ThresholdDySpec(size),
        }
        equal, trees = 0, {name: [] for name in rivals}  # type: ignore[var-annotated]
        steps = watched(enumerate(encoded), f"{size} nodes", total=len(encoded), console=Console(stderr=True))
        for seed, prompt in steps:
            shared = Draft(drafter, prompt, sampling, {})
            heap, exact = (
                shared.grow(rivals[name], Tied(seed)).tree  # type: ignore[abstract]
                for name in ("heap, a call a node", "exact, by layers")
            )
            equal += shape(heap) == shape(exact)
            for turn in range(repetitions):
                for name, policy in rivals.items():
                    rng = CounterRandomness.seeded(1000 * seed + turn)
                    trees[name].append(Draft(drafter, prompt, sampling).grow(policy, rng))
        typer.echo(f"{size} nodes: the layered tree is the heap's after {equal} of {len(encoded)} prompts")
        typer.echo(
            f"  {'':<22}{'ms, median':>12}{'draft calls':>13}{'most over depth':>17}{'nodes':>8}{'depth':>8}"
        )
        for name, grown in trees.items():
            typer.echo(
                f"  {name:<22}{median(one.seconds for one in grown) * 1e3:12.1f}"
                f"{mean(one.calls for one in grown):13.1f}"
                f"{max(one.calls - one.tree.depth for one in grown):17d}"
                f"{mean(len(one.tree) - 1 for one in grown):8.1f}{mean(one.tree.depth for one in grown):8.1f}"
            )
