"""Law S as named checks of a backend, against an oracle that shares no code with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.protocols import StateBackend
from draftwood.testing.backends import StateBackendTests
from draftwood.testing.models.oracles import LogitsAfter, oracle_of

_EXAMPLES = 20
"""Sequences of random calls at least."""


def backend_checks(
    backend: StateBackend, oracle: LogitsAfter | None = None
) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The tests of `StateBackendTests` on `backend`, which must hold no rows, the simplest ones first.

    Args:
        backend: the backend under test.
        oracle: next-token logits `[vocab]` after a list of tokens; by default the logits of `backend.model`.

    Raises:
        InvalidInput: neither an oracle nor a model.
    """
    logits_after = oracle or oracle_of(backend)
    if logits_after is None:
        raise InvalidInput(
            f"{type(backend).__name__} names no model to compare it with; give oracle=, a function from a "
            "list of tokens to the logits [vocab] after them, or its torch module as the attribute `model`."
        )

    right: LogitsAfter = logits_after

    class Tests(StateBackendTests):
        vocab_size = backend.vocab_size

        def make_backend(self) -> StateBackend:
            backend.release()
            return backend

        def logits_after(self, tokens: list[int]) -> Tensor:
            return right(tokens)

    for name in vars(StateBackendTests):
        if name.startswith("test_"):
            yield name.removeprefix("test_").replace("_", "-"), _case(Tests, name)


def _case(tests: type[StateBackendTests], name: str) -> Callable[[int], None]:
    def run(models: int) -> None:
        suite = tests()
        suite.examples = max(models, _EXAMPLES)
        try:
            getattr(suite, name)()
        finally:
            suite.make_backend()  # releases the rows

    run.__doc__ = getattr(tests, name).__doc__
    return run
