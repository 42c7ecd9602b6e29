"""The ways of writing that are compared; each function here runs in the process of its engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import attrs
import torch
import typer
from transformers import AutoModelForCausalLM

from benchmarks.engines import genai, llama
from benchmarks.engines.contenders import AS_THEY_ARE, Contender, Trees, by_generate, by_trees
from benchmarks.engines.folders import without_zeros
from benchmarks.engines.processes import Maker
from benchmarks.kernels.captured import named_model
from draftwood import load
from draftwood.backends.gguf.library import is_installed as gguf_is_installed
from draftwood.zoo.widen import widen_to

Engine = Literal["eager", "inductor", "openvino", "gguf"]
ENGINES: tuple[Engine, ...] = ("eager", "inductor", "openvino", "gguf")

GGUF = {AS_THEY_ARE: {"float32": "F32", "bfloat16": "BF16"}, "int8": "Q8_0", "int4": "Q4_0"}
"""llama.cpp's format of the weights."""

Proposed = tuple[Sequence[int], Sequence[int]]
"""Tokens that GenAI's draft proposes, and those that its look-up does, a contender each."""


@attrs.frozen
class Models:
    """Where the target and the draft are.

    Attributes:
        target: a model of the zoo, a folder or a hub name.
        draft: likewise.
        folders: what engine-folders wrote, in place of both; None: there is none.
        widen: parameters that a target of the zoo is widened to; 0: as it is.
        dtype: "float32" or "bfloat16".
        threads: of every engine.
    """

    target: str
    draft: str
    folders: Path | None
    widen: float
    dtype: str
    threads: int

    def read(self) -> tuple[Any, Any]:
        """Returns the target and the draft of transformers, which do not end texts by themselves."""
        if self.folders is not None:
            kind = getattr(torch, self.dtype)
            models = [
                AutoModelForCausalLM.from_pretrained(self.folders / name, dtype=kind).eval()
                for name in ("target", "draft")
            ]
        else:
            models = [named_model(name, "cpu", self.dtype) for name in (self.target, self.draft)]
            if self.widen:
                models[0] = widen_to(models[0], parameters=self.widen, dtype=getattr(torch, self.dtype))
                without_zeros(models[0])
        for one in models:
            one.generation_config.eos_token_id = None
        return models[0], models[1]

    def gguf(self, bits: str) -> Path:
        """The target's GGUF file with such weights."""
        kind: Any = GGUF[bits]
        kind = kind if isinstance(kind, str) else kind[self.dtype]
        return Path(self.folders or ".") / "gguf" / f"target-{kind}.gguf"

    @property
    def gguf_draft(self) -> Path:
        """The draft's GGUF file."""
        return Path(self.folders or ".") / "gguf" / "draft-F32.gguf"

    def exported(self, bits: str) -> Path:
        """The target's folder for OpenVINO GenAI with such weights."""
        name = "openvino" if bits == AS_THEY_ARE else f"openvino-{bits}"
        return Path(self.folders or ".") / name / "target"


def makers(
    models: Models,
    *,
    others: Sequence[str],
    engines: Sequence[Engine],
    bits: Sequence[str],
    trees: Sequence[Trees],
    chains: Sequence[int],
    lookups: Sequence[int] = (),
) -> Iterator[tuple[Maker, tuple[Any, ...]]]:
    """The functions that make the contenders, with their arguments; says what is left out."""
    if "transformers" in others:
        yield transformers_ways, (models,)
    for weights in bits:
        if models.folders is not None:
            yield from _engines_of_others(models, others, weights, (chains, lookups))
        for engine in engines:
            if weights == AS_THEY_ARE or engine in ("openvino", "gguf"):
                yield draft_trees, (models, engine, weights, trees)


def _engines_of_others(
    models: Models, asked: Sequence[str], weights: str, proposed: Proposed
) -> Iterator[tuple[Maker, tuple[Any, ...]]]:
    if "genai" in asked:
        exported = models.exported(weights)
        if genai.is_installed() and exported.is_dir():
            kinds = {models.dtype} if weights == AS_THEY_ARE else {models.dtype, "float32"}
            for dtype in sorted(kinds):
                yield genai_ways, (models, weights, dtype, proposed)
        else:
            typer.echo(f"OpenVINO GenAI is left out: the package or {exported} is missing.", err=True)
    if "llama.cpp" in asked:
        file = models.gguf(weights)
        if gguf_is_installed() and file.is_file():
            yield llama_ways, (models, weights)
        else:
            typer.echo(f"llama.cpp is left out: llama-cpp-python or {file} is missing.", err=True)


def transformers_ways(models: Models) -> list[Contender]:
    """Transformers' `generate()`, and its assisted generation."""
    target, draft = models.read()
    return [
        Contender("generate()", by_generate(target)),
        Contender("assisted generation", by_generate(target, draft)),
    ]


def genai_ways(models: Models, weights: str, dtype: str, proposed: Proposed) -> list[Contender]:
    """OpenVINO GenAI; with rounded weights it is asked in float32 too, where it is often faster."""
    label = "OpenVINO GenAI" if weights == AS_THEY_ARE else f"OpenVINO GenAI, {weights}"
    if dtype != models.dtype:
        label += f" in {dtype}"
    draft = models.exported(AS_THEY_ARE).with_name("draft")
    return genai.contenders(
        models.exported(weights),
        draft,
        label,
        weights=weights,
        dtype=dtype,
        threads=models.threads,
        chains=proposed[0],
        lookups=proposed[1],
    )


def llama_ways(models: Models, weights: str) -> list[Contender]:
    """llama.cpp."""
    return llama.contenders(
        models.gguf(weights),
        models.gguf_draft,
        weights=weights,
        dtype=models.dtype,
        threads=models.threads,
    )


def draft_trees(models: Models, engine: Engine, weights: str, trees: Sequence[Trees]) -> list[Contender]:
    """Draft trees over one engine."""
    rounded: Any = None if weights == AS_THEY_ARE else weights
    name = f"{engine}, {rounded}" if rounded else engine
    texts = name if rounded else "the model"
    started = perf_counter()
    if engine == "gguf":
        file = models.gguf(weights)
        name, texts = f"gguf {file.stem.split('-')[-1]}", llama.texts_of(file, weights=weights)
        backends = load(file, dtype=models.dtype), load(models.gguf_draft)
    else:
        target, draft = models.read()
        backends = load(target, engine=engine, weights=rounded), load(draft, engine=engine)
    typer.echo(f"{name}: loaded in {perf_counter() - started:.1f} s", err=True)
    runs_torch = engine in ("eager", "inductor")
    return [
        Contender(
            f"draftwood, {name}, {one.described}",
            by_trees(*backends, one, engine_only=not runs_torch),
            ours=True,
            weights=weights,
            texts=texts,
        )
        for one in trees
    ]
