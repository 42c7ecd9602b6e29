"""`draftwood`: the command line."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from draftwood.apps.bench.command import bench
from draftwood.apps.check import check
from draftwood.apps.demo import demo
from draftwood.apps.failures import INTERRUPTED, debug, plainly, say
from draftwood.apps.generate import generate
from draftwood.apps.index import index
from draftwood.apps.prove import prove
from draftwood.apps.strategies import strategies
from draftwood.apps.tune.command import tune
from draftwood.apps.view.command import view

app = typer.Typer(
    name="draftwood",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from draftwood import __version__

        typer.echo(f"draftwood {__version__}")
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
      draftwood generate --prompt "Question: What is 3 times 12?\\nAnswer:"
      draftwood view letter.json
      draftwood bench --strategy dyspec --strategy leviathan --budget 16
      draftwood tune --temperature 0.6 --to tuned.json
      draftwood index notes.txt -o notes-index
      draftwood strategies
      draftwood prove
      draftwood check my_policy:Comb
    """
    debug(debugging)


for command in (demo, generate, bench, tune, view, index, strategies, prove, check):
    app.command()(plainly(command))


def main() -> None:
    """The console entry point."""
    try:
        app(prog_name="draftwood")
    except KeyboardInterrupt:  # outside a command: while options are read
        say("Stopped.")
        sys.exit(INTERRUPTED)
