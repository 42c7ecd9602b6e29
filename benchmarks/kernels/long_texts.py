"""Long texts: a target that drafts for itself from a window of its text, against ordinary decoding."""

from __future__ import annotations

import copy
import csv
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Annotated, Any

import attrs
import torch
import typer
from torch import Tensor
from transformers import DynamicCache, StoppingCriteria

from benchmarks.kernels.captured import named_model
from benchmarks.research import held_out
from draftwood import SamplingParams, SpeculativeDecoder, Statistics, TreePolicy, create, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.backends.structure.forward import cache_argument
from draftwood.decoding.given_cache import GivenCache
from draftwood.decoding.kept_text import Turn
from draftwood.drafters import PromptLookup, Windowed
from draftwood.policies import Chain, LayeredDySpec, Ordinary
from draftwood.zoo.widen import parameter_count, widen_to

TRAINED = 384
"""Tokens of a row of the text on which the zoo's targets were trained."""

JUDGED = 256
"""Tokens at the end of a prompt whose loss is shown."""


@attrs.frozen(eq=False)
class LongPrompt:
    """A batch of prompts that the model has read, all but the last token of each.

    Attributes:
        ids: int64 `[rows, length]`.
        cache: keys and values of what was read.
        loss: nats a token of the last `JUDGED` tokens that were read.
    """

    ids: Tensor
    cache: DynamicCache
    loss: float


@attrs.frozen
class Written:
    """The texts after one batch of prompts.

    Attributes:
        tokens: of every row.
        seconds: for one token of every row, without the first.
        per_round: tokens that a row gains in a round.
    """

    tokens: list[list[int]]
    seconds: float
    per_round: float


Way = Callable[[LongPrompt], Written]
"""Writes a text after each prompt of a batch."""


def stretched(model: Any, length: int) -> Any:
    """Returns `model` with rotations for texts of `length` tokens, by YaRN; it is changed."""
    config = model.config
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": config.rope_parameters["rope_theta"],
        "factor": max(length / TRAINED, 1.0),
        "original_max_position_embeddings": TRAINED,
    }
    config.max_position_embeddings = length
    model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


@torch.no_grad()
def read(model: Any, ids: Tensor, *, chunk: int = 512) -> LongPrompt:
    """Let `model` read prompts `[rows, length]`, all but the last token of each."""
    cache, losses = DynamicCache(config=model.config), list[Tensor]()
    for start in range(0, ids.shape[1] - 1, chunk):
        part = ids[:, start : min(start + chunk, ids.shape[1] - 1)]
        logits = model(part, **{cache_argument(model): cache}, use_cache=True).logits
        after = ids[:, start + 1 : start + 1 + part.shape[1]]
        losses.append(torch.nn.functional.cross_entropy(logits.float().mT, after, reduction="none"))
    return LongPrompt(ids, cache, float(torch.cat(losses, 1)[:, -JUDGED:].mean()))


class Clock(StoppingCriteria):  # type: ignore[misc]
    """Notes when `generate()` has a token of every row, and stops nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock, self.times = clock, list[float]()

    def __call__(self, input_ids: Tensor, scores: Tensor, **_: Any) -> Tensor:
        self.times.append(self.clock())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def by_generate(model: Any, *, temperature: float, tokens: int, clock: Callable[[], float]) -> Way:
    """Transformers' `generate()`, from a copy of the cache."""
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}

    def write(prompt: LongPrompt) -> Written:
        torch.manual_seed(0)
        watch = Clock(clock)
        out = model.generate(
            prompt.ids,
            attention_mask=torch.ones_like(prompt.ids),
            **{cache_argument(model): copy.deepcopy(prompt.cache)},
            max_new_tokens=tokens,
            eos_token_id=None,
            stopping_criteria=[watch],
            **sampling or {"do_sample": False},
        )
        step = (watch.times[-1] - watch.times[0]) / (tokens - 1)
        return Written(out[:, prompt.ids.shape[1] :].tolist(), step, 1.0)

    return write


def by_decoder(
    decoder: SpeculativeDecoder, *, temperature: float, tokens: int, clock: Callable[[], float]
) -> Way:
    """Draft trees, from the same cache."""
    sampling = SamplingParams(temperature=temperature)

    def write(prompt: LongPrompt) -> Written:
        rows, statistics = len(prompt.ids), Statistics()
        texts: list[list[int]] = [[] for _ in range(rows)]
        times = list[float]()
        rounds = decoder.stream(
            prompt.ids.tolist(),
            seed=list(range(rows)),
            statistics=statistics,
            turn=Turn(GivenCache(prompt.cache, [0] * rows)),
            max_new_tokens=tokens,
            sampling=sampling,
            eos_token_id=[],
        )
        with closing(rounds):
            for one in rounds:
                times.append(clock())
                for record in one.rows:
                    texts[record.row] += record.tokens
        # The first entry is the pass over the last token of the prompt, as it is in `generate()`.
        return Written(texts, (times[-1] - times[0]) / (tokens - 1), statistics.tokens_per_round)

    return write


def policies(*, law: str) -> dict[str, TreePolicy]:
    """The trees that are drafted, by what the table calls them."""
    return {
        "chain of 4": Chain(4, law),
        "trees of 4": LayeredDySpec(4, law=law),
        "trees of 8": LayeredDySpec(8, law=law),
    }


def long_texts(
    data: Annotated[Path, typer.Option(help="A folder of held-out prompts, which are joined.")],
    lengths: Annotated[str, typer.Option(help="Tokens of a prompt, with commas.")] = "8192,32768",
    windows: Annotated[str, typer.Option(help="Tokens that drafts read, with commas.")] = "256,512,1024",
    target: Annotated[str, typer.Option(help="A Llama of the zoo.")] = "llama-7m",
    widen: Annotated[float, typer.Option(help="Parameters that it is widened to; 0: as it is.")] = 0,
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16.")] = "float32",
    rows: Annotated[int, typer.Option(help="Texts at once.", min=1)] = 1,
    batches: Annotated[int, typer.Option(help="Prompts of each kind, or batches of them.", min=1)] = 1,
    temperature: Annotated[float, typer.Option(help="Of target and draft.", min=0)] = 0.0,
    tokens: Annotated[int, typer.Option(help="Of every text.", min=3)] = 64,
    repetitions: Annotated[int, typer.Option(help="Of every text, in turns.", min=1)] = 3,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
    busy: Annotated[
        bool,
        typer.Option("--busy", help="Count the process's own time, on one thread, as on a busy machine."),
    ] = False,
    tasks: Annotated[str, typer.Option(help="Kinds of prompts, with commas.")] = "retrieval,problems",
    output: Annotated[Path | None, typer.Option(help="A CSV file for every time.")] = None,
) -> None:
    """Time tokens after long prompts: `generate()`, ordinary decoding, and drafts from a window of the text.

    The target was trained on rows of 384 tokens. Its rotation is stretched to the prompt by YaRN, without
    training; the loss at the end of the prompts shows how well it copes. Reading the prompts is not timed.

    \b
    Examples:
      python -m benchmarks long-texts --data DATA
      python -m benchmarks long-texts --data DATA --widen 50e6 --tokens 32
      python -m benchmarks long-texts --data DATA --lengths 512,1024,2048,4096 --windows 256 --rows 8
    """
    threads = 1 if busy else threads
    torch.set_num_threads(threads)
    timed: Any = {
        "temperature": temperature,
        "tokens": tokens,
        "clock": process_time if busy else perf_counter,
    }
    model = named_model(target, "cpu", dtype)
    if widen:
        model = widen_to(model, parameters=widen, dtype=getattr(torch, dtype))
    model.generation_config.eos_token_id = None
    law, tokenizer = "without-replacement" if temperature else "top-k", zoo.tokenizer()
    typer.echo(
        f"{device_name()}, {threads} threads: {target}, {parameter_count(model) / 1e6:.0f}M parameters, "
        f"{dtype}, temperature {temperature:g}, {rows} row(s), {tokens} tokens a text"
        + (", the process's own time" if busy else "")
    )
    found: list[tuple[int, str, int, int, float, float]] = []
    for length in map(int, lengths.split(",")):
        model = stretched(model, length + tokens)
        ways = {"generate()": by_generate(model, **timed)}
        backend, verifier = load(model), create("verifiers", "recursive-rejection")
        lookup = PromptLookup(backend.vocab_size)
        parts: list[tuple[str, Any, TreePolicy]] = [("ordinary decoding", lookup, Ordinary())]
        parts.append(("lookup, chain of 4", lookup, Chain(4, law)))
        for window in map(int, windows.split(",")):
            drafter = Windowed(backend, window=window)
            parts += [(f"{window}, {name}", drafter, policy) for name, policy in policies(law=law).items()]
        for name, drafter, policy in parts:
            decoder = SpeculativeDecoder(backend, drafter, policy, verifier)
            ways[name] = by_decoder(decoder, **timed)
        given = held_out.long_prompts(
            data, tokenizer, count=rows * batches, length=length, tasks=tasks.split(",")
        )
        prompts = [of_task[batch::batches] for of_task in given.values() for batch in range(batches)]
        seconds: dict[str, list[list[float]]] = {name: [[] for _ in prompts] for name in ways}
        gains: dict[str, list[float]] = {name: [] for name in ways}
        losses, same = [], dict.fromkeys(ways, 0)
        for number, texts in enumerate(prompts):
            prompt = read(model, torch.stack(texts))
            losses.append(prompt.loss)
            expected = ways["ordinary decoding"](prompt).tokens
            for repetition in range(repetitions):
                for name, write in ways.items():
                    written = write(prompt)
                    seconds[name][number].append(written.seconds)
                    found.append((length, name, number, repetition, 1e3 * written.seconds, written.per_round))
                    if not repetition:
                        gains[name].append(written.per_round)
                        same[name] += sum(map(list.__eq__, written.tokens, expected))
        typer.echo(f"\nafter {length} tokens; last {JUDGED}: {sum(losses) / len(losses):.2f} nats a token")
        head = f"{'window and trees':<22}{'tokens/round':>13}{'ms/token':>10}"
        typer.echo(f"{head}{'x ordinary':>12}{'same texts':>12}")
        base = sum(map(median, seconds["ordinary decoding"]))
        for name, times in seconds.items():
            taken = sum(map(median, times))
            typer.echo(
                f"{name:<22}{sum(gains[name]) / len(gains[name]):>13.2f}{1e3 * taken / len(times):>10.2f}"
                f"{base / taken:>12.2f}{f'{same[name]} of {rows * len(times)}':>12}"
            )
    if output is not None:
        with output.open("w", newline="", encoding="utf-8") as file:
            table = csv.writer(file, lineterminator="\n")
            table.writerow(["length", "way", "batch", "repetition", "ms a token", "tokens a round"])
            table.writerows([*line[:4], f"{line[4]:.3f}", f"{line[5]:.3f}"] for line in found)
