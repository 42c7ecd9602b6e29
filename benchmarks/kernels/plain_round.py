"""Host work of one plain round: files entered, functions, calls, and the time outside the models.

Calls are counted under `sys.setprofile`, times without it, in other rounds of the same text.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from statistics import median
from time import perf_counter
from types import CodeType, FrameType
from typing import Annotated, Any

import attrs
import torch
import typer
from transformers import AutoModelForCausalLM

import draftwood.backends
import draftwood.kernels
import draftwood.strategies
from draftwood import SamplingParams, SpeculativeDecoder, StateBackend, create, load, zoo
from draftwood.apps.files.machine import device_name

LAYERS = {
    "framework": Path(draftwood.__file__).parent,
    "strategies": Path(draftwood.strategies.__file__ or "").parent,
    "backends": Path(draftwood.backends.__file__ or "").parent,
    "kernels": Path(next(iter(draftwood.kernels.__path__))),
}
"""The folders whose Python code counts."""

WARM_UP = 5
"""Rounds before the first that is measured."""

PASSES = ("extend", "extend_levels", "read", "commit", "release")
"""Methods by which a round calls a backend."""


@attrs.define
class Calls:
    """Python calls of one round into the project's code.

    Attributes:
        calls: by code object, with the layer that it is in.
        inside: how many were made from inside the two models' forward.
    """

    calls: Counter[tuple[str, CodeType]] = attrs.field(factory=Counter)
    inside: int = 0

    def of(self, layer: str) -> tuple[int, int, int]:
        """Distinct files and functions of `layer` that were entered, and calls."""
        here = {code: calls for (where, code), calls in self.calls.items() if where == layer}
        return len({code.co_filename for code in here}), len(here), sum(here.values())


@attrs.define
class Clock:
    """Seconds of one round.

    Attributes:
        forward: in the forward of the two models.
        backends: in the methods of the two backends, their models' forward included.
        running: whether a forward runs now.
    """

    forward: float = 0.0
    backends: float = 0.0
    running: bool = False


def layer_of(file: str) -> str | None:
    """The layer that a file of code is in; None for other people's code."""
    return next((name for name, folder in LAYERS.items() if file.startswith(f"{folder}/")), None)


@contextmanager
def counted(clock: Clock) -> Iterator[Calls]:
    """Inside it calls into the project's code are counted."""
    found, layers = Calls(), dict[str, str | None]()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        if (file := code.co_filename) not in layers:
            layers[file] = layer_of(file)
        if (layer := layers[file]) is not None:
            found.calls[layer, code] += 1
            found.inside += clock.running

    sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(None)


def watch_forward(model: torch.nn.Module, clock: Clock) -> None:
    """Add the time of the forward of `model` to `clock`."""
    forward = model.forward

    @wraps(forward)
    def timed(*args: Any, **options: Any) -> Any:
        clock.running, started = True, perf_counter()
        try:
            return forward(*args, **options)
        finally:
            clock.forward += perf_counter() - started
            clock.running = False

    model.forward = timed


def watch_methods(backend: StateBackend, clock: Clock) -> None:
    """Add the time of the methods of `backend` to `clock`."""

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **options: Any) -> Any:
            started, before = perf_counter(), clock.backends
            try:
                return method(*args, **options)
            finally:
                # A method may call another one.
                clock.backends = before + perf_counter() - started

        return run

    for name in PASSES:
        setattr(backend, name, timed(getattr(backend, name)))


def plain_round(
    target: Annotated[str, typer.Option(help="A model of the zoo.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    policy: Annotated[str, typer.Option(help="Its name.")] = "chain",
    size: Annotated[int, typer.Option(help="The policy's length or budget.", min=1)] = 4,
    rows: Annotated[int, typer.Option(help="Texts that are written at once.", min=1)] = 1,
    rounds: Annotated[int, typer.Option(help="Rounds that are timed.", min=3)] = 40,
    threads: Annotated[int, typer.Option(help="Of torch.", min=1)] = 1,
) -> None:
    """Count files, functions and calls of one decoding round, and time what is outside the models' forward.

    Float32, temperature 0.8, recursive rejection, on the CPU.

    \b
    Examples:
      python -m benchmarks plain-round
      python -m benchmarks plain-round --policy dyspec --size 8 --rows 8
    """
    torch.set_num_threads(threads)
    clock, backends = Clock(), []
    for name in (target, draft):
        model = AutoModelForCausalLM.from_pretrained(zoo.path(name), dtype=torch.float32).eval()
        watch_forward(model, clock)
        backend: Any = load(model)
        watch_methods(backend, clock)
        backends.append(backend)
    option = "length" if policy == "chain" else "budget"
    decoder = SpeculativeDecoder(
        target=backends[0],
        drafter=create("drafters", "model", {"backend": backends[1]}),
        policy=create("policies", policy, {option: size}),
        verifier=create("verifiers", "recursive-rejection"),
    )
    prompts = [[5 + row + 3 * place % 400 for place in range(64)] for row in range(rows)]
    running = decoder.stream(
        prompts,
        max_new_tokens=(size + 1) * (rounds + WARM_UP + 1),
        sampling=SamplingParams(temperature=0.8),
        seed=1,
        eos_token_id=[],
    )
    for _ in range(WARM_UP):
        next(running)
    with counted(clock) as calls:
        next(running)
    typer.echo(f"{device_name()}, {threads} thread(s); {policy} of {size}, {rows} row(s)")
    typer.echo(f"{'one round':<14}{'files':>8}{'functions':>12}{'calls':>8}")
    found = {layer: calls.of(layer) for layer in LAYERS}
    for layer, numbers in [*found.items(), ("all", tuple(map(sum, zip(*found.values(), strict=True))))]:
        typer.echo("{:<14}{:>8}{:>12}{:>8}".format(layer, *numbers))
    typer.echo(f"{calls.inside} of the calls are made inside the models' forward.")
    seconds: dict[str, list[float]] = {"round": [], "forward": [], "host": [], "backends": [], "others": []}
    for _ in range(rounds):
        clock.forward = clock.backends = 0.0
        started = perf_counter()
        next(running)
        whole = perf_counter() - started
        host, in_backends = whole - clock.forward, clock.backends - clock.forward
        for name, taken in zip(
            seconds, (whole, clock.forward, host, in_backends, host - in_backends), strict=True
        ):
            seconds[name].append(1e3 * taken)
    running.close()
    typer.echo(
        f"ms, medians of {rounds} rounds: round {median(seconds['round']):.2f}, models' forward "
        f"{median(seconds['forward']):.2f}, host {median(seconds['host']):.2f}, of which backends "
        f"{median(seconds['backends']):.2f}, all else {median(seconds['others']):.2f}"
    )
