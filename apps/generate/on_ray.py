"""Texts and proofs over a Ray cluster: decoders are actors, proofs are tasks, and Ray repeats lost work."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from threading import Lock
from typing import Any, TypeVar

from draftwood import SharedDecoder
from draftwood.apps.generate.text_writer import TextWriter
from draftwood.apps.models import identity
from draftwood.apps.models.asked import PromptLine, Record
from draftwood.apps.models.method import Words
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.apps.terminal.shown import to_stderr
from draftwood.base.errors import DraftwoodError, InvalidInput

T = TypeVar("T")
R = TypeVar("R")

AGAIN = 3
"""How often Ray does again what a worker's death cut off, before the run is given up."""
_PATIENCE = 10.0  # seconds


def check() -> None:
    """Raise `InvalidInput` where Ray is not installed."""
    if find_spec("ray") is None:
        raise InvalidInput("--ray needs Ray; install it with pip install 'draftwood[ray]'.")


def _check_there(address: str) -> None:
    """Raise `InvalidInput` where nobody listens at `host:port`, which Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return  # "auto", "local"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise InvalidInput(
            f"No Ray cluster answers at {address!r} ({first_line(error)}); give a Ray cluster's "
            "address, or local."
        ) from error


@contextmanager
def connected(address: str) -> Iterator[Any]:
    """The module `ray`, connected to a cluster; what goes wrong with the cluster is one sentence.

    Args:
        address: `"auto"`: the cluster of this machine; `"local"`: one that is started here and ends with the
            block; else `host:port` or `ray://host:port`.

    Raises:
        InvalidInput: Ray is not installed, there is no cluster, or it went away.
    """
    check()
    _check_there(address)
    import ray

    ours = not ray.is_initialized()
    try:
        if ours:
            ray.init(address=address, logging_level=logging.ERROR, log_to_driver=False)
        yield ray
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        if (cause := _ours(error)) is not None:
            raise cause from None
        raise InvalidInput(
            f"The Ray cluster at {address!r} refuses this machine, or is none "
            f"({first_line(error)}); start one with ray start "
            "--head, share its token with this machine, or give --ray local."
        ) from error
    except ray.exceptions.RayError as error:
        if (cause := _ours(error)) is not None:
            raise cause from None
        raise InvalidInput(
            f"The Ray cluster at {address!r} failed ({type(error).__name__}: {first_line(error)}); repeat "
            "the command, which continues from the finished texts."
        ) from error
    finally:
        if ours:
            ray.shutdown()


def _ours(error: BaseException) -> DraftwoodError | None:
    """The sentence that was raised on a worker, or here."""
    cause = getattr(error, "cause", None) or error
    return cause if isinstance(cause, DraftwoodError) else None


class DecoderActor:
    """One decoder of a cluster. Many calls of `write` run at once, each in a thread; they share its rows."""

    def __init__(self, words: Words, files: Mapping[str, Any], rows: int) -> None:
        self._words, self._files, self._rows = words, files, rows
        self._lock = Lock()
        self._shared: tuple[TextWriter, SharedDecoder] | None = None

    def write(self, line: PromptLine) -> Record:
        """The line of texts for `line`.

        Raises:
            DraftwoodError: the models cannot be loaded here, or differ from the models of the run.
        """
        with self._lock:
            # Not with the actor, whose constructor cannot fail in one sentence.
            if self._shared is None:
                method = self._words.method()
                writer = TextWriter.of(method, line)
                _check_files(self._files, identity.of_method(method))
                self._shared = writer, SharedDecoder(writer.queue(self._rows))
            writer, shared = self._shared
        return writer.write_shared(shared, line)


def _check_files(asked: Mapping[str, Any], here: Mapping[str, Any]) -> None:
    """Raises `InvalidInput` if a worker's models differ from those where the texts are kept."""
    if odd := next((name for name in {*asked, *here} if asked.get(name) != here.get(name)), None):
        raise InvalidInput(
            f"The {odd.replace('_', ' ')} of a worker on {socket.gethostname()!r} differ from those on this "
            "machine; give both the same, under one name."
        )


def write(
    address: str,
    words: Words,
    missing: Sequence[PromptLine],
    *,
    files: Mapping[str, Any],
    rows: int,
    workers: int | None,
) -> Iterator[Record]:
    """The lines of texts for all that is `missing`, in the order in which they end.

    A prompt whose actor dies is written again by the actor that Ray starts in its place. Its line comes once,
    since a line is the result of a call, and calls that died have none.

    Raises:
        InvalidInput: there is no cluster, or it fails, or actors die again and again.
        DraftwoodError: the workers cannot load the models.
    """
    with connected(address) as ray:
        from ray.util import ActorPool

        gpus = int(ray.cluster_resources().get("GPU", 0))
        count = workers or gpus or int(ray.cluster_resources().get("CPU", 1))
        count = max(1, min(count, len(missing)))
        share = {"num_gpus": min(1.0, gpus / count)} if gpus else {}
        actor = ray.remote(DecoderActor).options(
            num_cpus=1, max_restarts=-1, max_task_retries=AGAIN, max_concurrency=rows, **share
        )
        to_stderr(f"{count} decoders on {len(ray.nodes())} machine(s) of the Ray cluster, {rows} rows each.")
        actors = [actor.remote(words.absolute(), files, rows) for _ in range(count)]
        # An actor is in the pool once for every row, so each has as many calls at a time.
        pool: Any = ActorPool(actors * rows)
        yield from pool.map_unordered(lambda one, line: one.write.remote(line), missing)


def spread(address: str, function: Callable[[T], R], values: Iterable[T]) -> Iterator[R]:
    """`map` over a cluster: a task for every value, the results in their order."""
    with connected(address) as ray:
        task = ray.remote(lambda one: function(one)).options(num_cpus=1, max_retries=AGAIN)
        for result in [task.remote(one) for one in values]:
            yield ray.get(result)
