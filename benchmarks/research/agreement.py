"""How well a draft guesses a target's greedy text on held-out prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import typer

from benchmarks.research import held_out
from draftwood import zoo
from draftwood.zoo.distil import agreement as measure


def agreement(
    target: Annotated[str, typer.Argument(help="A model of the zoo, or a folder.")],
    draft: Annotated[str, typer.Argument(help="The same, of fewer weights.")],
    data: Annotated[
        Path, typer.Argument(help="Folder with gsm8k_test.jsonl, humaneval.jsonl and wikitext2_test.txt.")
    ],
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 20,
) -> None:
    """How well DRAFT guesses TARGET's greedy text on the held-out prompts of DATA.

    \b
    Examples:
      python -m benchmarks agreement llama-7m llama-draft data/
    """
    import torch

    from draftwood.zoo.train import load_model

    teacher, student = (load_model(name, dtype=torch.float32) for name in (target, draft))
    rows = held_out.prompts(data, zoo.tokenizer(), count=prompts)
    measured = {name: attrs.asdict(measure(teacher, student, some)) for name, some in rows.items()}
    typer.echo(json.dumps(measured, indent=1))
