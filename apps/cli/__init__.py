"""`draftwood`: the command line.

It is installed a second time as `draftwood_cli`, apart from `draftwood`, which waits for torch: what is
asked for by `--help`, `--version` or a wrong name is said at once, and a command is loaded when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("draftwood.apps.demo.command", "Compare draft trees with generate(): the texts and the speed."),
    "generate": ("draftwood.apps.generate.command", "Continue texts through draft trees."),
    "bench": ("draftwood.apps.bench.command", "Measure strategies side by side on models and prompts."),
    "tune": ("draftwood.apps.tune.command", "Find the strategy and budget that pay for a pair of models."),
    "distil": ("draftwood.apps.distil.command", "Train a draft to follow its target."),
    "train": ("draftwood.apps.train.command", "Train a head that drafts for a target."),
    "check-head": (
        "draftwood.apps.heads.check_head",
        "Say whether a head reads its target as it was trained to.",
    ),
    "convert-head": ("draftwood.apps.heads.convert_head", "Make safetensors of a head's pickled weights."),
    "view": ("draftwood.apps.view.command", "Make one HTML page of a trace, with every round's tree."),
    "index": ("draftwood.apps.index", "Index text for the retrieval drafter."),
    "strategies": ("draftwood.apps.strategies", "List what is installed, or show one strategy in full."),
    "prove": ("draftwood.apps.proof.prove", "Prove that verifiers keep the target's law on policies' trees."),
    "check": ("draftwood.apps.proof.check", "Check your strategy, backend or source of randomness."),
}
"""Module and first line of help of every command; the function has its name, with underscores."""

# Plain help: in 80 columns rich's boxes leave an option's help less than a third of the line.
_TYPER: dict[str, Any] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": None,
}


class Commands(TyperGroup):
    """Lists the commands without loading them."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, _loaded(name) if name and command else command, rest


def _loaded(name: str) -> Any:
    module, _ = COMMANDS[name]
    with _interrupts_held_back():
        from draftwood.apps.terminal.cli_errors import with_plain_errors

        command = getattr(import_module(module), name.replace("-", "_"))
    alone = typer.Typer(**_TYPER)
    alone.command(name)(with_plain_errors(command))
    return get_command(alone)


@contextmanager
def _interrupts_held_back() -> Iterator[None]:
    """Raise `KeyboardInterrupt` after the block: in the middle of torch's import it aborts the process."""
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # none to a program in the background, or another's business
        return
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda signum, _: pressed.append(signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


app = typer.Typer(
    name="draftwood",
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **_TYPER,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"draftwood {version('draftwood')}")
        raise typer.Exit


@app.callback()
def options(
    debugging: Annotated[bool, typer.Option("--debug", help="Show errors with their traceback.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Lossless speculative decoding with draft trees.

    \b
    Examples:
      draftwood demo
      draftwood generate --prompt "def fibonacci(n):"
      draftwood view letter.json
      draftwood bench --strategy dyspec --strategy leviathan --budget 16
      draftwood tune --temperature 0.6 --to tuned.json
      draftwood distil big/ small/ notes.txt -o better-small
      draftwood train eagle3 big/ notes.txt head
      draftwood check-head big/ head/
      draftwood index notes.txt -o notes-index
      draftwood strategies dyspec
      draftwood prove
      draftwood check my_policy:Comb
    """
    if debugging:
        os.environ["DRAFTWOOD_DEBUG"] = "1"


def _listed() -> None:
    """Stands for a command in the list."""


for _name, (_, _first_line) in COMMANDS.items():
    app.command(_name, help=_first_line)(_listed)


def main() -> None:
    """The console entry point."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a model's text may have what the terminal lacks
    try:
        app(prog_name="draftwood")
    except KeyboardInterrupt:  # outside a command: while options are read
        typer.echo("Stopped.", err=True)
        sys.exit(130)
    except (ImportError, MemoryError, OSError) as error:  # likewise
        from draftwood.base.machine_faults import machine_fault

        if (fault := machine_fault(error)) is None:
            raise
        typer.echo(f"Error: {fault.message}", err=True)
        sys.exit(1)
