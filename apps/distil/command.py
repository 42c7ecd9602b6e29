"""`draftwood distil`: train a draft to follow its target."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from statistics import median_low
from typing import Annotated, Any

import attrs
import typer

from draftwood.apps import models, trace
from draftwood.apps.cli_errors import to_stderr
from draftwood.apps.distil import pair, run, show, texts
from draftwood.apps.machine import device_name, versions
from draftwood.errors import InvalidInput
from draftwood.zoo.distil.fit import fit
from draftwood.zoo.distil.rows import SHARD_TOKENS, RowPlan, Rows, written
from draftwood.zoo.distil.training import Recipe, trained

_SHORT = (32, 96, 160)  # prompts of short rows
_LONGEST = 1500
_WIDTH_TIMES_RATE = 0.192  # the zoo's drafts of width 96 learn best at 2e-3, and wider models lower
_CHECKPOINTS = 20


def distil(
    target: Annotated[str, typer.Argument(help="Model folder, hub name, or a model of the zoo.")],
    draft: Annotated[str, typer.Argument(help="The same, of fewer weights and with the same tokenizer.")],
    text: Annotated[
        list[Path],
        typer.Argument(
            help="Text (.txt, .txt.gz, .jsonl) or folders of it; each is drawn from equally often.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", help="The new draft's folder; a run broken off in it goes on.", show_default=False
        ),
    ],
    rows: Annotated[
        Path | None,
        typer.Option(
            help="A folder for what the target writes, which other drafts can share; default: rows in OUT.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the rows, prompts included.", min=1)] = 200
    * SHARD_TOKENS,
    new_tokens: Annotated[int, typer.Option(help="Tokens that the target writes in a row.", min=2)] = 128,
    longest: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the longest rows; default: 1500, or what the models can.", show_default=False
        ),
    ] = None,
    steps: Annotated[int, typer.Option(help="Training steps.", min=1)] = 4000,
    batch: Annotated[int, typer.Option(help="Tokens of a step.", min=1)] = 3072,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Its peak; default: 0.192 / the draft's width.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of all that is drawn.")] = 0,
    dtype: Annotated[
        models.Dtype, typer.Option(help="Precision of the target and of the draft's passes.")
    ] = models.Dtype.auto,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1; default: what there is.")] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code that comes with the models.")
    ] = False,
) -> None:
    """Train a draft to follow its target.

    TARGET continues prompts cut from TEXT, short and long ones, at temperatures 0, 0.6 and 1. DRAFT learns
    from these rows to overlap with it, and is written to OUT. The same command goes on with a run that was
    broken off, wherever that was.

    \b
    Examples:
      draftwood distil big/ small/ notes.txt -o better-small
      draftwood distil big/ small/ letters/ code.jsonl -o out --dtype bfloat16
      draftwood generate --target big/ --drafter better-small --prompt "Hi"
    """
    known = run.finished(out)
    files = texts.files_of(text)
    models.quiet()
    both = pair.load(target, draft, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    plan = RowPlan(
        shards=-(-tokens // SHARD_TOKENS),
        prompts=_prompts(longest, new_tokens, both.context),
        new_tokens=new_tokens,
        seed=seed,
    )
    width = both.draft.get_input_embeddings().weight.shape[1]
    recipe = Recipe(
        steps=steps, batch=batch, learning_rate=learning_rate or _WIDTH_TIMES_RATE / width, seed=seed
    )
    source = {
        "target": target,
        "precision": str(both.target.dtype),
        "vocabulary": models.vocabulary_digest(both.tokenizer),
        "texts": texts.identity(files),
        "rows": attrs.asdict(attrs.evolve(plan, shards=0)),
    }
    description = {**source, "draft": draft, "shards": plan.shards, "recipe": attrs.asdict(recipe)}
    work = run.Work(out, "a run of distil", description)
    work.check()
    if known:
        show.report(known)
        to_stderr(f"{out} is finished; choose another folder for another run.")
        return
    text_of_target = run.Work(rows or out / run.ROWS, "rows of distil", source)
    text_of_target.check()
    streams = texts.streams(files, both.tokenizer, longest=max(plan.prompts))
    for one in (work, text_of_target):
        one.begin()
    with run.alone(out):
        try:
            _distil(both, streams, plan, recipe, text_of_target.folder, out, target)
        except KeyboardInterrupt:
            to_stderr(f"The same command goes on from what stands in {out}.")
            raise


def _prompts(longest: int | None, new: int, context: int | None) -> tuple[int, ...]:
    """Lengths of prompts: short ones, and between them two of which rows become long."""
    length = longest or min(_LONGEST, context or _LONGEST)
    if context is not None and length > context:
        raise InvalidInput(
            f"longest is {length} but the models were made for {context} tokens; give at most that."
        )
    short = tuple(prompt for prompt in _SHORT if prompt + new <= length)
    if not short:
        raise InvalidInput(
            f"Rows of {length} tokens have no room for a prompt of {_SHORT[0]} and {new} new tokens; give a "
            "smaller --new-tokens or a larger --longest."
        )
    most = length - new
    if most <= 2 * _SHORT[-1]:
        return short
    return (_SHORT[0], length * 2 // 3, _SHORT[1], most, _SHORT[2])


def _distil(
    both: pair.Pair,
    streams: dict[str, Any],
    plan: RowPlan,
    recipe: Recipe,
    folder: Path,
    out: Path,
    target: str,
) -> None:
    learnt = {name: stream for name, (stream, _) in streams.items()}
    unseen = {name: stream for name, (_, stream) in streams.items()}
    tests = _written(both, unseen, folder / run.HELD_OUT, _exam(plan), "writing what is held out")
    shards = _written(both, learnt, folder / run.TRAIN, plan, "writing rows")
    checkpoint = out / run.CHECKPOINT
    before = _fits(both, tests)
    every = max(1, recipe.steps // _CHECKPOINTS)
    training = trained(both.target, both.draft, shards, recipe=recipe, checkpoint=checkpoint, every=every)
    run_through = show.shown(
        training,
        "training",
        total=recipe.steps,
        at=lambda now: now.step,
        say=lambda now: f"loss {now.loss:.3f}",
    )
    state = deque(run_through, maxlen=1).pop()
    after = _fits(both, tests)
    run.save_draft(both.draft.to(both.saved), both.tokenizer, out)
    content = {
        "format": run.FORMAT,
        "version": run.VERSION,
        "distilled_from": target,
        "params": sum(weight.numel() for weight in both.draft.parameters()),
        "tokens": state.tokens,
        "loss": state.loss,
        "rows": attrs.asdict(plan),
        "recipe": attrs.asdict(recipe),
        "before": before,
        "after": after,
        "machine": device_name(both.target.device),
        "versions": versions(),
    }
    trace.write_json(out / run.REPORT, content)
    show.report(content)
    to_stderr(f"{out}: draftwood generate --target {target} --drafter {out} takes it.")


def _written(both: pair.Pair, streams: dict[str, Any], folder: Path, plan: RowPlan, what: str) -> list[Rows]:
    return list(show.shown(written(both.target, streams, folder, plan=plan), what, total=plan.shards))


def _exam(plan: RowPlan) -> RowPlan:
    """What is held out: every temperature behind middling and behind the longest prompts."""
    temperatures = tuple(sorted(set(plan.temperatures)))
    prompts = tuple(sorted({median_low(plan.prompts), max(plan.prompts)}))
    return attrs.evolve(
        plan,
        shards=len(temperatures) * len(prompts),
        temperatures=temperatures,
        prompts=prompts,
        seed=plan.seed + 1,
    )


def _fits(both: pair.Pair, tests: list[Rows]) -> list[dict[str, Any]]:
    return [
        {"prompt": shard.prompt, **attrs.asdict(fit(both.target, both.draft, [shard]))} for shard in tests
    ]
