"""`draftwood prove`: every policy law with every lossless verifier, by enumeration on toy models."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import chain, groupby
from typing import TYPE_CHECKING, Annotated

import typer

from draftwood.apps.proof.proofs import TOKENS, Toys, Verdict, known_options, pairs, prove_pairs
from draftwood.apps.terminal import options
from draftwood.apps.terminal.cli_errors import FAILED
from draftwood.apps.terminal.progress import watched
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import InvalidInput, UnknownStrategy, nearest
from draftwood.protocols import registry

if TYPE_CHECKING:
    from rich.console import Console


def prove(
    policy: Annotated[
        list[str] | None, typer.Option(help="A registered policy; repeatable. Default: all.")
    ] = None,
    verifier: Annotated[
        list[str] | None, typer.Option(help="A registered verifier; repeatable. Default: all.")
    ] = None,
    models: Annotated[int, typer.Option(min=1, help="Random toy models for every pair.")] = 5,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", "-o", help="name=value for the policies and verifiers; repeatable."),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Policies proved at a time; default 1.", show_default=False)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(help="Prove over a Ray cluster: its address, auto, or local to start one."),
    ] = None,
) -> None:
    """Prove that verifiers keep the target's law on policies' trees.

    On small random models every random outcome is visited, so the joint law of the emitted tokens is
    known to rounding: its largest error must be at most 1e-12 in float64, and 1e-6 in the float32 in which
    decoding computes. What other packages register is proved too. The exit code is 1 when a pair fails.

    \b
    Examples:
      draftwood prove
      draftwood prove --policy dyspec --verifier recursive-rejection
      draftwood prove --policy fixed-tree -o law=with-replacement --models 50
      draftwood prove --models 1000 --ray auto
    """
    from draftwood.apps.terminal.plain_console import PlainConsole

    option_words = options.parse(option or [])
    policies = policy or registry.names("policies")
    verifiers = verifier or registry.names("verifiers")
    _check_options(
        option_words, [("policies", name) for name in policies] + [("verifiers", v) for v in verifiers]
    )
    proved = pairs(policies, verifiers, option_words)
    console = PlainConsole()
    if verifier:
        _say_lossy(verifier, {pair.verifier for pair in proved})
    of_one_policy = [list(some) for _, some in groupby(proved, key=lambda pair: pair.grower)]
    proof = partial(prove_pairs, models=[Toys(number) for number in range(models)], option_words=option_words)
    with _pool(processes, ray) as apply:
        verdict_lists = chain.from_iterable(apply(proof, of_one_policy))
        verdicts = watched(verdict_lists, "Proving", total=len(proved), console=console)
    _show(verdicts, models, option_words.get("law", ""), console)
    if any(verdict.failed for verdict in verdicts):
        raise typer.Exit(FAILED)


def _say_lossy(asked: Sequence[str], proved: Collection[str]) -> None:
    """Names the verifiers that were asked for and cannot be proved; only such ones are an error."""
    left = [name for name in asked if name not in proved]
    if left == list(asked):
        raise InvalidInput(
            f"{', '.join(map(repr, left))} declares that it is lossy, so there is nothing to prove; "
            "draftwood check says how lossy it is."
        )
    for name in left:
        to_stderr(f"{name!r} declares that it is lossy, so it is left out.")


@contextmanager
def _pool(processes: int | None, ray: str | None) -> Iterator[Callable[..., Iterable[list[Verdict]]]]:
    """`map`, or the same over processes of one thread each, or over a cluster."""
    if ray is not None:
        from draftwood.apps.generate.on_ray import spread

        if processes is not None:
            raise InvalidInput("--ray starts its own processes, so leave --processes out.")
        yield partial(spread, ray)
        return
    import torch

    from draftwood.base.one_thread import one_thread

    if processes in (None, 1):
        with one_thread():
            yield map
        return
    workers = ProcessPoolExecutor(
        processes, multiprocessing.get_context("spawn"), torch.set_num_threads, (1,)
    )
    with workers:
        yield workers.map


def _check_options(option_words: Mapping[str, str], strategies: Sequence[tuple[str, str]]) -> None:
    known = {option for kind, name in strategies for option in known_options(kind, name)}
    for option in option_words:
        if option not in known:
            raise UnknownStrategy(f"None of the strategies has an option {option!r}{nearest(option, known)}")


def _show(verdicts: Sequence[Verdict], models: int, law: str, console: Console) -> None:
    """The table, what is wrong, and the counts; `law` is the one that all policies were given."""
    from rich.table import Table

    table = Table(
        title=f"Largest error in the joint law of {TOKENS} tokens over {models} toy models",
        title_justify="left",
    )
    for heading in ("policy", "law", "verifier"):
        table.add_column(heading, overflow="fold")
    table.add_column("float64", justify="right", no_wrap=True)
    table.add_column("float32", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    styles = {"ok": "", "refused": "dim", "too large": "yellow"}
    for verdict in verdicts:
        pair = verdict.pair
        cells = (
            pair.policy_in_words,
            pair.law.__name__ if pair.law else law,
            pair.verifier_in_words,
            *("" if error is None else f"{error:.1e}" for error in (verdict.error, verdict.rounded)),
            verdict.word,
        )
        table.add_row(*cells, style=styles.get(verdict.word, "red"))
    console.print(table)
    for verdict in verdicts:
        if verdict.why and verdict.word != "refused":
            pair = verdict.pair
            of_law = f" ({pair.law.__name__})" if pair.law else ""
            heading = f"{pair.policy_in_words}{of_law} with {pair.verifier_in_words}"
            console.print(f"{heading}: {verdict.why}", style="bold")
    counts = {word: sum(v.word == word for v in verdicts) for word in dict.fromkeys(v.word for v in verdicts)}
    console.print(", ".join(f"{count} {word}" for word, count in counts.items()) + ".")
