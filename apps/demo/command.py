"""`draftwood demo`: a real model writes through draft trees, as `generate` would, and faster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from draftwood import SamplingParams
from draftwood.apps.files.text import IncrementalText
from draftwood.apps.models import by_name as models
from draftwood.apps.models import drafters_by_name as drafters
from draftwood.apps.models.prompts import interleaved
from draftwood.apps.terminal.cli_errors import FAILED
from draftwood.apps.terminal.progress import watched
from draftwood.base.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from draftwood.apps.demo.contest import ContestText, Result
    from draftwood.apps.files.machine import Pair, PassCost

_NODES = 16  # nodes of the tree pass that is timed; the strategies' trees are about that large
_RACE_SECONDS = 60.0  # what the contest should take, by the measured passes
_LATEST = 90.0  # when it ends with the prompt at hand, should the machine have become slower
_PAYS = 1.05  # a ratio below this is no gain worth the name

Prompts = Sequence[Sequence[int]]


def demo(
    prompts: Annotated[int, typer.Option(help="Built-in prompts to use.", min=1, max=6)] = 6,
    tokens: Annotated[
        int | None, typer.Option(help="Tokens per text; default: what fits in about a minute.")
    ] = None,
    parameters: Annotated[
        float, typer.Option(help="Size that the target is widened to for the contest.")
    ] = 350e6,
    head: Annotated[
        str | None,
        typer.Option(help="A head of llama-7m that drafts the first text: llama-7m-eagle3, llama-7m-dspark."),
    ] = None,
    device: models.Device = None,
    offload: Annotated[
        bool,
        typer.Option(
            "--offload", help="Contest with the target's weights on the disk, streamed in every pass."
        ),
    ] = False,
) -> None:
    """Compare draft trees with generate(): the texts and the speed.

    A small Llama first writes a text through draft trees. Then every strategy's text is compared with
    that of generate(), in float32. Then the target is widened to a size where passes cost what they
    cost in practice, and the contenders contest.

    \b
    Examples:
      draftwood demo
      draftwood demo --prompts 3 --tokens 32 --device cpu
      draftwood demo --head llama-7m-eagle3
      draftwood demo --offload
    """
    if tokens is not None and tokens < 1:
        raise InvalidInput(f"--tokens is {tokens}; ask for at least 1.")
    if head is not None and not (drafters.drafter_of(head) or ("", {}))[1]:
        raise InvalidInput(
            f"--head is {head!r}, which is no head; give a folder with one, llama-7m-eagle3 or "
            "llama-7m-dspark."
        )
    torch_device = models.find_device(device)
    models.quiet()
    from draftwood import zoo
    from draftwood.apps.files.machine import device_name, versions
    from draftwood.apps.terminal.plain_console import PlainConsole

    console = PlainConsole(lines=True)
    installed = versions()
    console.print(
        f"draftwood {installed['draftwood']}, torch {installed['torch']}, "
        f"transformers {installed['transformers']}; {device_name(torch_device)}"
    )
    target: Any = zoo.load(models.TARGET)
    draft: Any = zoo.load(models.DRAFT)
    target, draft = target.to(torch_device), draft.to(torch_device)
    tokenizer = zoo.tokenizer()
    encoded = [tokenizer(text)["input_ids"] for text in interleaved(prompts)]
    _stream(console, target, draft, tokenizer, encoded[0], tokens or 64, head=head)
    if not _show_equality(console, target, draft, encoded, tokens or 48):
        raise typer.Exit(FAILED)
    pair = _widened(console, target, draft, parameters)
    if offload:
        from draftwood.apps.demo.offloaded import contest_offloaded

        contest_offloaded(console, pair, tokenizer, encoded)
        return
    texts = _contest(console, pair, encoded, tokens or _fitting(pair.cost, len(encoded)))
    _show_contest(console, texts, pair.cost)


def _stream(
    console: Console,
    target: Any,
    draft: Any,
    tokenizer: Any,
    prompt: Sequence[int],
    tokens: int,
    *,
    head: str | None,
) -> None:
    """One text as it is committed, with the accepted tokens in colour."""
    from draftwood.apps.demo.contest import DYSPEC, METHODS, decoder

    method = METHODS[DYSPEC]
    console.print("\nA Llama of 7 million parameters continues a prompt. ", end="")
    console.print("Green", style="green", end="")
    console.print(" tokens were drafted and accepted, the others are the target's own.\n")
    shown = IncrementalText(tokenizer)
    console.print(shown.add(prompt), style="dim", end="")
    for finished_round in decoder(target, draft, method, head=head).stream(
        [list(prompt)],
        max_new_tokens=tokens,
        draft_sampling=SamplingParams(temperature=method.draft_temperature),
    ):
        record = finished_round.rows[0]
        for position, token in enumerate(record.tokens):
            accepted = position < record.outcome.accepted
            console.print(shown.add([token]), style="green" if accepted else None, end="")
    console.print(shown.rest())


def _show_equality(console: Console, target: Any, draft: Any, prompts: Prompts, tokens: int) -> bool:
    """Compare every strategy's text with that of `generate`, in float32; says so and returns it."""
    from draftwood.apps.demo.contest import ORDINARY, contest, result, writers

    entrants = writers(target, draft)
    runs = contest(entrants, prompts, tokens=tokens)
    texts = watched(runs, "comparing", total=len(entrants) * len(prompts), console=console)
    results = [result(texts, name) for name in entrants if name != ORDINARY]
    console.print(f"\nIn float32, {len(prompts)} prompts, {tokens} tokens each, against generate():")
    for one in results:
        said = (
            "same text token for token" if one.equal else f"differs after {one.agreement:.1%} of the tokens"
        )
        console.print(f"  {one.contender:<20} ", end="")
        console.print(said, style="green" if one.equal else "red", end="")
        console.print(f", {one.tokens_per_round:.2f} tokens a pass")
    return all(one.equal for one in results)


def _widened(console: Console, target: Any, draft: Any, parameters: float) -> Pair:
    from draftwood.apps.files.machine import widened_pair
    from draftwood.zoo.widen import parameter_count

    with console.status("widening the target and timing its passes"):
        pair = widened_pair(target, draft, parameters=parameters, nodes=_NODES)
    cost, (chosen, other) = pair.cost, pair.tried
    console.print(
        f"\nThe same target widened to {parameter_count(pair.target) / 1e6:.0f} million parameters, in "
        f"{cost.precision}: in {other.precision} a pass over {_NODES} nodes takes "
        f"{other.tree / chosen.tree:.1f} times as long on this machine.\n"
        f"A pass over one token takes {cost.step * 1e3:.0f} ms, over {_NODES} nodes "
        f"{cost.tree * 1e3:.0f} ms."
    )
    return pair


def _fitting(cost: PassCost, prompts: int) -> int:
    """Tokens a text so that the contest takes about a minute; the contenders need 3 to 4 texts' time."""
    fitting = _RACE_SECONDS / (prompts * 3.5 * cost.step)
    return int(min(max(fitting, 16), 128)) // 8 * 8


def _contest(console: Console, pair: Pair, prompts: Prompts, tokens: int) -> list[ContestText]:
    from draftwood.apps.demo.contest import contest, until, writers

    entrants = writers(pair.target, pair.draft)
    for one in entrants.values():
        one.write(prompts[0], min(tokens, 8), seed=0)
    runs = until(_LATEST, contest(entrants, prompts, tokens=tokens))
    return watched(runs, "racing", total=len(entrants) * len(prompts), console=console)


def _show_contest(console: Console, texts: list[ContestText], cost: PassCost) -> None:
    from rich.table import Table

    from draftwood.apps.demo.contest import result

    results = [result(texts, name) for name in dict.fromkeys(entry.contender for entry in texts)]
    samples = len({entry.prompt for entry in texts})
    table = Table(title=f"{samples} prompts, {len(texts[0].text.tokens)} tokens each")
    table.add_column("")
    for heading in ("tokens/s", "ratio", "tokens/pass", "accepted", "same text"):
        table.add_column(heading, justify="right")
    for one in results:
        table.add_row(
            one.contender,
            f"{one.tokens_per_second:.1f}",
            f"{one.speed_up:.2f}",
            f"{one.tokens_per_round:.2f}",
            "" if one.acceptance_rate is None else f"{one.acceptance_rate:.0%}",
            "yes" if one.equal else f"{one.agreement:.0%} of it",
        )
    console.print()
    console.print(table)
    for sentence in verdict(results, cost):
        console.print(sentence)


def verdict(results: Sequence[Result], cost: PassCost) -> list[str]:
    """Returns sentences about the table: whether speculation pays here and, if not, why."""
    from draftwood.apps.demo.contest import DYSPEC

    by_name = {one.contender: one for one in results}
    dyspec = by_name[DYSPEC]
    sentences = []
    if dyspec.speed_up >= _PAYS:
        sentences.append(f"DySpec writes {dyspec.speed_up:.2f} times as fast as generate() here.")
    else:
        sentences.append(
            f"Speculation does not pay on this machine: DySpec reaches {dyspec.speed_up:.2f} times the "
            f"speed of generate(), because a pass over {cost.nodes} nodes takes {cost.ratio:.1f} times as "
            f"long as one over a single token ({cost.precision}), and a round, drafting included, "
            f"yields {dyspec.tokens_per_round:.2f} tokens. A GPU, or a CPU with matrix instructions for "
            "bfloat16, makes the two nearly equal."
        )
    if any(not one.equal for one in results):
        sentences.append(
            f"Where a text leaves that of generate(), two logits were so close in {cost.precision} that a "
            "pass over a tree and a pass over one token round them in a different order; in float32 all "
            "texts were equal above."
        )
    return sentences
