"""The folders that engines read: one pair of models in the form of every engine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.engines import gguf_files
from benchmarks.kernels.captured import named_model
from draftwood import zoo
from draftwood.base.errors import InvalidInput
from draftwood.zoo.widen import parameter_count, widen_to

NOISE = 1e-15
"""Replaces zeros of a widened model: an engine may store and read equal constants once."""

EXPORTS = {
    "openvino": ("fp32", ("target", "draft")),
    "openvino-int8": ("int8", ("target",)),
    "openvino-int4": ("int4", ("target",)),
}
"""Folders of exported models: the format of their weights, and the models."""


def without_zeros(model: Any) -> None:
    """Replace the zeros of the weights by numbers too small to matter, which no engine can leave out."""
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=draws).mul_(NOISE).to(weight.dtype)
            weight.copy_(torch.where(weight == 0, noise, weight))


def engine_folders(
    folder: Annotated[Path, typer.Argument(help="A new folder.")],
    target: Annotated[str, typer.Option(help="A model of the zoo.")] = "llama-7m",
    draft: Annotated[str, typer.Option(help="A smaller one with the same vocabulary.")] = "llama-draft",
    widen: Annotated[float, typer.Option(help="Parameters that the target is widened to; 0: as it is.")] = 0,
    optimum: Annotated[
        str, typer.Option(help="The program of optimum-intel that exports models for OpenVINO GenAI.")
    ] = "optimum-cli",
) -> None:
    """Write a target and a draft in the forms that `engines --folders` reads.

    Writes folders of transformers, exports of optimum-intel where its program is found (it may be in another
    environment), and GGUF files where the package gguf is installed.

    \b
    Examples:
      python -m benchmarks engine-folders models/7m
      python -m benchmarks engine-folders models/357m --widen 350e6 --optimum ../optimum/bin/optimum-cli
    """
    if folder.exists():
        raise InvalidInput(f"{folder} exists; name a new folder.")
    for name, source in (("target", target), ("draft", draft)):
        model = named_model(source, "cpu", "float32")
        if widen and name == "target":
            model = widen_to(model, parameters=widen)
            without_zeros(model)
        model.save_pretrained(folder / name)
        zoo.tokenizer().save_pretrained(folder / name)
        typer.echo(f"{folder / name}: {parameter_count(model) / 1e6:.1f}M parameters")
    program = shutil.which(optimum)
    for export, (weights, names) in EXPORTS.items():
        for name in names:
            if program is None:
                typer.echo(f"{folder / export / name}: left out, as there is no program {optimum}.")
                continue
            words = [program, "export", "openvino", "--model", str(folder / name)]
            words += ["--task", "text-generation-with-past", "--weight-format", weights]
            done = subprocess.run([*words, str(folder / export / name)], capture_output=True, text=True)
            if done.returncode:
                raise InvalidInput(f"{optimum} did not export {folder / name}: {done.stderr[-300:]}")
            typer.echo(str(folder / export / name))
    for written in gguf_files.write(folder):
        typer.echo(str(written))
