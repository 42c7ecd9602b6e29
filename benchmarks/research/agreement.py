"""Agreement of a draft with a target on held-out prompts, at temperatures 0, 0.6 and 1."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import attrs
import torch
import typer

from benchmarks.research import held_out
from draftwood import zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.zoo.distil.fit import Fit, fit
from draftwood.zoo.distil.rows import Rows, continued

TEMPERATURES = (0.0, 0.6, 1.0)


def agreement(
    target: Annotated[str, typer.Argument(help="A model of the zoo, or a folder.")],
    draft: Annotated[str, typer.Argument(help="The same, of fewer weights.")],
    data: Annotated[Path, typer.Argument(help="Folder with the prompts of the five data sets.")],
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 16,
    long_prompts: Annotated[int, typer.Option(help="Prompts of 1,000 tokens a task.", min=0)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 96,
    texts: Annotated[
        Path | None, typer.Option(help="A file for the target's texts, which other drafts can share.")
    ] = None,
    to: Annotated[Path | None, typer.Option(help="A JSON file for all figures.")] = None,
) -> None:
    """Overlap and tokens a round with a chain of four, on what TARGET writes after the prompts of DATA.

    At temperature 0 the overlap is the share of the target's tokens that the draft's most likely token is.

    \b
    Examples:
      python -m benchmarks agreement llama-7m llama-draft data/
    """
    models.quiet()
    teacher, student = (_model(name) for name in (target, draft))
    written = _stored(texts) if texts and texts.exists() else {}
    if not written:
        wanted = _prompts(data, prompts, long_prompts)
        jobs = [(domain, temperature) for domain in wanted for temperature in TEMPERATURES]
        steps = (_write(teacher, wanted[domain], temperature, tokens) for domain, temperature in jobs)
        from rich.console import Console

        written = dict(
            zip(
                jobs,
                watched(steps, "the target writes", total=len(jobs), console=Console(stderr=True)),
                strict=True,
            )
        )
    if texts and not texts.exists():
        torch.save({key: [attrs.asdict(rows) for rows in some] for key, some in written.items()}, texts)
    found = {key: fit(teacher, student, rows) for key, rows in written.items()}
    _show(found)
    if to:
        lines = [{"domain": domain, **attrs.asdict(one)} for (domain, _), one in found.items()]
        to.write_text(json.dumps(lines, indent=1) + "\n", encoding="utf-8")


def _model(name: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(models.locate(name), dtype=torch.float32).eval()


def _prompts(data: Path, count: int, long: int) -> dict[str, list[torch.Tensor]]:
    tokenizer = zoo.tokenizer()
    short = held_out.prompts(data, tokenizer, count=count, domains=held_out.DOMAINS)
    behind = held_out.long_prompts(data, tokenizer, count=long) if long else {}
    return {**short, **{f"long {name}": rows for name, rows in behind.items()}}


def _write(
    teacher: torch.nn.Module, prompts: list[torch.Tensor], temperature: float, tokens: int
) -> list[Rows]:
    return [
        continued(teacher, prompt[None], new_tokens=tokens, temperature=temperature, seed=seed)
        for seed, prompt in enumerate(prompts)
    ]


def _stored(file: Path) -> dict[tuple[str, float], list[Rows]]:
    return {key: [Rows(**rows) for rows in some] for key, some in torch.load(file).items()}


def _show(found: dict[tuple[str, float], Fit]) -> None:
    domains = list(dict.fromkeys(domain for domain, _ in found))
    short = [domain for domain in domains if not domain.startswith("long ")]
    groups = {domain: [domain] for domain in domains}
    groups |= {"all short": short, "all long": [one for one in domains if one not in short]}
    heads = "".join(f"{f'T={temperature:g}: overlap, chain':>26}" for temperature in TEMPERATURES)
    typer.echo(f"{'':16}{heads}")
    for name, members in groups.items():
        if not members:
            continue
        cells = []
        for temperature in TEMPERATURES:
            some = [found[domain, temperature] for domain in members]
            overlap, chain = (
                sum(getattr(one, field) for one in some) / len(some) for field in ("overlap", "chain")
            )
            cells.append(f"{overlap:18.3f}, {chain:6.2f}")
        typer.echo(f"{name:16}" + "".join(cells))
