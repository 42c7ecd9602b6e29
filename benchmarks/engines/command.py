"""Tokens per second by engine: other people's decoding, and draft trees over every engine, interleaved.

All write the same number of tokens after the same prompts with the same weights, greedily, on the CPU.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Literal

import torch
import typer
from transformers import AutoModelForCausalLM

from benchmarks.engines import genai, llama
from benchmarks.engines.contenders import Contender, Trees, by_generate, by_trees
from benchmarks.engines.folders import without_zeros
from benchmarks.engines.turns import table, taken, write_csv
from benchmarks.kernels.captured import named_model
from benchmarks.research.prompts import prompts_of
from draftwood import load, zoo
from draftwood.apps.files.machine import device_name
from draftwood.backends.gguf.library import is_installed as gguf_is_installed
from draftwood.base.errors import InvalidInput
from draftwood.zoo.widen import parameter_count, widen_to

Engine = Literal["eager", "inductor", "openvino", "gguf"]
ENGINES: tuple[Engine, ...] = ("eager", "inductor", "openvino", "gguf")

GGUF = {"as they are": {"float32": "F32", "bfloat16": "BF16"}, "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's format of the weights."""


def engines(
    target: Annotated[str, typer.Option(help="A model of the zoo, a folder or a hub name.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    folders: Annotated[
        Path | None, typer.Option(help="What engine-folders wrote, in place of target and draft.")
    ] = None,
    widen: Annotated[
        float, typer.Option(help="Parameters that a target of the zoo is widened to; 0: as it is.")
    ] = 0,
    dtype: Annotated[str, typer.Option(help="Of both: float32 or bfloat16.")] = "float32",
    weights: Annotated[
        str, typer.Option(help="Rounded weights that are compared as well: int8, int4, or both with a comma.")
    ] = "",
    names: Annotated[
        str, typer.Option("--engines", help="Of draftwood, with commas; default: all that are installed.")
    ] = "",
    others: Annotated[
        str, typer.Option(help="Of other people, with commas: transformers, genai, llama.cpp.")
    ] = "transformers,genai,llama.cpp",
    recipe: Annotated[str, typer.Option(help="How trees are grown.")] = "opt-tree",
    budgets: Annotated[
        str, typer.Option(help="Nodes of the trees, excluding the root; 0: one token per pass.")
    ] = "0,4,8,15",
    depth: Annotated[int, typer.Option(help="Levels of the trees, and calls of the draft.", min=1)] = 6,
    draft_temperature: Annotated[
        float | None, typer.Option(help="Of the draft, by which trees are shaped; default: the recipe's.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens written after every prompt.", min=2)] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts per domain.", min=1)] = 4,
    repetitions: Annotated[int, typer.Option(help="Of all.", min=1)] = 3,
    warm_up: Annotated[
        float, typer.Option(help="Seconds that each writes for before it is timed.", min=0)
    ] = 30,
    threads: Annotated[int, typer.Option(help="Of torch and of every engine.", min=1)] = 2,
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
    output: Annotated[Path | None, typer.Option(help="A CSV file with a line for every text.")] = None,
) -> None:
    """Compare draft trees over every engine with what other people run: tokens per second, interleaved.

    OpenVINO GenAI and llama.cpp are compared where they are installed and --folders has models for them.

    \b
    Examples:
      python -m benchmarks engines
      python -m benchmarks engine-folders models/357m --widen 350e6
      python -m benchmarks engines --folders models/357m --dtype bfloat16 --engines openvino --weights int8
    """
    torch.set_num_threads(threads)
    absent = set[str]() if importlib.util.find_spec("openvino") else {"openvino"}
    absent |= set[str]() if folders is not None and gguf_is_installed() else {"gguf"}
    here = [name for name in ENGINES if name not in absent]
    chosen: Any = names.split(",") if names else here
    if unknown := [name for name in chosen if name not in here]:
        raise InvalidInput(f"The engine {unknown[0]!r} is not here; name some of {', '.join(here)}.")
    if folders is not None and widen:
        raise InvalidInput(f"widen is {widen:g}, but {folders} holds the models; leave one of the two out.")
    model, small = _models(target, draft, folders=folders, widen=widen, dtype=dtype)
    texts = prompts_of(data, zoo.tokenizer(), prompts)
    contenders = list[Contender]()
    rounded = [bits for bits in weights.split(",") if bits]
    asked = others.split(",")
    if "transformers" in asked:
        contenders.append(Contender("generate()", by_generate(model)))
        contenders.append(Contender("assisted generation", by_generate(model, small)))
    for bits in ("as they are", *rounded):
        if folders is not None:
            contenders += _others(folders, asked, bits=bits, dtype=dtype, threads=threads)
        for engine in chosen:
            if bits != "as they are" and engine not in ("openvino", "gguf"):
                continue
            pair = (model, small)
            if engine == "gguf" and folders is not None:
                pair = (_gguf(folders, bits, dtype), _gguf_draft(folders))
            contenders += _ours(
                *pair,
                engine,
                bits=bits,
                dtype=dtype,
                trees=[Trees(recipe, int(budget), depth, draft_temperature) for budget in budgets.split(",")],
            )
    shaped = "" if draft_temperature is None else f" at draft temperature {draft_temperature:g}"
    typer.echo(
        f"{device_name()}: {folders or target} with {parameter_count(model) / 1e6:.0f}M parameters, "
        f"{dtype}, {recipe} of {depth} levels{shaped}; {len(texts)} prompts, "
        f"{tokens} tokens each, {repetitions} times"
    )
    turns = taken(contenders, texts, count=tokens, repetitions=repetitions, warm_up=warm_up)
    for line in table(contenders, turns):
        typer.echo(line)
    if output is not None:
        write_csv(turns, output)


def _models(target: str, draft: str, *, folders: Path | None, widen: float, dtype: str) -> tuple[Any, Any]:
    """The target and the draft of transformers, which do not end texts by themselves."""
    if folders is not None:
        kind = getattr(torch, dtype)
        models = [
            AutoModelForCausalLM.from_pretrained(folders / name, dtype=kind).eval()
            for name in ("target", "draft")
        ]
    else:
        models = [named_model(name, "cpu", dtype) for name in (target, draft)]
        if widen:
            models[0] = widen_to(models[0], parameters=widen, dtype=getattr(torch, dtype))
            without_zeros(models[0])
    for one in models:
        one.generation_config.eos_token_id = None
    return models[0], models[1]


def _ours(
    model: Any,
    small: Any,
    engine: Engine,
    *,
    bits: str,
    dtype: str,
    trees: Sequence[Trees],
) -> Iterator[Contender]:
    """Draft trees over one engine; for "gguf" the models are files."""
    rounded: Any = None if bits == "as they are" else bits
    name = f"{engine}, {bits}" if rounded else engine
    texts = name if rounded else "the model"
    started = perf_counter()
    if engine == "gguf":
        name, texts = f"gguf {model.stem.split('-')[-1]}", llama.texts_of(model, weights=bits)
        backends = load(model, dtype=dtype), load(small)
    else:
        backends = load(model, engine=engine, weights=rounded), load(small, engine=engine)
    typer.echo(f"{name}: loaded in {perf_counter() - started:.1f} s", err=True)
    runs_torch = engine in ("eager", "inductor")
    for one in trees:
        yield Contender(
            f"draftwood, {name}, {one.budget} nodes",
            by_trees(*backends, one, engine_only=not runs_torch),
            ours=True,
            weights=bits,
            texts=texts,
        )


def _gguf(folders: Path, bits: str, dtype: str) -> Path:
    """The target's GGUF file with such weights."""
    kind: Any = GGUF[bits]
    return folders / "gguf" / f"target-{kind if isinstance(kind, str) else kind[dtype]}.gguf"


def _gguf_draft(folders: Path) -> Path:
    return folders / "gguf" / "draft-F32.gguf"


def _others(folders: Path, asked: list[str], *, bits: str, dtype: str, threads: int) -> list[Contender]:
    """OpenVINO GenAI and llama.cpp, where they and their models are here; says what is left out."""
    found = list[Contender]()
    options: Any = {"weights": bits, "dtype": dtype, "threads": threads}
    exported = folders / ("openvino" if bits == "as they are" else f"openvino-{bits}") / "target"
    if "genai" in asked:
        if genai.is_installed() and exported.is_dir():
            found += genai.contenders(exported, folders / "openvino" / "draft", **options)
        else:
            typer.echo(f"OpenVINO GenAI is left out: the package or {exported} is missing.", err=True)
    file = _gguf(folders, bits, dtype)
    if "llama.cpp" in asked:
        if gguf_is_installed() and file.is_file():
            found += llama.contenders(file, _gguf_draft(folders), **options)
        else:
            typer.echo(f"llama.cpp is left out: llama-cpp-python or {file} is missing.", err=True)
    return found
