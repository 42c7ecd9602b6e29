"""A pass by the number of its nodes, with weights on the device and with weights that are streamed to it."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from benchmarks.kernels.captured import named_model
from benchmarks.kernels.cuda_timing import synchronize
from draftwood import StateBackend, load
from draftwood.apps.files.machine import device_name


def pass_milliseconds(backend: StateBackend, nodes: int, *, context: int, repetitions: int) -> float:
    """The median of a pass over a binary tree with its commit."""
    tokens = torch.arange(nodes).unsqueeze(0) + 5
    parents = (torch.arange(nodes).unsqueeze(0) + 1) // 2 - 1
    backend.prefill([(17 * torch.arange(context) + 11) % backend.vocab_size])
    times = []
    for turn in range(repetitions + 1):
        synchronize(backend.device)
        started = perf_counter()
        backend.extend(tokens, parents)
        backend.commit([[]])
        synchronize(backend.device)
        if turn:  # the first warms up
            times.append(1e3 * (perf_counter() - started))
    backend.release()
    return median(times)


def offloaded(
    target: Annotated[
        str, typer.Option(help="Of the zoo, a random shape, a folder or a hub name.")
    ] = "llama-7m",
    device: Annotated[
        str, typer.Option(help="Where it runs; its weights wait in the host's memory.")
    ] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the weights.")] = "float32",
    nodes: Annotated[str, typer.Option(help="Sizes of the trees.")] = "1,16,64,256,768",
    context: Annotated[int, typer.Option(help="Tokens before them.", min=1)] = 128,
    repetitions: Annotated[int, typer.Option(help="Timed passes of each.", min=2)] = 3,
) -> None:
    """Milliseconds of a pass with weights that are there, and with weights that are streamed.

    \b
    Examples:
      python -m benchmarks offloaded --target random-7b --device cuda --dtype bfloat16
    """
    from accelerate import cpu_offload

    sizes = [int(size) for size in nodes.split(",")]
    typer.echo(f"{device_name()}: {target}, {dtype}, {context} tokens of context")
    typer.echo(f"{'nodes':>7}{'resident':>13}{'streamed':>13}")
    model: Any = named_model(target, device, dtype)
    resident = [
        pass_milliseconds(load(model), size, context=context, repetitions=repetitions) for size in sizes
    ]
    streamed_model = cpu_offload(model.to("cpu"), execution_device=torch.device(device))
    for size, there in zip(sizes, resident, strict=True):
        streamed = pass_milliseconds(load(streamed_model), size, context=context, repetitions=repetitions)
        typer.echo(f"{size:>7}{there:>10.2f} ms{streamed:>10.2f} ms")
