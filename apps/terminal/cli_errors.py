"""Errors that a user can cause end in one sentence and an exit code, never in a traceback."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import typer

from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import DraftwoodError
from draftwood.base.machine_faults import machine_fault

FAILED, INTERRUPTED = 1, 130  # 130 is what a shell reports after Ctrl-C
_DEBUG = "DRAFTWOOD_DEBUG"

Arguments = ParamSpec("Arguments")


def with_plain_errors(command: Callable[Arguments, None]) -> Callable[Arguments, None]:
    """Wrap a command so that every error is one sentence on stderr and a non-zero exit code."""

    @wraps(command)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        try:
            command(*args, **kwargs)
            sys.stdout.flush()
        except typer.Exit:
            raise
        except BaseException as error:
            if isinstance(error, SystemExit) or os.environ.get(_DEBUG, "0") not in ("", "0"):
                raise
            raise typer.Exit(_report(error)) from None

    return run


def _report(error: BaseException) -> int:
    """Say what happened on stderr and return the exit code."""
    if isinstance(error, BrokenPipeError):
        # Python flushes stdout once more when it ends; that must not raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED  # without a word: `| head` has what it wanted
    if isinstance(error, KeyboardInterrupt):
        to_stderr("Stopped.")
        return INTERRUPTED
    if isinstance(error, DraftwoodError):
        to_stderr(f"Error: {error}")
    elif (fault := machine_fault(error)) is not None:
        to_stderr(f"Error: {fault.message}")
    else:
        to_stderr(f"Unexpected {type(error).__name__}: {first_line(error)} ({_DEBUG}=1 shows where)")
    return FAILED


def first_line(error: BaseException) -> str:
    """The first line of an error's message."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
