"""Tokens per second by engine: other people's decoding, and draft trees over every engine, interleaved.

All write the same number of tokens after the same prompts with the same weights, greedily, on the CPU.
"""

from __future__ import annotations

import importlib.util
import re
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engines.contenders import AS_THEY_ARE, Trees
from benchmarks.engines.makers import ENGINES, Models, makers
from benchmarks.engines.processes import in_processes
from benchmarks.engines.turns import table, taken, write_csv
from benchmarks.research.prompts import prompts_of
from draftwood import zoo
from draftwood.apps.files.machine import device_name
from draftwood.backends.gguf.library import is_installed as gguf_is_installed
from draftwood.base.errors import InvalidInput
from draftwood.zoo.widen import parameter_count


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
        str,
        typer.Option(
            help="Nodes of the trees, excluding the root; 15x10: of 10 levels; 0: one token per pass; "
            "15x10+6: copied from the text itself where its last 6 tokens stood there before."
        ),
    ] = "0,4,8,15",
    depth: Annotated[int, typer.Option(help="Levels of the trees, where budgets say none.", min=1)] = 6,
    draft_temperature: Annotated[
        float | None, typer.Option(help="Of the draft, by which trees are shaped; default: the recipe's.")
    ] = None,
    chains: Annotated[str, typer.Option(help="Tokens that GenAI's draft proposes per pass.")] = "4,6,12",
    lookups: Annotated[str, typer.Option(help="Tokens that GenAI's look-up in the text proposes.")] = "",
    tokens: Annotated[int, typer.Option(help="Tokens written after every prompt.", min=2)] = 64,
    prompts: Annotated[int, typer.Option(help="Prompts per domain.", min=1)] = 4,
    repetitions: Annotated[int, typer.Option(help="Of all.", min=1)] = 3,
    warm_up: Annotated[
        float, typer.Option(help="Seconds that each writes for before it is timed.", min=0)
    ] = 30,
    threads: Annotated[int, typer.Option(help="Of torch and of every engine.", min=1)] = 2,
    data: Annotated[Path | None, typer.Option(help="Held-out prompts; default: built-in ones.")] = None,
    calibration: Annotated[
        bool, typer.Option("--calibration", help="On the prompts that trees and chains are chosen by.")
    ] = False,
    output: Annotated[Path | None, typer.Option(help="A CSV file with a line for every text.")] = None,
) -> None:
    """Compare draft trees over every engine with what other people run: tokens per second, interleaved.

    OpenVINO GenAI and llama.cpp are compared where they are installed and --folders has models for them.
    Every engine has its own process, and one writes at a time.

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
    if calibration and data is None:
        raise InvalidInput(
            "--calibration is given without --data; name a folder of prompts, or leave it out."
        )
    trees = [_trees(words, recipe, depth, draft_temperature) for words in budgets.split(",")]
    texts = prompts_of(data, zoo.tokenizer(), prompts, calibration=calibration)
    models = Models(target, draft, folders=folders, widen=widen, dtype=dtype, threads=threads)
    size = parameter_count(models.read()[0]) / 1e6
    shaped = "" if draft_temperature is None else f" at draft temperature {draft_temperature:g}"
    typer.echo(
        f"{device_name()}: {folders or target} with {size:.0f}M parameters, "
        f"{dtype}, {recipe}{shaped}; {len(texts)} prompts, "
        f"{tokens} tokens each, {repetitions} times"
    )
    compared = makers(
        models,
        others=others.split(","),
        engines=chosen,
        bits=[AS_THEY_ARE, *(bits for bits in weights.split(",") if bits)],
        trees=trees,
        chains=_numbers("chains", chains),
        lookups=_numbers("lookups", lookups),
    )
    with ExitStack() as until:
        contenders = in_processes(list(compared), threads=threads, until=until)
        turns = taken(contenders, texts, count=tokens, repetitions=repetitions, warm_up=warm_up)
    for line in table(contenders, turns):
        typer.echo(line)
    if output is not None:
        write_csv(turns, output)


def _trees(words: str, recipe: str, depth: int, draft_temperature: float | None) -> Trees:
    """The trees of one budget, such as 15 or 15x10."""
    if not (sizes := re.fullmatch(r"(\d+)(?:x(\d+))?(?:\+(\d+))?", words)):
        raise InvalidInput(
            f"budgets has {words!r}; give nodes, nodes x levels, or these + tokens of a look-up, such as "
            "8,15x10,15x10+6."
        )
    nodes, levels, lookup = (int(size or 0) for size in sizes.groups())
    return Trees(recipe, nodes, levels or depth, lookup, draft_temperature)


def _numbers(option: str, words: str) -> list[int]:
    """The whole numbers above 0 of an option, with commas between them; none of nothing."""
    parts = words.split(",") if words else []
    if wrong := [part for part in parts if not part.isdecimal() or not int(part)]:
        raise InvalidInput(f"{option} has {wrong[0]!r}; give whole numbers with commas, such as 4,12.")
    return [int(part) for part in parts]
