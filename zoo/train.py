"""Training of the zoo: `python -m draftwood.zoo.train pretrain | deepen | medusa --help`.

Drafts are distilled by `draftwood distil`.
"""

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
    import torch

    from . import path, tokenizer
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
    model.to(torch.bfloat16).save_pretrained(out)
    (out / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    _say(record)


def deepen(model: str, out: Path, *, layers: int = 2, seed: int = 0) -> None:
    """Write MODEL to the folder OUT with LAYERS layers, of which the new ones add nothing yet.

    MODEL is a name of the zoo or a folder with its tokenizer, of Llama's kind. `draftwood distil` trains
    what comes out, which has MODEL's precision and tokenizer.
    """
    from transformers import AutoTokenizer

    from . import names, tokenizer
    from .deepen import deepened

    deepened(load_model(model, dtype="auto"), layers, seed=seed).save_pretrained(out)
    its = tokenizer() if model in names() else AutoTokenizer.from_pretrained(model)
    its.save_pretrained(out)


def medusa(
    target: str,
    text: Path,
    out: Path,
    *,
    rows_in: Path | None = None,
    tokens: int = 262_144,
    new_tokens: int = 128,
    heads: int = 3,
    steps: int = 300,
    learning_rate: float = 4e-3,
    seed: int = 0,
) -> None:
    """Train Medusa HEADS for TARGET on what it writes from prompts cut out of the folder TEXT.

    TARGET is a name of the zoo or a folder, and is not changed. It writes TOKENS, prompts included, to
    ROWS_IN (by default OUT/rows), where shards already there are used; the last shard is held out and gives
    `top1`, every head's share of right guesses. OUT is then what `--drafter medusa -o heads=OUT` takes.
    """
    import torch

    from draftwood.strategies.drafters.medusa import save_heads

    from . import tokenizer
    from .distil.rows import SHARD_TOKENS, RowPlan, written
    from .medusa import GREEDY_AND_SAMPLED, MedusaOptions, train_heads

    model = load_model(target, dtype=torch.float32).to(_device())
    streams = _streams(tokenizer(), text)
    plan = RowPlan(
        shards=-(-tokens // SHARD_TOKENS), temperatures=GREEDY_AND_SAMPLED, new_tokens=new_tokens, seed=seed
    )
    shards = list(written(model, streams, rows_in or out / "rows", plan=plan, shares=_shares(streams)))
    options = MedusaOptions(heads=heads, steps=steps, learning_rate=learning_rate, seed=seed)
    trained, record = train_heads(model, shards, options=options)
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


def _shares(streams: dict[str, Any]) -> dict[str, float]:
    """Returns the share of draws for each stream.

    The test prompts are problems, code and prose in equal parts; no file is left out entirely.
    """
    likely = {"chat": 0.1, "code": 0.3, "math": 0.35, "prose": 0.25}
    return {name: likely.get(name, 0.25) for name in streams}


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(record, indent=1) + "\n")


def application() -> Any:
    """The command line, a typer application."""
    import typer

    app = typer.Typer(add_completion=False, help=__doc__)
    for command in (pretrain, deepen, medusa):
        app.command()(command)
    return app


if __name__ == "__main__":
    application()()
