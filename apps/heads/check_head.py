"""`draftwood check-head`: whether a head reads its target as it was trained to."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from draftwood.apps.files.datasets import Prompt, read
from draftwood.apps.files.text import decode
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.chat import AsChat, answer_tokens, encoded, encoded_chat
from draftwood.apps.models.prompts import PROMPTS
from draftwood.apps.terminal.cli_errors import FAILED
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.zoo.distil.rows import Rows, continued
from draftwood.zoo.heads.floors import Floors, floors_of
from draftwood.zoo.heads.loading import load_for
from draftwood.zoo.heads.parts import Added, added_by_parts
from draftwood.zoo.heads.settings import AS_CONFIGURED, Found, compared
from draftwood.zoo.heads.verdict import verdict_of

_LONGEST = 256  # tokens of a prompt that are read


def check_head(
    target: Annotated[str, typer.Argument(help="The model that it was made for: folder, zoo or hub name.")],
    head: Annotated[str, typer.Argument(help="Folder or hub name of a head, or one of the zoo.")],
    data: Annotated[
        Path | None,
        typer.Option(help="A file of prompts, .jsonl or text; default: built-in ones.", show_default=False),
    ] = None,
    prompts: Annotated[int, typer.Option(help="Prompts to use.", min=2)] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens that the target writes after each prompt.", min=8)] = 64,
    depths: Annotated[int, typer.Option(help="Drafted tokens that are compared.", min=1)] = 4,
    chat: AsChat = False,
    dtype: Annotated[
        models.Dtype, typer.Option(help="auto: float32 on a CPU, else as the weights are stored.")
    ] = models.Dtype.auto,
    device: models.Device = None,
    trust_remote_code: models.TrustRemoteCode = False,
) -> None:
    """Say whether a head reads its target as it was trained to.

    TARGET continues prompts greedily, and HEAD guesses on: as its file says, with other taps, positions,
    norms and rotations, with its map read otherwise, and with the target's own embeddings and output head.
    A wrong setting raises no error anywhere, but few drafted tokens are accepted. Parts of the head are left
    out too: one that was trained helps. Says whether the head is right, weak or broken, and exits with 1
    only for a broken one: another setting is clearly better, a part harms, or chance guesses as much. Names
    the cause.

    \b
    Examples:
      draftwood check-head llama-7m llama-7m-eagle3
      draftwood check-head big/ big/  # the MTP layer in its own checkpoint
      draftwood check-head big/ head/ --data questions.jsonl --dtype bfloat16
    """
    models.quiet()
    _check_order(target, head)
    loaded = models.load(
        target, None, tokenizer=None, dtype=dtype, device=device, trust_remote_code=trust_remote_code
    )
    model = getattr(loaded.target, "model", None)
    if not callable(getattr(model, "generate", None)):
        raise UnsupportedModel(f"{target!r} is no model that generate() runs; a head is checked on one.")
    made = load_for(models.locate(head), loaded.target)
    asked = _prompts(data, prompts)
    if chat:
        given = [_last_turn(model, loaded.tokenizer, prompt, tokens) for prompt in asked]
    else:
        given = encoded(loaded.tokenizer, [prompt.text for prompt in asked], chat=False)
    rows = [_continued(model, ids, tokens) for ids in given]
    floors = floors_of(rows)
    found = compared(model, made, rows, depths=depths)
    added = added_by_parts(model, made, rows, depths=depths)
    _show(made, found, floors, added, len(rows))
    verdict = verdict_of(model, made, rows, found, floors, added)
    to_stderr(verdict.sentence)
    if verdict.broken:
        raise typer.Exit(FAILED)


def _check_order(target: str, head: str) -> None:
    """Refuse a head in the place of its target."""
    if drafters.names_head(target) and not drafters.names_head(head):
        raise InvalidInput(
            f"{target!r} is a head and {head!r} is none, so the two are swapped; give the target first: "
            f"draftwood check-head {head} {target}."
        )


def _prompts(file: Path | None, count: int) -> list[Prompt]:
    if file is not None:
        return read(file).spread(count)
    built_in = [text for texts in zip(*PROMPTS.values(), strict=False) for text in texts]
    # Of the few built-in prompts, shorter ones make more.
    cut = [text[: len(text) * part // 4] for part in (4, 3, 2, 1) for text in built_in]
    return [Prompt(text) for text in cut if text.strip()][:count]


def _last_turn(model: Any, tokenizer: Any, prompt: Prompt, tokens: int) -> list[int]:
    """Returns the last turn of a conversation; earlier answers are the file's or the target's greedy ones."""
    answers: list[str] = []
    for turn in range(len(prompt.chat) - 1):
        if prompt.is_answered(turn):
            answers.append("")
            continue
        rows = _continued(model, encoded_chat(tokenizer, prompt, answers), tokens)
        answers.append(decode(tokenizer, answer_tokens(tokenizer, rows.tokens[0, rows.prompt :].tolist())))
    return encoded_chat(tokenizer, prompt, answers)


def _continued(model: Any, ids: Sequence[int], tokens: int) -> Rows:
    import torch

    prompt = torch.tensor([list(ids)[-_LONGEST:]])
    return continued(model, prompt, new_tokens=tokens, temperature=0.0, seed=0)


def _show(head: Any, found: list[Found], floors: Floors, added: Sequence[Added], prompts: int) -> None:
    from rich import box
    from rich.table import Table

    from draftwood.apps.terminal.plain_console import PlainConsole

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    table.add_column("setting", overflow="fold")
    for depth in range(len(found[0].by_depth)):
        table.add_column(f"token {depth + 1}", justify="right")
    table.add_column("vs configured", justify="right")
    for one in found:
        beside = "" if one.name == AS_CONFIGURED else f"{one.gain:+.3f}"
        table.add_row(one.name, *(f"{share:.3f}" for share in one.by_depth), beside)
    for part in (one for one in added if not one.piece or one.doubtful or one.lopsided):
        shares = (f"{share:.3f}" for share in part.by_depth)
        table.add_row(f"without {part.name}", *shares, f"{-part.gain:+.2f} nats")
    for name, share in (("the most frequent token", floors.unigram), ("prompt lookup", floors.lookup)):
        table.add_row(f"without a head: {name}", f"{share:.3f}")
    console = PlainConsole()
    longest = getattr(head, "max_positions", None)
    made_for = "texts of any length" if longest is None else f"{longest} tokens"
    console.print(
        f"Share of the target's greedy tokens that the head guesses, {prompts} prompts, where its earlier "
        f"guesses are right, and without each part the log-likelihood of these tokens; what is clearly worse "
        f"is compared on the first ones only. It was made for {made_for}."
    )
    console.print(table)
