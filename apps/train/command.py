"""`draftwood train`: make a head that drafts for a target."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import attrs
import typer

from draftwood.apps.distil import row_options, run, show, target_text, texts
from draftwood.apps.files.machine import device_name, versions
from draftwood.apps.models import by_name as models
from draftwood.apps.terminal.shown import to_stderr
from draftwood.apps.train.contest import contest
from draftwood.apps.train.kinds import Kind, Training, check_options, training_of
from draftwood.apps.train.report import report
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.base.whole_files import write_json
from draftwood.zoo.distil.rows import SHARD_TOKENS, RowPlan, Rows
from draftwood.zoo.heads.agreement import agreement

_CHECKPOINTS = 20


def train(
    kind: Annotated[Kind, typer.Argument(help="What is trained.", show_default=False)],
    target: row_options.Target,
    text: row_options.Text,
    out: Annotated[
        Path,
        typer.Argument(help="The head's folder; an interrupted run in it continues.", show_default=False),
    ],
    rows: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the target's text, which other heads can share; default: rows in OUT.",
            show_default=False,
        ),
    ] = None,
    tokens: row_options.Tokens = row_options.TOKENS,
    new_tokens: row_options.NewTokens = row_options.NEW_TOKENS,
    longest: Annotated[
        int | None,
        typer.Option(
            help="Tokens of the longest rows; default: 1500, or the target's limit.", show_default=False
        ),
    ] = None,
    steps: row_options.Steps = row_options.STEPS,
    batch: row_options.Batch = row_options.BATCH,
    depths: Annotated[
        int, typer.Option(help="How far it drafts in training: recycled states, or a block's tokens.", min=1)
    ] = 5,
    learning_rate: Annotated[
        float | None,
        typer.Option(
            help="Peak of the learning rate; default: 0.5 / the target's width; of a block "
            "drafter 1 / the width.",
            show_default=False,
        ),
    ] = None,
    intermediate: Annotated[
        int | None, typer.Option(help="Width of the head's MLP; default: the target's.", show_default=False)
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Layers of a block drafter; default: 1.", min=1, show_default=False)
    ] = None,
    markov_rank: Annotated[
        int | None,
        typer.Option(
            help="Rank of a block drafter's correction by the previous token (DSpark); 0: none; default: 32.",
            min=0,
            show_default=False,
        ),
    ] = None,
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(
            help="Tokens that an eagle3 head can propose, the most frequent ones; default: 32,000.",
            min=1,
            show_default=False,
        ),
    ] = None,
    taps: Annotated[
        str | None,
        typer.Option(
            help="Layers whose input is read, such as 2,16,29; default: 2, L/2 and L-3 of L, and of a block "
            "drafter L/2-1, L-2 and L-1. An MTP layer has none.",
            show_default=False,
        ),
    ] = None,
    seed: row_options.Seed = 0,
    dtype: Annotated[
        models.Dtype, typer.Option(help="Precision of the target and of the head's passes.")
    ] = models.Dtype.auto,
    device: models.Device = None,
    trust_remote_code: models.TrustRemoteCode = False,
) -> None:
    """Train a head that drafts for a target.

    TARGET continues prompts cut from TEXT at temperatures 0, 0.6 and 1. The head learns from these rows to
    guess on: eagle3 and mtp from the target's features and then from their own states, and block a few
    tokens at once. It is written to OUT, in bfloat16: eagle3 in the format of SafeAILab and SpecForge, block
    in z-lab's, mtp in that of Nemotron-H's MTP layers. The same command goes on with a run that was broken
    off.

    \b
    Examples:
      draftwood train eagle3 big/ notes.txt head
      draftwood train eagle3 big/ letters/ code.jsonl head --rows rows
      draftwood train block big/ notes.txt head --layers 2 --depths 7
      draftwood train mtp big/ notes.txt layer
      draftwood generate --target big/ --drafter head --prompt "Hi"
    """
    said = {
        "taps": _layers(taps),
        "draft_vocabulary": draft_vocabulary,
        "layers": layers,
        "markov_rank": markov_rank,
    }
    given = {name: value for name, value in said.items() if value is not None}
    check_options(kind, given)
    known = run.finished(out)
    files = texts.files_of(text)
    models.quiet()
    loaded = models.load(
        target, None, tokenizer=None, dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )
    teacher = _model(loaded.target, target)
    context = getattr(teacher.config, "max_position_embeddings", None)
    plan = RowPlan(
        shards=-(-tokens // SHARD_TOKENS),
        prompts=target_text.prompt_lengths(longest, new_tokens, context),
        new_tokens=new_tokens,
        seed=seed,
    )
    training = training_of(
        kind,
        teacher,
        options={"steps": steps, "batch": batch, "seed": seed},
        depths=depths,
        intermediate=intermediate,
        learning_rate=learning_rate,
        given=given,
        name=target,
        longest=max(plan.prompts) + new_tokens,
    )
    source = target_text.source(target, teacher, loaded.tokenizer, files, plan)
    described = {
        **source,
        "head": training.config,
        "shards": plan.shards,
        "recipe": attrs.asdict(training.options),
    }
    work = run.RunFolder(out, f"a run of train {kind}", described)
    work.check()
    if known:
        report(known)
        to_stderr(f"{out} is finished; choose another folder for another run.")
        return
    text_of_target = run.RunFolder(rows or out / run.ROWS, "rows of distil", source)
    text_of_target.check()
    streams = texts.streams(files, loaded.tokenizer, longest=max(plan.prompts))
    with work.opened():
        try:
            _train(loaded, training, streams, plan, text_of_target, out, target)
        except KeyboardInterrupt:
            to_stderr(f"The same command continues from the files in {out}.")
            raise


def _train(
    loaded: models.Loaded,
    training: Training,
    streams: dict[str, Any],
    plan: RowPlan,
    rows: run.RunFolder,
    out: Path,
    name: str,
) -> None:
    options, target = training.options, loaded.target.model
    learnt = {stream: tokens for stream, (tokens, _) in streams.items()}
    unseen = {stream: tokens for stream, (_, tokens) in streams.items()}
    with rows.opened():
        tests = target_text.shown(
            target, unseen, rows.folder / run.HELD_OUT, target_text.exam(plan), "writing the held-out rows"
        )
        shards = target_text.shown(target, learnt, rows.folder / run.TRAIN, plan, "writing rows")
    head = training.new(shards)
    state = show.learning(
        training.trained(
            target,
            head,
            shards,
            options=options,
            checkpoint=out / run.CHECKPOINT,
            every=max(1, options.steps // _CHECKPOINTS),
        ),
        total=options.steps,
    )
    content = {
        "format": run.FORMAT,
        "version": run.VERSION,
        "trained_for": name,
        "params": sum(weight.numel() for weight in head.parameters()),
        "tokens": state.tokens,
        "loss": state.loss,
        "rows": attrs.asdict(plan),
        "recipe": attrs.asdict(options),
        "agreement": _agreements(target, head, tests, training.depths),
        "machine": device_name(target.device),
        "versions": versions(),
    }
    run.save_beside(lambda part: training.save(head, part), out)
    to_stderr("Comparing the speed of a tree of the head with generate().")
    content["contest"] = contest(loaded, out, tests)
    write_json(out / run.REPORT, content)
    report(content)
    to_stderr(f"Use {out} with: draftwood generate --target {name} --drafter {out}")


def _agreements(target: Any, head: Any, tests: list[Rows], depths: int) -> list[dict[str, Any]]:
    head = head.to(target.dtype)
    return [
        {
            "prompt": shard.prompt,
            **attrs.asdict(agreement(target, head, [shard], depths=depths, without_loops=True)),
        }
        for shard in tests
    ]


def _model(backend: Any, name: str) -> Any:
    model: Any = getattr(backend, "model", None)
    if not callable(getattr(model, "generate", None)) or not backend.feature_layers:
        raise UnsupportedModel(
            f"{name!r} is no model that generate() runs and whose layers are found, which a head needs; "
            "distil a draft model."
        )
    return model.requires_grad_(False)


def _layers(words: str | None) -> tuple[int, ...] | None:
    try:
        return None if words is None else tuple(int(word) for word in words.split(","))
    except ValueError:
        raise InvalidInput(f"taps is {words!r}; give layers separated by commas, such as 2,16,29.") from None
