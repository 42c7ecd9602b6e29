"""`draftwood tune`: the strategy and budget that pay for a pair of models on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from draftwood import PassCosts
from draftwood.apps.bench.plan import BenchPlan, data_sets
from draftwood.apps.bench.specs import Spec, contenders
from draftwood.apps.bench.specs import parse as parse_strategy
from draftwood.apps.bench.writers import Text
from draftwood.apps.files.machine import device_name, versions
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.terminal.options import assign, parse, split
from draftwood.apps.terminal.progress import progress
from draftwood.apps.terminal.shown import say, to_stderr
from draftwood.apps.tune.fit import fitted
from draftwood.apps.tune.measure import ContestResult, Estimate, TuneTrial, contest_result, pass_costs
from draftwood.apps.tune.trial import Candidates, most_gain, number_of
from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import check_writable, write_json
from draftwood.methods.tuned_method import FORMAT, VERSION, TunedModel
from draftwood.protocols import registry

STRATEGIES, BUDGETS = ("leviathan", "dyspec"), (2, 4, 8, 15, 31)
STREAMED = (8, 32, 64, 128, 256)
"""Budgets where weights are streamed: a pass over many nodes costs little more than one over few."""
_FINALISTS = 2  # candidates in the contest: the cost model may well confuse two that are close


def tune(
    to: Annotated[Path, typer.Option(help="The file to write.")] = Path("tuned.json"),
    target: Annotated[
        str, typer.Option(help="Model folder, GGUF file, hub name, or a model of the zoo.")
    ] = models.TARGET,
    drafter: Annotated[
        str,
        typer.Option(
            help="The same for the draft, or a drafter (registered or package.module:Name); its options "
            "come after colons."
        ),
    ] = models.DRAFT,
    strategy: Annotated[
        list[str] | None,
        typer.Option(
            help="A recipe to try, options after colons; repeatable; default: leviathan and dyspec.",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(
            help="Nodes of a tree to try; repeatable; default: 2 to 31, with --offload 8 to 256.",
            show_default=False,
        ),
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 0.0,
    data: Annotated[
        list[str] | None,
        typer.Option(help="A file of prompts as for bench; repeatable; default: built-in ones."),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts a file.")] = 4,
    new_tokens: Annotated[
        int, typer.Option(help="Tokens per text in the trial; twice as many in the contest.")
    ] = 32,
    seed: Annotated[int, typer.Option(help="Seed of everything that is drawn.")] = 0,
    dtype: Annotated[models.Dtype, typer.Option(help="Precision of the models.")] = models.Dtype.auto,
    rows: Annotated[
        str, typer.Option(help="Rows of the passes that are timed, with commas; the trial is of one row.")
    ] = "1",
    device: models.Device = None,
    offload: models.Offload = None,
    engine: models.Engine = models.EngineName.eager,
    trust_remote_code: models.TrustRemoteCode = False,
) -> None:
    """Find the strategy and budget that pay for a pair of models.

    Measures passes of both models, tries each candidate on your prompts, estimates its gain, and contests
    the best two against ordinary generate(). If that is faster, it says so, after a first look of about
    a minute if no candidate gains. draftwood generate --tuned FILE and draftwood.read_tuned read the file.

    \b
    Examples:
      draftwood tune
      draftwood tune --target big/ --drafter small/ --temperature 0.6
      draftwood tune --drafter prompt-lookup --strategy dyspec --budget 8
      draftwood tune --strategy rsd-s:width=4:depth=3 --strategy dyspec
      draftwood tune --target big/ --drafter small/ --offload tmp --dtype bfloat16
      draftwood tune --engine openvino --budget 4 --budget 8
      draftwood tune --rows 1,4,16,64
    """
    check_writable(to)
    counts = counts_of(rows)
    if new_tokens < 2:
        raise InvalidInput(f"new_tokens is {new_tokens}; ask for at least 2, as the first takes no round.")
    plan = BenchPlan(
        data=tuple(data or ()),
        prompts=prompts,
        temperatures=(temperature,),
        seed=seed,
        dtype=dtype,
        device=device or "",
    ).resolved()
    budgets = budget or (BUDGETS if offload is None else STREAMED)
    specs = candidates(strategy or STRATEGIES, drafter, budgets, temperature)
    sets = data_sets(plan)

    models.quiet()
    loaded = models.load(
        target,
        None if all(spec.strategy(temperature).drafter for spec in specs) else drafter,
        tokenizer=None,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        other_tokens=True,
        offload=offload,
        engine=engine,
    )
    texts = [prompt.text for data_set in sets.values() for prompt in data_set.prompts]
    tokens = loaded.tokenizer(texts)["input_ids"]
    _check_lengths(tokens, 2 * new_tokens, models.context(loaded.target))
    shared = models.shared_tokens(loaded, tokens)
    if shared is not None:
        to_stderr(loaded.token_map.described([token for row in tokens for token in row]))
    trial = TuneTrial(loaded, tokens, temperature, seed)
    found = measure(trial, specs, new_tokens, max(budgets), rows=counts)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "target": _model(target, loaded.target),
        **_choice(found, drafter, trial),
        "vocabulary": models.vocabulary_digest(loaded.tokenizer),
        "draft_vocabulary": shared and models.vocabulary_digest(loaded.draft_tokenizer),
        "temperature": temperature,
        "dtype": str(plan.dtype),
        "engine": str(engine),
        "contest": [attrs.asdict(one) for one in found.contest],
        "estimates": [attrs.asdict(one) for one in found.estimates],
        "pass_costs": attrs.asdict(found.costs),
        "settings": {
            "data": list(sets),
            "prompts": len(tokens),
            "new_tokens": new_tokens,
            "seed": seed,
            "offload": offload is not None,
            "shared_tokens": shared,
        },
        "machine": device_name(models.find_device(device)),
        "versions": versions(),
    }
    write_json(to, content)
    _show(found, content, to)


def candidates(words: Sequence[str], drafter: str, budgets: Sequence[int], temperature: float) -> list[Spec]:
    """Every recipe at every budget, drafted by `drafter` where that is no model."""
    for word in words:
        spec = parse_strategy(word)
        if spec.is_transformers or spec.parts:
            raise InvalidInput(f"{spec.name!r} is no recipe; give one of `draftwood strategies`.")
    name, words_of_drafter = split(drafter)
    if drafters.is_drafter(name):
        words = [":".join((word, f"drafter={name}", *words_of_drafter)) for word in words]
    return contenders(words, budgets, temperature)[1:]


def counts_of(rows: str) -> list[int]:
    """Returns the numbers of rows of an option such as `1,4,16`.

    Raises:
        InvalidInput: they are no numbers from 1.
    """
    try:
        counts = [int(word) for word in rows.split(",")]
    except ValueError:
        counts = [0]
    if min(counts) < 1:
        raise InvalidInput(f"--rows is {rows!r}; give numbers from 1 with commas, such as 1,4,16.")
    return counts


def _check_lengths(prompts: Sequence[Sequence[int]], new: int, most: int | None) -> None:
    for number, tokens in enumerate(prompts):
        if most is not None and len(tokens) + new > most:
            raise InvalidInput(
                f"Prompt {number} has {len(tokens)} tokens, which with {new} new ones exceeds the target's "
                f"context of {most}; give less --new-tokens, or other prompts."
            )


@attrs.frozen
class Found:
    """The result of the measurements.

    Attributes:
        spec: the best candidate.
        gain: its gain in the contest, or the expected one where there was no contest.
        costs: of passes.
        estimates: of all candidates that were tried, the largest expected gain first.
        contest: results of the best candidates; empty after a clear no.
        asked: number of all candidates.
    """

    spec: Spec
    gain: float
    costs: PassCosts
    asked: int
    estimates: Sequence[Estimate] = ()
    contest: Sequence[ContestResult] = ()


def measure(
    trial: TuneTrial, specs: Sequence[Spec], tokens: int, largest: int, *, rows: Sequence[int] = (1,)
) -> Found:
    """Measures passes, tries the candidates and contests the best; less where the answer is clearly no."""
    to_stderr(f"Timing passes over up to {largest + 1} tokens.")
    text = [token for prompt in trial.prompts for token in prompt]
    costs = pass_costs(trial.loaded, largest, rows, text, temperature=trial.temperature)
    to_stderr(_described(costs, largest))
    hopeful = [spec for spec in specs if most_gain(spec, trial, costs) > 1]
    if not hopeful:
        best = max(specs, key=lambda spec: most_gain(spec, trial, costs))
        return Found(best, most_gain(best, trial, costs), costs, len(specs))
    asked, specs = len(specs), fitted(hopeful, trial, tokens=tokens)
    # Small trees first: where passes are so slow that the look ends early, they tell most.
    candidates = Candidates(trial, costs, sorted(specs, key=lambda spec: spec.budget or 0))
    candidates.look(2 * tokens)
    if candidates.may_gain:
        candidates.try_all(tokens)
    estimates = candidates.estimates()
    finalists = [one.label for one in estimates[:_FINALISTS]]
    by_label = {spec.label: spec for spec in specs}
    if not candidates.may_gain:
        return Found(by_label[finalists[0]], estimates[0].gain, costs, asked, estimates)
    contest = _in_contest(trial, [by_label[label] for label in finalists], tokens=2 * tokens)
    results = [contest_result(label, contest, greedy=trial.temperature == 0) for label in finalists]
    best_result = max(results, key=lambda result: result.gain)
    return Found(by_label[best_result.label], best_result.gain, costs, asked, estimates, results)


def _described(costs: PassCosts, largest: int) -> str:
    target, draft = costs.target, costs.draft
    drafting = f"; a draft pass takes {1e3 * draft(1):.3g} ms" if draft else ""
    return (
        f"A target pass takes {1e3 * target(1):.3g} ms over 1 token and {1e3 * target(largest + 1):.3g} ms "
        f"over {largest + 1}{drafting}."
    )


def _in_contest(trial: TuneTrial, specs: Sequence[Spec], *, tokens: int) -> list[dict[str, Text]]:
    names = " and ".join(spec.label for spec in specs)
    to_stderr(
        f"Contest: {names} against generate(), {tokens} tokens after "
        f"{number_of(len(trial.prompts), 'prompt')}."
    )
    return list(progress(trial.contest(specs, tokens=tokens), "Race", total=len(trial.prompts)))


def _choice(found: Found, drafter: str, trial: TuneTrial) -> dict[str, Any]:
    """Recipe, drafter and gain as the file has them; no recipe where ordinary decoding is faster."""
    spec = found.spec
    chosen = spec.strategy(trial.temperature)
    words = {name: word for name, word in parse(spec.options).items() if name != "drafter"}
    known = registry.options("recipes", spec.name)
    own = {name: word for name, word in words.items() if name in known}
    if chosen.draft_temperature is not None:  # which the file has in addition to the options
        own.pop("draft_temperature", None)
    (options,) = assign(own, [("recipes", spec.name)])
    pays = bool(found.contest) and found.gain > 1
    return {
        "draft": None if chosen.drafter else _model(drafter, trial.loaded.draft),
        "recipe": spec.name if pays else None,
        "options": options if pays else {},
        "draft_temperature": chosen.draft_temperature if pays else None,
        "drafter": chosen.drafter or "model",
        "drafter_options": chosen.drafter_options,
        "gain": found.gain,
    }


def _model(name: str, backend: Any) -> dict[str, Any]:
    where = str(Path(name).resolve()) if Path(name).exists() else name
    return attrs.asdict(TunedModel(where, backend.vocab_size, backend.weight_bytes))


def _show(found: Found, content: dict[str, Any], to: Path) -> None:
    from draftwood.apps.terminal.plain_console import PlainConsole

    if found.estimates:
        PlainConsole().print(_table(found.estimates))
    say(_answer(found))
    if any(one.label == found.spec.label and one.equal is False for one in found.contest):
        to_stderr(
            f"Some text of {found.spec.label} differs from that of generate(), as rounding may make it."
        )
    drafter = content["drafter"]
    named = f" --drafter {drafter}" if ":" in drafter else ""  # a file's class runs where a caller names it
    to_stderr(f"Use {to} with: draftwood generate --tuned {to}{named}")


def _answer(found: Found) -> str:
    """Returns the sentence that the command ends with."""
    name, no = found.spec.label, "Ordinary decoding is faster than all that was tried"
    if not found.estimates:
        return (
            f"{no}: passes of the draft and of the target over a tree cost so much that {name} would have "
            f"{found.gain:.2f} times as many tokens per second even if every level of its tree were accepted."
        )
    expected = next(one for one in found.estimates if one.label == name)
    if not found.contest:
        return (
            f"{no}: after {number_of(expected.prompts, 'prompt')} none of {len(found.estimates)} candidates "
            f"(of {found.asked}) came near its speed, so there was no contest. The best, {name}, would have "
            f"{found.gain:.2f} times as many tokens per second."
        )
    result = next(one for one in found.contest if one.label == name)
    ratio = (
        f"{result.gain:.2f} times the tokens per second of ordinary decoding ({expected.gain:.2f} expected), "
        f"faster on {result.won} of {result.prompts} prompts"
    )
    return f"Take {name}: {ratio}." if result.gain > 1 else f"{no}: {name}, the best, had {ratio}."


def _table(estimates: Sequence[Estimate]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("expected", overflow="fold", min_width=10)
    for heading in ("gain", "tokens/round", "nodes", "draft ms", "target ms", "other ms"):
        table.add_column(heading, justify="right")
    for one in estimates:
        times = (one.draft_seconds, one.target_seconds, one.other_seconds)
        figures = (one.gain, one.tokens_per_round, one.tree_size, *(1000 * seconds for seconds in times))
        table.add_row(one.label, *(f"{figure:.2f}" for figure in figures))
    return table
