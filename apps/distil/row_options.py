"""Options of the commands that train on what a target writes: its rows, and the steps over them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from draftwood.zoo.distil.rows import SHARD_TOKENS

Target = Annotated[str, typer.Argument(help="Model folder, hub name, or a model of the zoo.")]

Text = Annotated[
    list[Path],
    typer.Argument(
        help="Text (.txt, .txt.gz, .jsonl) or folders of it; each is drawn from equally often.",
        show_default=False,
    ),
]

Tokens = Annotated[int, typer.Option(help="Tokens of the rows, prompts included.", min=1)]
TOKENS = 200 * SHARD_TOKENS

NewTokens = Annotated[int, typer.Option(help="Tokens that the target writes for each row.", min=2)]
NEW_TOKENS = 128

Steps = Annotated[int, typer.Option(help="Training steps.", min=1)]
STEPS = 4000

Batch = Annotated[int, typer.Option(help="Tokens of a step.", min=1)]
BATCH = 3072

Seed = Annotated[int, typer.Option(help="Seed of everything that is drawn.")]
