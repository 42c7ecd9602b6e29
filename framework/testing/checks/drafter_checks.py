"""Named checks of every drafter and of the state that it keeps."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from functools import partial

import torch

from draftwood.protocols import Drafter
from draftwood.testing.checks.drafter_mirror import DrafterMirror
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.logits_mistakes import Node, difference
from draftwood.testing.models.oracles import LogitsAfter, oracle_of
from draftwood.testing.proofs.hidden_randomness import forbid_hidden_randomness
from draftwood.trees.request import Request

ROUNDS = 14
"""Of the check `many-rounds`, in which a row grows by six tokens at most."""


def drafter_checks(
    drafter: Drafter, oracle: LogitsAfter | None = None
) -> Iterator[tuple[str, Callable[[int], None]]]:
    """The checks of `drafter`, which must hold no rows, by name, the simplest ones first.

    Args:
        drafter: the drafter under test.
        oracle: next-token logits `[vocab]` after a list of tokens; by default the logits of `drafter.model`.
            Without either, a node's logits are compared with the drafter's own answer to a request for just
            that path.

    A drafter that `remembers` is compared with a copy of itself from before the round.
    """
    oracle = oracle or oracle_of(drafter)
    yield "declaration", partial(check_declaration, drafter)
    yield "shapes", partial(check_shapes, drafter)
    yield "tree", partial(check_tree, drafter, oracle)
    yield "commit", partial(check_commit, drafter, oracle)
    yield "rows", partial(check_rows, drafter, oracle)
    yield "many-rounds", partial(check_many_rounds, drafter, oracle)
    yield "deterministic", partial(check_deterministic, drafter)


def check_declaration(drafter: Drafter, models: int) -> None:
    """It says how wide its logits are, how many drafters it holds, and what a pass reads."""
    for name, least in (("vocab_size", 1), ("drafters", 1), ("weight_bytes", 0)):
        value = getattr(drafter, name)
        assert isinstance(value, int), f"{name} is {value!r}; give an integer >= {least}."
        assert value >= least, f"{name} is {value}; give an integer >= {least}."
    assert isinstance(drafter.remembers, bool), f"remembers is {drafter.remembers!r}; say True or False."
    assert isinstance(drafter.reads_scores, bool), (
        f"reads_scores is {drafter.reads_scores!r}; say True or False."
    )
    assert isinstance(drafter.source, str), f"source is {drafter.source!r}; name a paper or an author."


def check_shapes(drafter: Drafter, models: int) -> None:
    """Logits come as `[rows, nodes, (drafters,) vocab]`, without NaN; a row may ask for nothing."""
    tokens = torch.tensor([3, 1, 2]) % drafter.vocab_size
    drafter.prefill([torch.tensor(_text(drafter, 5)), torch.zeros(0, dtype=torch.int64)])
    try:
        logits = drafter.distributions([Request(tokens, torch.tensor([-1, 0, 0])), None])
    finally:
        drafter.release()
    inner = (drafter.drafters,) if drafter.drafters > 1 else ()
    shape = (2, 3, *inner, drafter.vocab_size)
    assert tuple(logits.shape) == shape, f"Logits have the shape {tuple(logits.shape)}, not {shape}."
    wrong = bool((logits[0].isnan() | (logits[0] == torch.inf)).any())
    assert not wrong, "Logits hold NaN or +inf; a token that is not proposed has -inf."


def check_tree(drafter: Drafter, oracle: LogitsAfter | None, models: int) -> None:
    """A node's logits depend only on its path, not on other requested nodes or the number of calls."""
    for length in (6, 0):
        mirror = DrafterMirror(drafter)
        try:
            mirror.prefill([_text(drafter, length)])
            mirror.ask([[(3, -1)]])
            mirror.ask([[(1, 0), (2, 0)]])
            mirror.ask([[(4, 2), (5, 1)]])
            mirror.ask([[(6, 1), (7, 4), (3, 6)]])  # parents of earlier calls, and of this one
        finally:
            drafter.release()
        mirror.compare(oracle)


def check_commit(drafter: Drafter, oracle: LogitsAfter | None, models: int) -> None:
    """After a commit the logits follow the longer text, for any accepted path."""
    for accepted in ([0], [0, 1], [0, 2, 3], [0, 2, 3, 9], [0, 9]):
        mirror = DrafterMirror(drafter)
        try:
            mirror.prefill([_text(drafter, 7)])
            mirror.ask([[(3, -1), (1, 0), (2, 0)]])
            mirror.ask([[(4, 2)]])
            mirror.commit([accepted], extra=8)
            mirror.ask([[(1, -1), (2, 0)]])
            mirror.commit([[0]])
            mirror.ask([[(5, -1)]])
        finally:
            drafter.release()
        mirror.compare(oracle)


def check_rows(drafter: Drafter, oracle: LogitsAfter | None, models: int) -> None:
    """A row's logits do not depend on the other rows, also while rows join and are released."""
    mirror = DrafterMirror(drafter)
    try:
        mirror.prefill([_text(drafter, length, length) for length in (6, 2, 9, 4, 7)])
        mirror.ask([[(3 + row, -1), (1, 0)] for row in range(5)])
        mirror.ask([[(4, 1)], None, [(5, 0), (6, 2)], None, [(7, 1)]])
        mirror.commit([[0], [0, 1], [0, 2, 3], [0, 9], [0, 1, 2]])
        mirror.ask([[(row, -1)] for row in range(5)])
        mirror.release([1, 3])
        mirror.ask([[(2, 0)], [(3, 0), (4, 0)], None])  # in the middle of a round
        mirror.commit([[0, 1], [0, 2], [0]])
        mirror.prefill([_text(drafter, 5, 3), _text(drafter, 0)])
        mirror.ask([[(row, -1), (4, 0)] for row in range(5)])
        mirror.commit([[0, 1], [0], [0, 9], [0], [0, 1]])
        mirror.release([0])
        mirror.ask([[(row, -1)] for row in range(4)])
        mirror.commit([[0], [0], [0], [0]])
        # Rows that wait for their next turn ask for nothing, and nothing comes of them.
        mirror.ask([None, [(4, -1), (2, 0)], None, [(1, -1)]])
        mirror.commit([[], [0, 1], [], [0, 9]])
        mirror.ask([[(6, -1)], None, [(5, -1), (3, 0)], [(7, -1)]])
        mirror.commit([[0], [], [0, 1], [0]])
        mirror.ask([[(row, -1)] for row in range(4)])
    finally:
        drafter.release()
    mirror.compare(oracle)
    drafter.release([5])


def check_many_rounds(drafter: Drafter, oracle: LogitsAfter | None, models: int) -> None:
    """Logits are right in every round, to beyond 64 tokens, with a different path in every row."""
    mirror, rng = _rounds(drafter, seed=0), random.Random(1)
    # All answers of one row and some of the others: comparing an answer can cost a prefill.
    compared = [answer for answer in mirror.answers if answer.row == 4 or rng.random() < 0.25]
    mirror.answers = compared if oracle is None else mirror.answers
    mirror.compare(oracle)


def check_deterministic(drafter: Drafter, models: int) -> None:
    """Repeated calls give equal logits, so that a seed gives one text."""
    again = copy.deepcopy(drafter) if drafter.remembers else drafter
    with forbid_hidden_randomness(f"{type(drafter).__name__}, as the rounds go,"):
        first = _rounds(drafter, seed=1, rounds=3).answers
    for answer, repeated in zip(first, _rounds(again, seed=1, rounds=3).answers, strict=True):
        if (off := difference(answer.logits, repeated.logits)) > 0:
            raise LawBroken(
                f"The same calls give other logits the second time: node {answer.node} of row {answer.row}, "
                f"after {answer.rounds} commits, differs by {off:.2g}.",
                error=off,
                likely="it draws at random, or remembers something beyond release(); keep it in the rows.",
            )


def _rounds(drafter: Drafter, *, seed: int, rounds: int = ROUNDS) -> DrafterMirror:
    """Five rows of differing length through several rounds of small trees."""
    mirror, rng = DrafterMirror(drafter), random.Random(seed)
    room = min((b.max_length for b in drafter.backends if b.max_length is not None), default=10**9)
    try:
        mirror.prefill([_text(drafter, min(length, room // 2), length) for length in (5, 2, 30, 11, 8)])
        for _ in range(rounds):
            if max(map(len, mirror.texts)) + 8 > room:
                break
            root = rng.randrange(drafter.vocab_size)
            mirror.ask([[(root + row, -1)] for row in range(5)])
            for _ in range(3):
                asks: list[list[Node] | None] = []
                for row, nodes in enumerate(mirror.nodes):
                    count = 2 if row == 4 else rng.randint(0, 2)
                    numbers = range(len(nodes), len(nodes) + count)
                    below = [number - 1 if row == 4 else rng.randint(0, len(nodes) - 1) for number in numbers]
                    asks.append([(rng.randrange(11), parent) for parent in below] if count else None)
                if any(asks):
                    mirror.ask(asks)
            mirror.commit([_accepted(nodes, row, rng) for row, nodes in enumerate(mirror.nodes)])
        return mirror
    finally:
        drafter.release()


def _accepted(nodes: list[Node], row: int, rng: random.Random) -> list[int]:
    """A path from the root; row 4 goes deep, row 3 beyond what was asked about."""
    node = len(nodes) - 1 if row == 4 else rng.randrange(len(nodes))
    path = [node]
    while nodes[path[0]][1] >= 0:
        path.insert(0, nodes[path[0]][1])
    return [*path, len(nodes)] if row == 3 else path


def _text(drafter: Drafter, length: int, seed: int = 0) -> list[int]:
    return [(position * 5 + 2 + seed) % min(drafter.vocab_size, 11) for position in range(length)]
