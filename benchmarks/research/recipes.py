"""Every recipe on the Llama pair at equal budgets: tokens a round with confidence intervals.

Every cell (temperature, budget, setting) writes the same number of tokens after the same prompts, by the
writer of `draftwood bench`; a text draws from its own seed, so that settings are compared prompt by prompt. A
finished cell is a line in the output file, and is not run again. Intervals are bootstrapped over prompts.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Annotated, Any

import attrs
import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.research.calibration import calibrate, calibrated_shares, pair, split
from benchmarks.research.settings import BUDGETS, LARGE, Setting, check_budget, settings
from benchmarks.research.verifiers import interval
from draftwood import Recipe, SamplingParams, create
from draftwood.apps.bench.writers import Speculative
from draftwood.apps.files.machine import device_name
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json
from draftwood.strategies.shape_search import best_sorted_shape

VERSION = 2  # of a finished cell's line; lines without one were written in batches and do not say of what
TEMPERATURES = (0.0, 0.6, 1.0)
DEPTHS = {LARGE: 24}  # levels of the searched shapes, where they are not 16
# Which recipe is expected above which, where, and by whom.
ORDERINGS = (
    ("rsd-s", "leviathan", (0.6, 1.0), BUDGETS, "RSD, figure 5"),
    ("rsd-s", "spectr", (0.6, 1.0), BUDGETS, "RSD, figure 5"),
    ("rsd-s", "rsd-c", (0.6, 1.0), BUDGETS, "RSD, figure 5"),
    ("dyspec", "specinfer", (0.6, 1.0), (64,), "DySpec, tables 1 and 2"),
    ("dyspec", "sequoia", TEMPERATURES, (64,), "DySpec, tables 1 and 2"),
    ("dyspec", "dyspec-threshold", TEMPERATURES, (*BUDGETS, LARGE), "DySpec, appendix B.1"),
    ("dyspec", "sequoia", TEMPERATURES, (LARGE,), "DySpec, appendix B.1: not reached there"),
    ("dyspec, measured acceptance", "dyspec", (0.6, 1.0), (*BUDGETS, LARGE), "draftwood"),
    ("dyspec, measured acceptance", "sequoia", (0.6, 1.0), (*BUDGETS, LARGE), "draftwood"),
    ("dyspec, measured acceptance", "dyspec-threshold", (0.6,), (LARGE,), "draftwood"),
    ("dynatree", "fixed-tree", (0.0,), BUDGETS, "DynaTree, table 1"),
    ("dyspec", "rsd-c", TEMPERATURES, BUDGETS, "adaptive above static"),
    ("opt-tree", "fixed-tree", (0.0,), BUDGETS, "adaptive above static"),
)


@attrs.frozen
class Cell:
    """One setting at one temperature and budget."""

    temperature: float
    budget: int
    setting: Setting

    @property
    def key(self) -> str:
        return f"{self.temperature} {self.budget} {self.setting.label} {self.setting.words}"


@attrs.frozen
class Task:
    """The settings that all cells share; prompts are rows of tokens by domain."""

    prompts: Mapping[str, Sequence[Sequence[int]]]
    tokens: int
    draft: str

    @property
    def words(self) -> str:
        """Returns the words that two runs must have in common to share a file."""
        return f"{sum(map(len, self.prompts.values()))} prompts, {self.tokens} tokens, {self.draft}"


def drafter(recipe: Recipe, options: Mapping[str, Any], draft: str) -> Any:
    """The recipe's own drafter with `options`, or the draft model."""
    target, model = pair(draft)
    if recipe.drafter == "model":
        return create("drafters", "model", {"backend": model})
    needs = {"target": target, "vocab_size": target.vocab_size}
    known = {name: needs[name] for name in needs if name in _options(recipe.drafter)}
    return create("drafters", recipe.drafter, {**known, **options})


def _options(name: str) -> Mapping[str, Any]:
    from draftwood.protocols import registry

    return registry.options("drafters", name)


def measure(cell: Cell, task: Task, own: Mapping[str, Any]) -> dict[str, Any]:
    """The rounds of every prompt in a cell, and the mean size of its trees."""
    target, _ = pair(task.draft)
    setting = cell.setting
    known = {"temperature": cell.temperature, "draft_temperature": setting.draft_temperature}
    recipe = build(setting, known)
    sampling = SamplingParams(temperature=cell.temperature)
    decoder = recipe.decoder(target, drafter(recipe, own, task.draft))
    writer = Speculative(decoder, sampling, recipe.draft_sampling(sampling))
    texts = {
        domain: [writer.write(prompt, task.tokens, seed) for seed, prompt in enumerate(prompts)]
        for domain, prompts in task.prompts.items()
    }
    rounds = {domain: [text.rounds for text in written] for domain, written in texts.items()}
    drafted = sum(text.drafted or 0 for written in texts.values() for text in written)
    return {
        "version": VERSION,
        "task": task.words,
        "key": cell.key,
        "temperature": cell.temperature,
        "budget": cell.budget,
        "label": setting.label,
        "options": setting.words,
        # The first comes with the prompt's own pass.
        "tokens": task.tokens - (1 if target.gives_first_logits else 0),
        "nodes": drafted / sum(map(sum, rounds.values())),
        "rounds": rounds,
    }


def build(setting: Setting, known: Mapping[str, Any]) -> Recipe:
    """The recipe of a setting, with the `known` options that it has."""
    from draftwood.protocols import registry

    has = registry.options("recipes", setting.recipe)
    recipe: Recipe = create(
        "recipes", setting.recipe, {**{k: v for k, v in known.items() if k in has}, **setting.options}
    )
    return attrs.evolve(recipe, draft_temperature=setting.draft_temperature or recipe.draft_temperature)


def recipes(
    data: Annotated[Path, typer.Option(help="Folder with the prompts of the five data sets.")],
    to: Annotated[Path, typer.Option("--to", help="Finished cells, a line each; what is there is kept.")],
    prompts: Annotated[int, typer.Option(help="Prompts a domain.", min=1)] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens a text.", min=1)] = 32,
    temperatures: Annotated[list[float] | None, typer.Option("--temperature", help="Repeatable.")] = None,
    budget: Annotated[list[int] | None, typer.Option(help="Repeatable.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Only these recipes; repeatable.")] = None,
    draft: Annotated[str, typer.Option(help="The draft model of the zoo.")] = models.DRAFT,
    draft_temperature: Annotated[
        float | None, typer.Option(help="The draft's own; default: the target's, 1 at 0.", min=0.01)
    ] = None,
    index: Annotated[Path | None, typer.Option(help="An index for REST.")] = None,
    heads: Annotated[Path | None, typer.Option(help="Heads for Medusa.")] = None,
    skip: Annotated[str | None, typer.Option(help="Layers for Draft & Verify to skip.")] = None,
    processes: Annotated[int, typer.Option(help="Cells at a time.", min=1)] = 1,
    table: Annotated[Path | None, typer.Option("--csv", help="Write every cell's figures here.")] = None,
) -> None:
    """Tokens a round of every recipe at equal budgets, with 95 % intervals.

    \b
    Examples:
      python -m benchmarks recipes --data data/ --to cells.jsonl --processes 2
      python -m benchmarks recipes --data data/ --to cells.jsonl --temperature 0 --only dyspec
    """
    for size in budget or BUDGETS:
        check_budget(size)
    torch.set_num_threads(1)
    console = Console(stderr=True)
    chosen, calibration = split(data, prompts)
    task = Task(chosen, tokens, draft)
    drafters: dict[str, dict[str, Any]] = {"prompt-lookup": {}}
    drafters |= {"rest": {"index": index}} if index else {}
    drafters |= {"medusa": {"heads": heads}} if heads else {}
    drafters |= {"draft-verify": {"skip": skip}} if skip else {}
    cells = []
    for temperature in temperatures or TEMPERATURES:
        vector = calibrate(
            calibration,
            temperature=temperature,
            tokens=64,
            draft=draft,
            draft_temperature=draft_temperature,
        )
        typer.echo(f"temperature {temperature}: acceptance " + " ".join(f"{chance:.3f}" for chance in vector))
        sizes = budget or BUDGETS
        shares = None
        if temperature and (not only or "race" in only):
            largest = min(max(sizes), max(BUDGETS))  # larger probes take long and tell little more
            shares = calibrated_shares(
                calibration,
                temperature=temperature,
                draft=draft,
                largest=largest,
                draft_temperature=draft_temperature,
            )
        for size in sizes:
            drafter_options: dict[str, dict[str, Any]] = {name: {} for name in drafters}
            depth = DEPTHS.get(size, 16)
            tried = settings(
                size,
                temperature=temperature,
                acceptance=vector,
                shape=best_sorted_shape(shares, budget=size, depth=depth)[0] if shares else None,
                drafter_options=drafter_options,
            )
            cells += [
                Cell(
                    temperature,
                    size,
                    attrs.evolve(one, draft_temperature=one.draft_temperature or draft_temperature),
                )
                for one in tried
                if not only or one.recipe in only
            ]
    done = {cell["key"]: cell for cell in stored(to, task)}
    missing = [cell for cell in cells if cell.key not in done]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running = [
            pool.submit(measure, cell, task, drafters.get(cell.setting.recipe, {})) for cell in missing
        ]
        for cell in watched(_written(running, to), "decoding", total=len(running), console=console):
            done[cell["key"]] = cell
    finished = [done[cell.key] for cell in cells]
    _show(finished, draft)
    if table is not None:
        _write(finished, table)


def _written(running: Sequence[Future[dict[str, Any]]], to: Path) -> Iterator[dict[str, Any]]:
    """Cells as they finish, each on disk before it is handed on."""
    for finished in as_completed(running):
        cell = finished.result()
        with to.open("a") as file:
            file.write(json.dumps(cell) + "\n")
        yield cell


def stored(file: Path, task: Task) -> list[dict[str, Any]]:
    """The cells in `file`, none where there is no file.

    Raises:
        InvalidInput: a line that is no cell of this task and version; the message names it.
    """
    cells = []
    for number, line in enumerate(file.read_bytes().splitlines() if file.exists() else [], start=1):
        try:
            cell = parse_json(line)
        except ValueError as error:
            raise InvalidInput(
                f"{str(file)!r}, line {number}, is not JSON ({error}); delete it to measure it again."
            ) from error
        if not isinstance(cell, dict) or (cell.get("version"), cell.get("task")) != (VERSION, task.words):
            raise InvalidInput(
                f"{str(file)!r}, line {number}, is no cell of version {VERSION} of {task.words}; name "
                "another file with --to, and `python -m benchmarks recipes` measures them anew."
            )
        cells.append(cell)
    return cells


def _rounds(cell: Mapping[str, Any]) -> Tensor:
    return torch.tensor(
        [count for counts in cell["rounds"].values() for count in counts], dtype=torch.float64
    )


def efficiency(cell: Mapping[str, Any]) -> tuple[float, float, float]:
    """Tokens a round with its interval."""
    rounds = _rounds(cell)
    return interval(torch.full_like(rounds, cell["tokens"]), rounds)


def best(cells: Sequence[Mapping[str, Any]]) -> dict[tuple[float, int, str], Mapping[str, Any]]:
    """Returns the setting with the most tokens per round for every label."""
    chosen: dict[tuple[float, int, str], Mapping[str, Any]] = {}
    for cell in cells:
        key = (cell["temperature"], cell["budget"], cell["label"])
        if key not in chosen or efficiency(cell)[0] > efficiency(chosen[key])[0]:
            chosen[key] = cell
    return chosen


def _write(cells: Sequence[Mapping[str, Any]], to: Path) -> None:
    """Every cell's figures as CSV."""
    with to.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(
            [
                "temperature",
                "budget",
                "recipe",
                "options",
                "nodes",
                "tokens_per_round",
                "low",
                "high",
                "prompts",
                "tokens",
            ]
        )
        for cell in cells:
            figures = [f"{value:.4f}" for value in (cell["nodes"], *efficiency(cell))]
            named = [cell[name] for name in ("temperature", "budget", "label", "options")]
            lines.writerow([*named, *figures, len(_rounds(cell)), cell["tokens"]])


def _show(cells: Sequence[Mapping[str, Any]], draft: str) -> None:
    chosen = best(cells)
    count = len(_rounds(cells[0]))
    typer.echo(
        f"{device_name()}: {models.TARGET} with {draft}, {count} prompts of {cells[0]['tokens']} tokens"
    )
    budgets = sorted({cell["budget"] for cell in cells})
    for temperature in sorted({cell["temperature"] for cell in cells}):
        typer.echo(f"\ntemperature {temperature}: tokens a round (95 % interval)")
        typer.echo(f"{'':<26}" + "".join(f"{f'{budget} nodes':>23}" for budget in budgets))
        for label in dict.fromkeys(cell["label"] for cell in cells if cell["temperature"] == temperature):
            texts = []
            for budget in budgets:
                cell = chosen.get((temperature, budget, label))
                mean, low, high = efficiency(cell) if cell else (0.0, 0.0, 0.0)
                texts.append(f"{mean:.2f} ({low:.2f} to {high:.2f})" if cell else "")
            typer.echo(f"{label:<26}" + "".join(f"{text:>23}" for text in texts))
    typer.echo("\nwhat the papers find")
    for upper, lower, temperatures, sizes, source in ORDERINGS:
        for temperature in temperatures:
            for budget in sizes:
                above, below = (
                    chosen.get((temperature, budget, upper)),
                    chosen.get((temperature, budget, lower)),
                )
                if above and below:
                    ratio, low, high = interval(_rounds(below), _rounds(above))
                    word = "yes" if low > 1 else "no" if high < 1 else "within the interval"
                    gain = f"{ratio - 1:+.1%} ({low - 1:+.1%} to {high - 1:+.1%})"
                    typer.echo(
                        f"{upper} above {lower} at {temperature}, {budget} nodes ({source}): {gain}: {word}"
                    )
