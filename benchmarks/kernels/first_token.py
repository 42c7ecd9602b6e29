"""Time to the first token, compared with generate()'s, by the length of the prompt."""

from __future__ import annotations

from statistics import median
from typing import Annotated, Any

import torch
import typer

from benchmarks.kernels.captured import named_model
from draftwood import SamplingParams, create, load
from draftwood.apps.bench.writers import Speculative, Transformers, Writer
from draftwood.apps.files.machine import device_name


def first_token_times(
    writers: dict[str, Writer], prompt: list[int], *, repetitions: int
) -> dict[str, list[float]]:
    """Seconds until the first token after `prompt` is there, of every writer, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in writers}
    for turn in range(repetitions + 1):
        for name, writer in writers.items():
            taken = writer.write(prompt, 2, 0).first_token_seconds
            if turn:  # the first warms up
                seconds[name].append(taken)
    return seconds


def first_token(
    target: Annotated[
        list[str] | None, typer.Option(help="Of the zoo, a folder or a hub name; repeatable.")
    ] = None,
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    recipe: Annotated[str, typer.Option(help="How trees are grown and judged.")] = "opt-tree",
    length: Annotated[list[int] | None, typer.Option(help="Tokens of the prompt; repeatable.")] = None,
    device: Annotated[str, typer.Option(help="Where both run.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of both.")] = "float32",
    repetitions: Annotated[int, typer.Option(help="Timed texts of each, in turns.", min=2)] = 15,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 2,
) -> None:
    """Time to the first token, prompt included, of generate() and of speculative decoding.

    \b
    Examples:
      python -m benchmarks first-token
      python -m benchmarks first-token --target llama-7m --length 1000
    """
    torch.set_num_threads(threads)
    typer.echo(f"{device_name()}, {threads} thread(s), temperature 0; medians of {repetitions} texts")
    typer.echo(f"{'target':<14}{'prompt':>8}{'generate()':>13}{'draftwood':>12}{'ratio':>8}")
    for name in target or ("llama-7m", "mamba2-5m", "bamba-6m"):
        model: Any = named_model(name, device, dtype)
        drafts: Any = create("drafters", "model", {"backend": load(named_model(draft, device, dtype))})
        decoder = create("recipes", recipe, {"budget": 15}).decoder(load(model), drafts)
        writers: dict[str, Writer] = {
            "generate()": Transformers(model, {}, 0.0),
            "draftwood": Speculative(decoder, SamplingParams(temperature=0.0), None),
        }
        for tokens in length or (16, 64, 256, 1000):
            prompt = [(17 * position + 11) % 4000 for position in range(tokens)]
            times = first_token_times(writers, prompt, repetitions=repetitions)
            plain, ours = (1e3 * median(times[one]) for one in writers)
            typer.echo(f"{name:<14}{tokens:>8}{plain:>10.1f} ms{ours:>9.1f} ms{ours / plain:>7.2f}x")
