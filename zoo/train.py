"""Recipes of the zoo: `python -m draftwood.zoo.train pretrain | distil | medusa --help`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def pretrain(
    architecture: str,
    text: Path,
    out: Path,
    *,
    steps: int = 4000,
    learning_rate: float = 2e-3,
    length: int = 384,
    seed: int = 0,
) -> None:
    """Train ARCHITECTURE (a model of the zoo) from scratch on the files of the folder TEXT.

    A step sees eight rows of LENGTH tokens. The zoo's own models took 2e-3 as peak learning rate,
    its drafts 4e-3.
    """
    from . import path, tokenizer
    from .distil import save
    from .pretrain import new_model, train

    shared = tokenizer()
    model = new_model(path(architecture), seed=seed).to(_device())
    record = train(
        model,
        _streams(shared, text),
        steps=steps,
        learning_rate=learning_rate,
        length=length,
        seed=seed,
    )
    save(model, out, record=record)
    _say(record)


def distil(
    target: str,
    draft: str,
    text: Path,
    out: Path,
    *,
    rows_in: Path | None = None,
    rows: int = 12_288,
    new_tokens: int = 128,
    steps: int = 1500,
    learning_rate: float = 2e-3,
    layers: int = 0,
    width: int = 0,
    heads: int = 0,
    seed: int = 0,
) -> None:
    """Train DRAFT on what TARGET writes from prompts cut out of the folder TEXT.

    Both are names of the zoo or folders. The target's text is written to ROWS_IN (by default
    OUT/rows) shard by shard, and shards already there are used, so an interrupted run goes on and
    a second draft costs no second writing. LAYERS, WIDTH and HEADS widen the draft to that shape
    before it is trained (0: as it is); the MLP widens with it.
    """
    import torch

    from . import tokenizer
    from .distil import Recipe, save, train_on_rows, write_rows
    from .widen import widen

    shared = tokenizer()
    recipe = Recipe(rows=rows, new_tokens=new_tokens, steps=steps, learning_rate=learning_rate, seed=seed)
    device = _device()
    teacher = load_model(target, dtype=torch.bfloat16).to(device)
    folder = rows_in or out / "rows"
    streams = _streams(shared, text)
    write_rows(teacher, list(streams.values()), folder, recipe=recipe, shares=_shares(streams))
    student = load_model(draft, dtype=torch.float32)
    if layers or width or heads:
        config = student.config
        wide = width or config.hidden_size
        student = widen(
            student,
            hidden_size=wide,
            intermediate_size=config.intermediate_size * wide // config.hidden_size,
            num_hidden_layers=layers or config.num_hidden_layers,
            num_attention_heads=heads or config.num_attention_heads,
            seed=seed,
        )
    record = train_on_rows(teacher, student.to(device), folder, recipe=recipe)
    record = {"distilled_from": target, **record}
    save(student, out, record=record)
    _say(record)


def medusa(
    target: str,
    text: Path,
    out: Path,
    *,
    rows_in: Path | None = None,
    rows: int = 1024,
    new_tokens: int = 128,
    heads: int = 3,
    steps: int = 300,
    learning_rate: float = 4e-3,
    seed: int = 0,
) -> None:
    """Train Medusa HEADS for TARGET on what it writes from prompts cut out of the folder TEXT.

    TARGET is a name of the zoo or a folder, and is not changed. Its text is written to ROWS_IN (by
    default OUT/rows) as for `distil`, whose rows serve as well; the last 128 rows are held out and give
    `top1`, every head's share of right guesses. OUT is then what `--drafter medusa -o heads=OUT` takes.
    """
    import torch

    from draftwood.strategies.drafters.medusa import save_heads

    from . import tokenizer
    from .distil import Recipe, write_rows
    from .medusa import HeadsRecipe, train_heads

    model = load_model(target, dtype=torch.float32).to(_device())
    folder = rows_in or out / "rows"
    streams = _streams(tokenizer(), text)
    write_rows(
        model,
        list(streams.values()),
        folder,
        recipe=Recipe(rows=rows, new_tokens=new_tokens, seed=seed),
        shares=_shares(streams),
    )
    recipe = HeadsRecipe(heads=heads, steps=steps, learning_rate=learning_rate, seed=seed)
    trained, record = train_heads(model, folder, recipe=recipe)
    save_heads(trained.to(torch.bfloat16), out, target=target)
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _say(record)


def load_model(name: str, *, dtype: Any) -> Any:
    """The transformers model of the zoo, or of a folder, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    from . import names, path

    folder = path(name) if name in names() else Path(name)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{name!r} is neither a model of the zoo nor a folder; give one of {', '.join(names())}"
        )
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return model.eval()


def _streams(shared: Any, text: Path) -> dict[str, Any]:
    from .text import text_files, token_stream

    return {file.name.split(".")[0]: token_stream(shared, file) for file in text_files(text)}


def _shares(streams: dict[str, Any]) -> list[float]:
    """How often each stream is drawn from.

    The test prompts are problems, code and prose in equal parts; no file is left out entirely.
    """
    likely = {"chat": 0.1, "code": 0.3, "math": 0.35, "prose": 0.25}
    return [likely.get(name, 0.25) for name in streams]


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


def application() -> Any:
    """The command line, a typer application."""
    import typer

    app = typer.Typer(add_completion=False, help=__doc__)
    for command in (pretrain, distil, medusa):
        app.command()(command)
    return app


if __name__ == "__main__":
    application()()
