"""Texts of a target whose layers are read from the disk in every pass, against its ordinary decoding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.kernels.offloaded import pass_milliseconds
from benchmarks.research.prompts import prompts_of
from draftwood import StateBackend, load, zoo
from draftwood.apps.bench.specs import ORDINARY, contenders
from draftwood.apps.bench.writers import Text, Writer, writer
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.base.errors import InvalidInput


def written(folder: Path, parameters: float) -> Path:
    """The folder of llama-7m widened to so many parameters, in bfloat16; made where it is not there."""
    from draftwood.zoo.widen import widen_to

    place = folder / f"llama-{parameters / 1e6:.0f}m"
    if not (place / "config.json").exists():
        widen_to(zoo.load(models.TARGET), parameters=parameters, dtype=torch.bfloat16).save_pretrained(place)
    return place


def forget(folder: Path) -> None:
    """Drop the weights from the system's cache, so that the next pass reads the disk."""
    for file in folder.glob("*.safetensors"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


@contextmanager
def behind_every_pass(model: torch.nn.Module, action: Callable[[], None]) -> Iterator[None]:
    """Meanwhile `action` is done after every pass of `model`."""
    handle = model.register_forward_hook(lambda *_: action())
    try:
        yield
    finally:
        handle.remove()


def streamed(
    folder: Annotated[Path, typer.Argument(help="Where the widened target is written, and found again.")],
    parameters: Annotated[float, typer.Option(help="What the target is widened to.")] = 1.5e9,
    budget: Annotated[list[int] | None, typer.Option(help="Default: 16, 64, 256; repeatable.")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="Recipes; repeatable; default: dyspec and race.")
    ] = None,
    temperature: Annotated[list[float] | None, typer.Option(help="Default: 0 and 0.6; repeatable.")] = None,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
    draft_dtype: Annotated[models.Dtype, typer.Option(help="The draft's precision.")] = models.Dtype.bfloat16,
    data: Annotated[Path | None, typer.Option(help="As for `level`; default: built-in prompts.")] = None,
    prompts: Annotated[int, typer.Option(help="A domain.", min=1)] = 1,
    tokens: Annotated[int, typer.Option(help="A text.", min=2)] = 48,
    nodes: Annotated[
        list[int] | None, typer.Option(help="Of the passes timed; default: 1, 16, 64, 256, 768; repeatable.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Drop the weights from the system's cache after every pass.")
    ] = False,
) -> None:
    """Seconds per token divided by ordinary decoding's, which reads ahead too, and the tokens of a round.

    \b
    Examples:
      python -m benchmarks streamed big/ --data data/
      python -m benchmarks streamed big/ --cold --budget 64 --tokens 24
    """
    if cold and not hasattr(os, "posix_fadvise"):
        raise InvalidInput("--cold needs POSIX_FADV_DONTNEED, which this system lacks; leave it out.")
    models.quiet()
    place = written(folder, parameters)
    target = load(place, device="cpu", offload=folder / "converted")
    tokenizer = zoo.tokenizer()
    small = models.Loader(draft_dtype, target.device, trust_remote_code=False).backend(draft)
    loader = models.Loader(models.Dtype.auto, target.device, trust_remote_code=False)
    loaded = models.Loaded(target, small, tokenizer, loader)
    encoded = prompts_of(data, tokenizer, prompts)
    size = sum(file.stat().st_size for file in place.glob("*.safetensors")) / 1e9
    typer.echo(
        f"{device_name()}: {size:.1f} GB of weights {'cold' if cold else 'in the cache of the system'}, "
        f"{len(encoded)} prompts, {tokens} tokens each"
    )
    after = (lambda: forget(place)) if cold else (lambda: None)
    with behind_every_pass(target.model, after):
        _passes(target, nodes or (1, 16, 64, 256, 768))
        for heat in temperature or (0.0, 0.6):
            specs = contenders(strategy or ("dyspec", "race"), budget or (16, 64, 256), heat)
            _compared({spec.label: writer(spec, loaded, heat) for spec in specs}, encoded, tokens, heat)


def _passes(target: StateBackend, sizes: Sequence[int]) -> None:
    typer.echo(f"{'nodes':>7}{'ms a pass':>12}")
    for size in sizes:
        took = pass_milliseconds(target, size, context=128, repetitions=2)
        typer.echo(f"{size:>7}{took:>12.0f}")


def _compared(entrants: dict[str, Writer], prompts: list[list[int]], tokens: int, heat: float) -> None:
    texts: dict[str, list[Text]] = {name: [] for name in entrants}
    for number, prompt in enumerate(prompts):
        for name, one in entrants.items():  # in turns, so that a slow moment falls on all of them
            texts[name].append(one.write(prompt, tokens, number))
    typer.echo(
        f"temperature {heat}\n{'':<28}{'speed-up':>9}{'tokens/round':>14}{'ratio':>8}"
        f"{'s a round':>11}{'draft':>8}{'target':>8}{'draft calls':>13}{'same text':>11}"
    )
    plain = texts[ORDINARY]
    for name, own in texts.items():
        if name == ORDINARY:
            continue
        # Of all texts together, as the tokens of a round are: a text counts by its length.
        faster = _pace(plain) / _pace(own)
        rounds = sum(one.rounds for one in own)
        per_round = sum(map(_new, own)) / rounds
        same = sum(one.tokens == slow.tokens for slow, one in zip(plain, own, strict=True))
        equal = f"{same} of {len(own)}" if heat == 0 else ""
        whole = _sum(own, "round_seconds")
        parts = (_sum(own, "draft_seconds") / whole, _sum(own, "target_seconds") / whole)
        typer.echo(
            f"{name:<28}{faster:>9.2f}{per_round:>14.2f}{faster / per_round:>8.2f}{whole / rounds:>11.3f}"
            f"{parts[0]:>8.1%}{parts[1]:>8.1%}{_sum(own, 'draft_calls') / rounds:>13.1f}{equal:>11}"
        )


def _sum(texts: list[Text], name: str) -> float:
    """Returns the sum over the figures that a writer of rounds gives for each text."""
    return sum(float(getattr(text, name)) for text in texts)


def _new(text: Text) -> int:
    """The tokens after the prompt's passes."""
    return len(text.tokens) - text.first_tokens


def _pace(texts: list[Text]) -> float:
    """Seconds a token after the first ones."""
    return sum(text.seconds - text.first_token_seconds for text in texts) / sum(map(_new, texts))
