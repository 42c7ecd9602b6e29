"""What every drafter and backend must do with the state it keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from draftwood.protocols import Drafter, Outcome, Request, StateBackend
from draftwood.testing.backends import StateBackendTests

TOLERANCE = 1e-4
"""Largest difference of two logits that should be equal; batches of another size round otherwise."""


def drafter_checks(drafter: Drafter) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The checks of `drafter`, which must hold no rows, by name."""
    yield "declaration", partial(check_drafter_declaration, drafter)
    yield "shapes", partial(check_shapes, drafter)
    yield "rows", partial(check_rows, drafter)
    yield "commit", partial(check_commit, drafter)


def check_drafter_declaration(drafter: Drafter, models: int) -> None:
    """It says how wide its logits are, how many drafters it holds, and what a pass reads."""
    for name, least in (("vocab_size", 1), ("drafters", 1), ("weight_bytes", 0)):
        value = getattr(drafter, name)
        assert isinstance(value, int), f"{name} is {value!r}; give an integer >= {least}."
        assert value >= least, f"{name} is {value}; give an integer >= {least}."
    assert isinstance(drafter.source, str), f"source is {drafter.source!r}; name a paper or an author."


def check_shapes(drafter: Drafter, models: int) -> None:
    """Logits come as `[rows, nodes, (drafters,) vocab]`, without NaN; a row may ask for nothing."""
    drafter.prefill([_text(drafter, 5), _text(drafter, 0)])
    try:
        logits = drafter.distributions([_request([3, 1, 2], [-1, 0, 0]), None])
    finally:
        drafter.release()
    inner = (drafter.drafters,) if drafter.drafters > 1 else ()
    wanted = (2, 3, *inner, drafter.vocab_size)
    assert tuple(logits.shape) == wanted, f"Logits have the shape {tuple(logits.shape)}, not {wanted}."
    wrong = bool((logits[0].isnan() | (logits[0] == torch.inf)).any())
    assert not wrong, "Logits hold NaN or +inf; a token that is not proposed has -inf."


def check_rows(drafter: Drafter, models: int) -> None:
    """A row's logits do not depend on the rows beside it, before and after one of them is released."""
    texts = [_text(drafter, length) for length in (6, 2, 9)]
    alone = [_next(drafter, text, [3, 1], [-1, 0]) for text in texts]
    drafter.prefill(texts)
    try:
        together = drafter.distributions([_request([3, 1], [-1, 0])] * 3)
        for row in range(3):
            _compare(together[row], alone[row], f"row {row} of 3")
        drafter.commit([_outcome([3])] * 3)
        drafter.release([1])
        left = drafter.distributions([_request([1], [-1])] * 2)
    finally:
        drafter.release()
    for place, row in enumerate((0, 2)):
        text = torch.cat([texts[row], torch.tensor([3 % drafter.vocab_size])])
        _compare(left[place], _next(drafter, text, [1], [-1]), f"row {row} after row 1 was released")
    drafter.release([5])


def check_commit(drafter: Drafter, models: int) -> None:
    """After a commit the logits are those of a fresh start from the longer text, for any accepted path."""
    text = _text(drafter, 7)
    for accepted in ([3], [3, 1], [3, 2, 4], [3, 2, 5, 6]):
        drafter.prefill([text])
        try:
            drafter.distributions([_request([3, 1, 2], [-1, 0, 0])])
            drafter.distributions([_request([4], [2])])
            drafter.commit([_outcome(accepted)])
            after = drafter.distributions([_request([1, 2], [-1, 0])])[0]
        finally:
            drafter.release()
        kept = torch.tensor(accepted) % drafter.vocab_size
        fresh = _next(drafter, torch.cat([text, kept]), [1, 2], [-1, 0])
        _compare(after, fresh, f"the state after committing {accepted}")


def _request(tokens: Sequence[int], parents: Sequence[int]) -> Request:
    return Request(torch.tensor(tokens), torch.tensor(parents))


def _outcome(tokens: Sequence[int]) -> Outcome:
    return Outcome(range(len(tokens)), tokens, extra=1, bonus=False, drafted=4)


def _text(drafter: Drafter, length: int) -> Tensor:
    return (torch.arange(length) * 5 + 2) % min(drafter.vocab_size, 11)


def _next(drafter: Drafter, text: Tensor, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
    drafter.prefill([text])
    try:
        return drafter.distributions([_request(tokens, parents)])[0]
    finally:
        drafter.release()


def _compare(found: Tensor, wanted: Tensor, what: str) -> None:
    found, wanted = found[: len(wanted)].double(), wanted.double()
    # -inf where both have it is no difference.
    off = torch.where(found == wanted, 0.0, (found - wanted).abs()).max()
    assert float(off) <= TOLERANCE, f"The logits of {what} are off by {float(off):.2g}."


def backend_checks(backend: StateBackend) -> Iterator[tuple[str, Callable[[int], None]]]:
    """Law S as tests of `backend`, which must hold no rows, against a copy that decodes one by one.

    `StateBackendTests` with an oracle that shares nothing with the backend proves more.
    """

    class Tests(StateBackendTests):
        vocab_size = backend.vocab_size

        def make_backend(self) -> StateBackend:
            backend.release()
            return backend

        def logits_after(self, tokens: list[int]) -> Tensor:
            return _sequential(oracle, tokens)

    oracle = copy.deepcopy(backend)
    for name in dir(Tests):
        if name.startswith("test_"):
            yield name.removeprefix("test_").replace("_", "-"), _case(Tests, name)


def _case(tests: type[StateBackendTests], name: str) -> Callable[[int], None]:
    def run(models: int) -> None:
        suite = tests()
        suite.examples = models
        try:
            getattr(suite, name)()
        finally:
            suite.make_backend()  # releases the rows

    run.__doc__ = getattr(tests, name).__doc__
    return run


def _sequential(backend: StateBackend, tokens: list[int]) -> Tensor:
    backend.release()
    backend.prefill([torch.tensor(tokens[:1], dtype=torch.int64)[:0]])
    for token in tokens:
        logits = backend.extend(torch.tensor([[token]]), torch.tensor([[-1]]))
        backend.commit([[0]])
    return logits[0, -1]
