"""A draft that lacks some of the target's tokens, compared with the same draft with all of them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer

from benchmarks.research.prompts import prompts_of
from draftwood import Drafter, SamplingParams, SpeculativeDecoder, create, load, zoo
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.strategies.drafters.shared_tokens import SharedTokens
from draftwood.strategies.drafters.token_map import Text, TokenMap, token_texts
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection

MISSING = (0.0, 0.001, 0.01, 0.05, 0.2)
TEMPERATURES = (0.0, 1.0)


@attrs.frozen
class Cell:
    """The results of a draft: `missing` is None for the draft with the target's own vocabulary."""

    missing: float | None
    temperature: float
    seed: int
    overlap: float
    coverage: float
    drafted: int
    accepted: int
    tokens: int
    rounds: int


def vocabularies(
    data: Annotated[Path | None, typer.Argument(help="Folder with prompts; default: built-in ones.")] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 8,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=2)] = 48,
    length: Annotated[int, typer.Option(help="Tokens of the chain.", min=1)] = 4,
    seeds: Annotated[int, typer.Option(help="Choices of the missing tokens.", min=1)] = 3,
    to: Annotated[Path | None, typer.Option(help="A JSON file for all figures.")] = None,
) -> None:
    """Acceptance of llama-draft for llama-7m with its tokens in another order and some of them replaced.

    \b
    Examples:
      python -m benchmarks vocabularies data/
    """
    from rich.console import Console

    models.quiet()
    torch.set_num_threads(1)
    tokenizer = zoo.tokenizer()
    rows = prompts_of(data, tokenizer, prompts)
    jobs: list[tuple[float | None, int]] = [(None, 0)]
    jobs += [(missing, seed) for missing in MISSING for seed in range(seeds if missing else 1)]
    steps = (
        measured(missing, temperature, rows, seed=seed, tokens=tokens, length=length)
        for missing, seed in jobs
        for temperature in TEMPERATURES
    )
    watching = watched(steps, "drafts", total=len(jobs) * len(TEMPERATURES), console=Console(stderr=True))
    cells = list(watching)
    for line in table(cells):
        typer.echo(line)
    if to:
        to.write_text(json.dumps([attrs.asdict(cell) for cell in cells], indent=1) + "\n", encoding="utf-8")


def with_another_vocabulary(model: Any, tokenizer: Any, *, missing: float, seed: int = 0) -> SharedTokens:
    """`model` with its tokens in another order, and a share of them with texts that no target has.

    Its end of text stays. It still gives probability to what it lacks, as a real one would.
    """
    size = model.config.vocab_size
    chance = torch.Generator().manual_seed(seed)
    order = torch.randperm(size, generator=chance)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in {id(w): w for w in (embedding(other), head(other))}.values():
            weight.copy_(weight[order].clone())
    texts = token_texts(tokenizer, size)
    theirs: list[Text] = [texts[number] for number in order.tolist()]
    replaced = [place for place, text in enumerate(theirs) if text != "eos"]
    for place in torch.tensor(replaced)[torch.randperm(len(replaced), generator=chance)][
        : round(missing * size)
    ].tolist():
        theirs[place] = b"\xff" + str(place).encode()
    return SharedTokens(create("drafters", "model", {"backend": load(other)}), TokenMap.of(texts, theirs))


def embedding(model: Any) -> torch.Tensor:
    return model.get_input_embeddings().weight  # type: ignore[no-any-return]


def head(model: Any) -> torch.Tensor:
    return model.get_output_embeddings().weight  # type: ignore[no-any-return]


def measured(
    missing: float | None,
    temperature: float,
    prompts: list[list[int]],
    *,
    seed: int,
    tokens: int,
    length: int,
) -> Cell:
    """A chain's acceptance over all prompts, and the share of what was written that the draft has."""
    draft = zoo.load("llama-draft")
    drafter: Drafter = create("drafters", "model", {"backend": load(draft)})
    if missing is not None:
        drafter = with_another_vocabulary(draft, zoo.tokenizer(), missing=missing, seed=seed)
    law = "top-k" if temperature == 0 else "without-replacement"
    decoder = SpeculativeDecoder(
        load(zoo.load("llama-7m")), drafter, Chain(length, law), RecursiveRejection()
    )
    written: list[int] = []
    history: list[Any] = []
    for place, prompt in enumerate(prompts):
        out: Any = decoder.generate(
            [prompt],
            max_new_tokens=tokens,
            sampling=SamplingParams(temperature=temperature),
            seed=place,
            return_dict_in_generate=True,
        )
        written += out.sequences[0, len(prompt) :].tolist()
        history += [r for r in out.statistics.history if not r.prefill]
    known = drafter.tokens if isinstance(drafter, SharedTokens) else None
    outcomes = [row.outcome for r in history for row in r.rows]
    return Cell(
        missing,
        temperature,
        seed,
        overlap=known.overlap if known else 1.0,
        coverage=known.coverage(written) if known else 1.0,
        drafted=sum(outcome.drafted for outcome in outcomes),
        accepted=sum(outcome.accepted for outcome in outcomes),
        tokens=sum(outcome.accepted + 1 for outcome in outcomes),
        rounds=len(outcomes),
    )


def table(cells: list[Cell]) -> list[str]:
    """A line for every share of missing tokens, over all choices of them."""
    lines = [f"{'draft lacks':>12}" + "".join(f"{f'T={t:g}: text, rate, tokens':>30}" for t in TEMPERATURES)]
    for missing in dict.fromkeys(cell.missing for cell in cells):
        name = "(own)" if missing is None else f"{missing:.1%}"
        columns = []
        for temperature in TEMPERATURES:
            some = [cell for cell in cells if (cell.missing, cell.temperature) == (missing, temperature)]
            coverage = sum(cell.coverage for cell in some) / len(some)
            rate = sum(cell.accepted for cell in some) / max(sum(cell.drafted for cell in some), 1)
            per_round = sum(cell.tokens for cell in some) / max(sum(cell.rounds for cell in some), 1)
            columns.append(f"{coverage:16.3f}{rate:7.3f}{per_round:7.2f}")
        lines.append(f"{name:>12}" + "".join(columns))
    return lines
