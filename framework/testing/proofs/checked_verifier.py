"""A verifier whose outcomes are checked: a forbidden act is reported with its tree."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import attrs
from torch import Tensor

from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Verifier
from draftwood.testing.diagnosis.tree_text import tree_as_text
from draftwood.testing.proofs.enumerator import EndlessRun
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

SECONDS = 10.0
"""Seconds for one verification of a toy tree, which needs less than a thousandth of them."""

PARTS = 4
"""Alarms within it."""

PATIENCE = 12
"""Seconds by the clock that are allowed for each second of CPU time, as others may compute too."""


@attrs.define(eq=False)
class CheckedVerifier(Verifier):
    """Passes every call on to `verifier`, and remembers the first fault of its outcomes.

    Attributes:
        verifier: the verifier that is watched.
        fault: the fault of an outcome, whatever its weight, with the tree; empty at first.
        refusal: errors by which the verifier may refuse its input; they are passed on.

    Any other exception, or a run that does not end, is an `AssertionError` with the tree at once.
    """

    verifier: Verifier
    fault: str = ""
    refusal: type[Exception] | tuple[type[Exception], ...] = ()

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.verifier.laws

    @property
    def declares_law(self) -> bool:  # type: ignore[override]
        return self.verifier.declares_law

    def declared_law(self, target_probs: Tensor, draft_probs: Tensor) -> Tensor:
        return self.verifier.declared_law(target_probs, draft_probs)

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        (outcome,) = self._judged(
            lambda: [self.verifier.verify(tree, target_probs, rng)], [tree], [target_probs]
        )
        return outcome

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        return self._judged(lambda: self.verifier.verify_rows(trees, target_probs, rngs), trees, target_probs)

    def _judged(
        self, judge: Callable[[], list[Outcome]], trees: Sequence[TokenTree], target_probs: Sequence[Tensor]
    ) -> list[Outcome]:
        rows = list(zip(trees, target_probs, strict=True))
        try:
            with time_limit(SECONDS):
                outcomes = judge()
        except self.refusal:
            raise
        except Exception as error:
            ended = "does not end" if isinstance(error, (EndlessRun, TimeoutError)) else "raises"
            drawn = "\nand the tree\n".join(tree_as_text(*row) for row in rows)
            raise AssertionError(
                f"{self.verifier} {ended} ({type(error).__name__}: {error}) on the tree\n{drawn}"
            ) from error
        if len(outcomes) != len(rows):
            raise AssertionError(f"{self.verifier} gives {len(outcomes)} outcomes for {len(rows)} rows.")
        for outcome, (tree, targets) in zip(outcomes, rows, strict=True):
            if not self.fault and (wrong := malformed(outcome, tree, targets, self.verifier)):
                self.fault = f"{self.verifier} {wrong} on the tree\n{tree_as_text(tree, targets)}"
        return outcomes


def malformed(outcome: object, tree: TokenTree, target_probs: Tensor, verifier: Verifier) -> str:
    """Returns the fault of an outcome of `verifier`, as the end of a sentence; empty if it has none."""
    if not isinstance(outcome, Outcome):
        return f"returns {type(outcome).__name__} instead of an Outcome"
    path, parents = outcome.path, tree.parents.tolist()
    if not path or any(not 0 <= node < len(tree) for node in path):
        return f"accepts the path {path}, which is not in a tree of {len(tree)} nodes"
    if [parents[node] for node in path] != [-1, *path[:-1]]:
        return f"accepts {path}, which is no path from the root"
    if list(outcome.tokens) != tree.tokens[list(path)].tolist():
        return f"names the tokens {outcome.tokens} for the path {path}"
    if outcome.drafted != len(tree) - 1:
        return f"counts {outcome.drafted} drafted tokens"
    if outcome.bonus and tree.children(path[-1]):
        return f"calls the token after {path} a bonus, though node {path[-1]} is no leaf"
    vocab_size = target_probs.shape[-1]
    for node, token in zip(path, outcome.emitted, strict=True):
        if not 0 <= token < vocab_size:
            return f"emits token {token}, outside the vocabulary of {vocab_size},"
        if verifier.declares_law:
            proposal = tree.proposals.get(node)
            if proposal is None:  # the draft's distribution is not known there
                continue
            allowed = verifier.declared_law(target_probs[node], proposal.marginal(0))
            if not float(allowed[token]) > 0:
                return f"emits {outcome.emitted}, though its law gives token {token} 0 after node {node},"
        elif not float(target_probs[node, token]) > 0:
            return (
                f"emits {outcome.emitted}, though token {token} has target probability 0 after node {node},"
            )
    return ""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeoutError` in the block after `seconds`; only where the main thread has an alarm clock.

    It rings in `PARTS`; a process that was paused, on a suspended machine, hears only one of them. On a busy
    machine the process may wait for a processor longer than it computes, so only its own seconds count, up
    to `PATIENCE` times as many by the clock, after which it must be waiting for something that does not come.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    rings, began = 0, time.process_time()

    def ring(*_: object) -> None:
        nonlocal rings
        rings += 1
        computed = time.process_time() - began
        if (rings >= PARTS and computed >= seconds * 0.9) or rings >= PARTS * PATIENCE:
            raise TimeoutError(f"{seconds:.0f} seconds have passed")

    before = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds / PARTS, seconds / PARTS)
    try:
        yield
    finally:
        # An alarm that somebody else had set goes off a little late rather than never.
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)
