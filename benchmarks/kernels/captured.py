"""Passes of fixed shape, compiled once per shape, against uncompiled ones: one, and whole decoding.

Decoding is compared with transformers' `generate()`, with and without a compiled static cache.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from transformers import CompileConfig

from benchmarks.kernels.cuda_timing import synchronize
from benchmarks.kernels.random_models import SHAPES, random_model
from benchmarks.research.prompts import prompts_of
from draftwood import Recipe, SpeculativeDecoder, StateBackend, create, load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.base.errors import DraftwoodError

CLOSE = 1e-5
"""Largest difference that may pass between the logits of the two, over the logits' largest."""

Writer = Callable[[list[int], int], list[int]]
"""Writes so many tokens after a prompt."""


def pass_times(
    backends: dict[str, StateBackend], nodes: int, *, context: int, repetitions: int
) -> tuple[dict[str, float], float]:
    """Milliseconds of a pass over a binary tree and a commit of its root, and how far logits are apart.

    Args:
        backends: over the same model, without rows; the first is right.
        nodes: in the tree.
        context: tokens before it.
        repetitions: timed passes, in turns.
    """
    tokens = torch.arange(nodes).unsqueeze(0) + 5
    parents = (torch.arange(nodes).unsqueeze(0) + 1) // 2 - 1
    seconds: dict[str, list[float]] = {name: [] for name in backends}
    logits = []
    for backend in backends.values():
        backend.prefill([(17 * torch.arange(context) + 11) % backend.vocab_size])
        logits.append(backend.extend(tokens, parents).float())
        backend.commit([[0]])
    for _ in range(repetitions):
        for name, backend in backends.items():
            synchronize(backend.device)
            started = perf_counter()
            backend.extend(tokens, parents)
            backend.commit([[0]])
            synchronize(backend.device)
            seconds[name].append(perf_counter() - started)
    for backend in backends.values():
        backend.release()
    off = max(float((other - logits[0]).abs().max()) for other in logits) / float(logits[0].abs().max())
    return {name: 1e3 * median(times) for name, times in seconds.items()}, off


def writers(model: Any, draft: Any, *, recipe: Recipe, capture: Any) -> dict[str, Writer]:
    """The ways of writing that are compared, by name; `model` no longer ends texts by itself."""
    model.generation_config.eos_token_id = None

    def by_generate(**options: Any) -> Writer:
        def write(prompt: list[int], count: int) -> list[int]:
            ids = torch.tensor([prompt], device=model.device)
            mask = torch.ones_like(ids)
            written = model.generate(
                ids, attention_mask=mask, max_new_tokens=count, do_sample=False, **options
            )
            tokens: list[int] = written[0, len(prompt) :].tolist()
            return tokens

        return write

    def speculative(how: Any) -> Writer:
        decoder = SpeculativeDecoder(
            target=load(model, capture=how),
            drafter=create("drafters", "model", {"backend": load(draft, capture=how)}),
            policy=recipe.policy,
            verifier=create("verifiers", "greedy"),  # enough at temperature 0
        )

        def write(prompt: list[int], count: int) -> list[int]:
            written = decoder.generate([prompt], max_new_tokens=count, eos_token_id=[])
            assert isinstance(written, torch.Tensor)
            tokens: list[int] = written[0, len(prompt) :].tolist()
            return tokens

        return write

    compiled: Any = CompileConfig(mode="default" if model.device.type == "cpu" else "reduce-overhead")
    compiled._compile_all_devices = True
    return {
        "generate()": by_generate(),
        "generate(), compiled": by_generate(cache_implementation="static", compile_config=compiled),
        "speculative": speculative("off"),
        "speculative, captured": speculative(capture),
    }


def captured(
    target: Annotated[str, typer.Option(help="A model of the zoo, a folder or a hub name.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    capture: Annotated[str, typer.Option(help="compile, or on a GPU cuda-graphs.")] = "compile",
    device: Annotated[str, typer.Option(help="Where both run.")] = "cpu",
    dtype: Annotated[str, typer.Option(help="Of both.")] = "float32",
    recipe: Annotated[str, typer.Option(help="How trees are grown.")] = "opt-tree",
    budget: Annotated[int, typer.Option(help="Its nodes, without the root.", min=1)] = 15,
    depth: Annotated[int, typer.Option(help="Its levels, and calls of the draft.", min=1)] = 6,
    nodes: Annotated[str, typer.Option(help="Sizes of the trees of single passes.")] = "1,2,4,8,16,32",
    context: Annotated[int, typer.Option(help="Tokens before them.", min=1)] = 200,
    repetitions: Annotated[int, typer.Option(help="Timed passes of each, in turns.", min=2)] = 50,
    tokens: Annotated[int, typer.Option(help="Written after every prompt; 0: none.", min=0)] = 128,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 2,
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
) -> None:
    """Milliseconds of a pass and tokens a second at temperature 0, with passes captured and without.

    \b
    Examples:
      python -m benchmarks captured
      python -m benchmarks captured --capture cuda-graphs --device cuda --dtype bfloat16 --nodes 1,16,64
    """
    sizes = [int(size) for size in nodes.split(",")]
    models = {name: named_model(name, device, dtype) for name in (target, draft)}
    typer.echo(f"{device_name()}: {target} and {draft}, {dtype}, {torch.get_num_threads()} threads")
    typer.echo(
        f"{'a pass and its commit':<24}{'nodes':>6}{'as it is':>11}{'captured':>11}{'ratio':>8}{'off':>10}"
    )
    for name, model in models.items():
        backends = {how: load(model, capture=how) for how in ("off", capture)}  # type: ignore[arg-type]
        for size in sizes:
            times, off = pass_times(backends, size, context=context, repetitions=repetitions)
            if dtype == "float32" and not off <= CLOSE:
                raise DraftwoodError(f"Captured logits of {name} are off by {off:.2g}, more than {CLOSE}.")
            plain, fast = times["off"], times[capture]
            typer.echo(f"{name:<24}{size:6}{plain:8.2f} ms{fast:8.2f} ms{plain / fast:7.2f}x{off:10.1e}")
    if tokens:
        chosen = create("recipes", recipe, {"budget": budget, "depth": depth})
        ways = writers(models[target], models[draft], recipe=chosen, capture=capture)
        _decode(ways, prompts_of(data, zoo.tokenizer(), prompts), tokens, torch.device(device))


def _decode(ways: dict[str, Writer], texts: list[list[int]], tokens: int, device: torch.device) -> None:
    for write in ways.values():  # whatever is compiled is compiled
        for prompt in texts:
            write(prompt, tokens)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    equal = dict.fromkeys(ways, 0)
    for prompt in texts:
        expected: list[int] | None = None
        for name, write in ways.items():
            synchronize(device)
            started = perf_counter()
            written = write(prompt, tokens)
            seconds[name].append((perf_counter() - started) / tokens)
            expected = written if expected is None else expected
            equal[name] += written == expected
    base = median(seconds["generate()"])
    typer.echo(f"{'decoding':<24}{'ms a token':>12}{'tokens a second':>17}{'ratio':>8}{'equal texts':>13}")
    for name, times in seconds.items():
        typical = median(times)
        typer.echo(
            f"{name:<24}{1e3 * typical:12.2f}{1 / typical:17.1f}{base / typical:7.2f}x"
            f"{equal[name]:8} of {len(texts)}"
        )


def named_model(name: str, device: str, dtype: str) -> Any:
    """A model of the zoo or a random one by its name, or any other by its folder or hub name."""
    if name in SHAPES:
        return random_model(name, device, dtype)
    if (Path(zoo.__file__).parent / name).is_dir():
        model: Any = zoo.load(name)
        return model.to(device=device, dtype=getattr(torch, dtype))
    return load(name, device=device, dtype=dtype).model
