"""`draftwood distil`: train a draft to follow its target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from draftwood.apps.distil import pair, row_options, run, show, target_text, texts
from draftwood.apps.files.machine import device_name, versions
from draftwood.apps.models import by_name as models
from draftwood.apps.models import identity
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.whole_files import write_json
from draftwood.distributions.sampling import check_temperature
from draftwood.zoo.distil.fit import fit
from draftwood.zoo.distil.rows import SHARD_TOKENS, RowPlan, Rows
from draftwood.zoo.distil.training import TrainingOptions, trained

_TEMPERATURES = (0.0, 0.6, 1.0)
_WIDTH_TIMES_RATE = 0.192  # the zoo's drafts of width 96 learn best at 2e-3, and wider models lower
_CHECKPOINTS = 20


def distil(
    target: row_options.Target,
    draft: Annotated[
        str, typer.Argument(help="The same for the draft, which is smaller and has the target's tokenizer.")
    ],
    text: row_options.Text,
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            help="The new draft's folder; an interrupted run in it continues.",
            show_default=False,
        ),
    ],
    rows: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the target's text, which other drafts can share; default: rows in OUT.",
            show_default=False,
        ),
    ] = None,
    tokens: row_options.Tokens = row_options.TOKENS,
    new_tokens: row_options.NewTokens = row_options.NEW_TOKENS,
    longest: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the longest rows; default: 1500, or the models' limit.", show_default=False
        ),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="Temperature that the draft is for; repeatable; default: 0, 0.6 and 1.",
            min=0.0,
            show_default=False,
        ),
    ] = None,
    steps: row_options.Steps = row_options.STEPS,
    batch: row_options.Batch = row_options.BATCH,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Peak of the learning rate; default: 0.192 / the draft's width.", show_default=False
        ),
    ] = None,
    seed: row_options.Seed = 0,
    dtype: Annotated[
        models.Dtype, typer.Option(help="Precision of the target and of the draft's passes.")
    ] = models.Dtype.auto,
    device: models.Device = None,
    trust_remote_code: models.TrustRemoteCode = False,
) -> None:
    """Train a draft to follow its target.

    TARGET continues prompts cut from TEXT, short and long ones, at temperatures 0, 0.6 and 1, or those that
    are given. DRAFT learns from these rows to overlap with it, and is written to OUT. The same command goes
    on with a run that was broken off, wherever that was.

    \b
    Examples:
      draftwood distil big/ small/ notes.txt -o better-small
      draftwood distil big/ small/ letters/ code.jsonl -o out --dtype bfloat16
      draftwood distil big/ small/ a.txt -o out --temperature 0.6 --temperature 1
      draftwood generate --target big/ --drafter better-small --prompt "Hi"
    """
    served = tuple(temperature or _TEMPERATURES)
    for one in served:
        check_temperature(one)
    known = run.finished(out)
    files = texts.files_of(text)
    models.quiet()
    both = pair.load(target, draft, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
    plan = RowPlan(
        shards=-(-tokens // SHARD_TOKENS),
        temperatures=_turns(served),
        prompts=target_text.prompt_lengths(longest, new_tokens, both.context),
        new_tokens=new_tokens,
        seed=seed,
    )
    width = both.draft.get_input_embeddings().weight.shape[1]
    options = TrainingOptions(
        steps=steps,
        batch=batch,
        learning_rate=learning_rate or _WIDTH_TIMES_RATE / width,
        temperatures=_sampled(served) or (1.0,),
        seed=seed,
    )
    source = target_text.source(target, both.target, both.tokenizer, files, plan)
    description = {
        **source,
        "draft": draft,
        "draft_files": identity.of_model(draft),
        "shards": plan.shards,
        "recipe": attrs.asdict(options),
    }
    work = run.RunFolder(out, "a run of distil", description)
    work.check()
    if known:
        show.report(known)
        to_stderr(f"{out} is finished; choose another folder for another run.")
        return
    text_of_target = run.RunFolder(rows or out / run.ROWS, "rows of distil", source)
    text_of_target.check()
    streams = texts.streams(files, both.tokenizer, longest=max(plan.prompts))
    with work.opened():
        try:
            _distil(both, streams, plan, options, text_of_target, out, target)
        except KeyboardInterrupt:
            to_stderr(f"The same command continues from the files in {out}.")
            raise


def _sampled(temperatures: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({temperature for temperature in temperatures if temperature > 0}))


def _turns(temperatures: Sequence[float]) -> tuple[float, ...]:
    """Temperatures of the rows in turn: half of the rows are greedy where some are to be."""
    sampled = _sampled(temperatures)
    if 0 not in temperatures:
        return sampled
    return tuple(turn for temperature in sampled for turn in (0.0, temperature)) or (0.0,)


def _distil(
    both: pair.Pair,
    streams: dict[str, Any],
    plan: RowPlan,
    options: TrainingOptions,
    rows: run.RunFolder,
    out: Path,
    target: str,
) -> None:
    learnt = {name: stream for name, (stream, _) in streams.items()}
    unseen = {name: stream for name, (_, stream) in streams.items()}
    with rows.opened():
        tests = target_text.shown(
            both.target,
            unseen,
            rows.folder / run.HELD_OUT,
            target_text.exam(plan),
            "writing the held-out rows",
        )
        shards = target_text.shown(both.target, learnt, rows.folder / run.TRAIN, plan, "writing rows")
    checkpoint = out / run.CHECKPOINT
    before = _fits(both, tests)
    every = max(1, options.steps // _CHECKPOINTS)
    training = trained(both.target, both.draft, shards, options=options, checkpoint=checkpoint, every=every)
    state = show.learning(training, total=options.steps)
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
        "recipe": attrs.asdict(options),
        "before": before,
        "after": after,
        "machine": device_name(both.target.device),
        "versions": versions(),
    }
    write_json(out / run.REPORT, content)
    show.report(content)
    to_stderr(f"Use {out} with: draftwood generate --target {target} --drafter {out}")


def _fits(both: pair.Pair, tests: list[Rows]) -> list[dict[str, Any]]:
    return [
        {"prompt": shard.prompt, **attrs.asdict(fit(both.target, both.draft, [shard]))} for shard in tests
    ]
