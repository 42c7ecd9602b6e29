"""Law S as a test suite: a `StateBackend` is compared with a naive model that keeps lists of tokens.

Subclass `StateBackendTests`, and define how to make the backend and the next-token logits after a list of
tokens are, and every test runs under pytest or by hand:

    class TestMyBackend(StateBackendTests):
        vocab_size = 97

        def make_backend(self):
            return MyBackend(model)

        def logits_after(self, tokens):
            return model(torch.tensor([tokens])).logits[0, -1]

`logits_after` is the oracle: it must share nothing with the backend, so no cache and no mask.
`check_strategy(backend, oracle=logits_after)` runs the same tests.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from torch import Tensor

from draftwood.base.errors import DraftwoodError
from draftwood.protocols import StateBackend
from draftwood.testing.checks.feature_checks import check_features, check_output_head
from draftwood.testing.checks.mirror import Mirror, WrongLogits
from draftwood.testing.diagnosis.law_broken import LawBroken, raises_on_purpose
from draftwood.testing.diagnosis.logits_mistakes import Node
from draftwood.testing.models.oracles import FeaturesAfter, features_oracle_of

__all__ = ["Mirror", "StateBackendTests", "backend_machine", "raises_on_purpose"]


def backend_machine(
    make_backend: Callable[[], StateBackend],
    logits_after: Callable[[list[int]], Tensor],
    *,
    vocab_size: int,
    tolerance: float = 1e-4,
    max_rows: int = 3,
    max_prompt: int = 12,
    max_nodes: int = 4,
) -> type[RuleBasedStateMachine]:
    """A Hypothesis state machine of random prefills, trees, commits and releases against lists of tokens.

    Args:
        make_backend: a backend without rows; called once an example.
        logits_after: the oracle, next-token logits `[vocab]` after a list of tokens.
        vocab_size: tokens are drawn below it.
        tolerance: largest absolute difference allowed in a logit.
        max_rows: rows at a time.
        max_prompt: tokens of a new row.
        max_nodes: nodes a row may get in one call.
    """
    token = st.integers(0, vocab_size - 1)
    prompt = st.lists(token, max_size=max_prompt)

    class BackendMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            # What went wrong is looked into once, for the shortest calls that fail.
            self.mirror = Mirror(make_backend(), logits_after, tolerance, explains=False)

        @precondition(lambda self: len(self.mirror.texts) < max_rows and not any(self.mirror.nodes))
        @rule(data=st.data())
        def prefill(self, data: st.DataObject) -> None:
            room = max_rows - len(self.mirror.texts)
            self.mirror.prefill(data.draw(st.lists(prompt, min_size=1, max_size=room)))

        @precondition(lambda self: self.mirror.texts)
        @rule(data=st.data())
        def extend(self, data: st.DataObject) -> None:
            new = []
            for nodes in self.mirror.nodes:
                count = data.draw(st.integers(0, max_nodes))
                region = range(len(nodes), len(nodes) + count)
                new.append([(data.draw(token), data.draw(st.integers(-1, node - 1))) for node in region])
            self.mirror.extend(new)

        @precondition(lambda self: any(self.mirror.nodes))
        @rule(data=st.data())
        def commit(self, data: st.DataObject) -> None:
            leaves = [data.draw(st.integers(-1, len(nodes) - 1)) for nodes in self.mirror.nodes]
            self.mirror.commit([self.mirror.path(row, leaf) for row, leaf in enumerate(leaves)])

        @precondition(lambda self: len(self.mirror.texts) > 1)
        @rule(data=st.data())
        def release(self, data: st.DataObject) -> None:
            rows = st.integers(0, len(self.mirror.texts) - 1)
            self.mirror.release(sorted(data.draw(st.sets(rows, min_size=1, max_size=2))))

        @invariant()
        def lengths_agree(self) -> None:
            self.mirror.check_lengths()

    return BackendMachine


class StateBackendTests:
    """Law S, test by test. A subclass gives `vocab_size`, `make_backend` and `logits_after`.

    Attributes:
        vocab_size: tokens below it are used.
        tolerance: largest absolute difference allowed in a logit.
        context: tokens of the longer prompts; set it beyond the model's attention window.
        longest: tokens of the longest texts and nodes of the largest tree, or what the model can hold.
        examples: Hypothesis examples of the state machine.
        steps: calls in each.
    """

    vocab_size: int
    tolerance: float = 1e-4
    context: int = 21
    longest: int = 270
    examples: int = 12
    steps: int = 10

    def make_backend(self) -> StateBackend:
        """A backend without rows."""
        raise NotImplementedError

    def logits_after(self, tokens: list[int]) -> Tensor:
        """Next-token logits `[vocab]` after `tokens`, computed without any help of the backend's."""
        raise NotImplementedError

    def features_of(self, backend: StateBackend) -> FeaturesAfter | None:
        """Returns the oracle for the features of `backend`; by default the features of its `model`."""
        return features_oracle_of(backend)

    def mirror(self) -> Mirror:
        """Returns a fresh backend with an empty mirror."""
        return Mirror(self.make_backend(), self.logits_after, self.tolerance)

    def text(self, length: int, seed: int = 0) -> list[int]:
        """Random tokens."""
        rng = random.Random(seed)
        return [rng.randrange(self.vocab_size) for _ in range(length)]

    def test_one_tree(self) -> None:
        """A node sees its text and its ancestors, and nothing else; a commit keeps one path."""
        mirror, tokens = self.mirror(), self.text(9, 6)
        mirror.prefill([self.text(5)])
        mirror.extend([[(tokens[0], -1)]])
        mirror.extend([[(tokens[1], -1), (tokens[2], 0), (tokens[3], 0), (tokens[4], 3), (tokens[8], 1)]])
        mirror.commit([[0, 3, 4]])
        mirror.extend([[(tokens[5], -1), (tokens[6], -1), (tokens[7], 1)]])
        mirror.commit([[]])
        mirror.check_state()

    def test_rounds_of_trees(self) -> None:
        """Several rounds over rows of differing length; trees come in one call or layer by layer."""
        mirror, rng = self.mirror(), random.Random(1)
        mirror.prefill([self.text(self.context), self.text(3, 1), self.text(self.context // 2, 2)])
        for round_ in range(4):
            for _ in range(1 + round_ % 3):
                new = []
                for nodes in mirror.nodes:
                    region = range(len(nodes), len(nodes) + rng.randint(0, 5))
                    new.append([(rng.randrange(self.vocab_size), rng.randint(-1, p - 1)) for p in region])
                mirror.extend(new)
            ends = [rng.randint(-1, len(nodes) - 1) for nodes in mirror.nodes]
            mirror.commit([mirror.path(row, end) for row, end in enumerate(ends)])

    def test_children_far_behind_their_parents(self) -> None:
        """A node's index in the tree says nothing about its position."""
        mirror, tokens = self.mirror(), self.text(26)
        mirror.prefill([self.text(self.context)])
        fillers = [(token, 0) for token in tokens[1:19]]
        chain = [(tokens[19], 0), (tokens[20], 19), (tokens[21], 20), (tokens[22], 21)]
        mirror.extend([[(tokens[0], -1), *fillers, *chain]])
        mirror.commit([[0, 19, 20, 21]])
        mirror.extend([[(tokens[23], -1), (tokens[24], 0), (tokens[25], -1)]])
        mirror.commit([[2]])
        mirror.check_state()

    def test_chains_in_one_call_and_in_several(self) -> None:
        """Depths beyond every small power of two, and beyond a short attention window."""
        mirror = self.mirror()
        mirror.prefill([self.text(2)])
        for depth in (2, 3, 4, 5, 9):
            mirror.extend([[(token, node - 1) for node, token in enumerate(self.text(depth, depth))]])
            mirror.commit([[]])
        tokens = self.text(15, 1)
        for first, last in ((0, 4), (4, 5), (5, 15)):
            mirror.extend([[(tokens[node], node - 1) for node in range(first, last)]])
        mirror.commit([list(range(13))])
        mirror.check_state()

    def test_ragged_counts(self) -> None:
        """Region indices only count the row's own nodes, whatever padding was between them."""
        mirror = self.mirror()
        mirror.prefill([self.text(2), self.text(5, 1), self.text(1, 2)])
        mirror.extend([[(1, -1), (2, 0), (3, 0)], [(4, -1)], []])
        mirror.extend([[(5, 2)], [(6, 0), (7, 0)], [(8, -1), (9, 0)]])
        mirror.extend([[(1, 3), (2, 1)], [(3, 2)], [(4, 0)]])
        mirror.commit([[0, 2, 3, 4], [0, 2, 3], [0, 2]])
        mirror.check_state()

    def test_empty_rows(self) -> None:
        """A row without committed tokens, an empty call and an empty path."""
        mirror = self.mirror()
        mirror.prefill([])
        mirror.prefill([[]])
        mirror.extend([[(3, -1), (1, 0), (2, 0)]])
        mirror.commit([[]])
        mirror.extend([[(3, -1), (1, 0), (2, 0)]])
        mirror.commit([[0, 2]])
        mirror.prefill([[], self.text(4)])
        mirror.extend([[], [], []])
        mirror.check_state()

    def test_rows_come_and_go(self) -> None:
        """Rows join after the others; rows after a released row move up with their uncommitted nodes."""
        mirror = self.mirror()
        mirror.prefill([self.text(4), self.text(self.context, 1), self.text(6, 2)])
        mirror.extend([[(1, -1), (2, 0)], [(3, -1), (4, 0), (5, 0)], [(6, -1)]])
        mirror.extend([[], [(4, 0)], [(5, 0), (6, 1)]])
        mirror.release([1])
        mirror.extend([[(1, 1)], [(2, 2)]])
        mirror.commit([[0, 1, 2], [0, 1, 2, 3]])
        mirror.prefill([self.text(9, 3)])
        mirror.release([0])
        mirror.check_state()
        mirror.release([7])  # a row it does not hold
        mirror.release(None)
        mirror.prefill([self.text(3, 4)])
        mirror.check_state()

    def test_many_rows(self) -> None:
        """Seven rows, two of one text, on different paths, are as right as one; the last ones come and go."""
        mirror, rng = self.mirror(), random.Random(2)
        mirror.prefill([self.text(length, length) for length in (3, 9, 0, 5, 12, 5, 7)])
        for gone in ((4,), (), (0, 5), (2, 3)):
            for most in (4, 3):
                mirror.extend([self._grown(nodes, rng.randint(1, most), rng) for nodes in mirror.nodes])
            ends = [rng.randint(-1, len(nodes) - 1) for nodes in mirror.nodes]
            mirror.commit([mirror.path(row, end) for row, end in enumerate(ends)])
            mirror.release(gone)
            mirror.prefill([self.text(4 + len(gone), len(mirror.texts))] * min(len(gone), 1))
        mirror.check_state()

    def test_large_trees(self) -> None:
        """More than 64 nodes in one call, and chains as deep."""
        mirror, rng = self.mirror(), random.Random(3)
        size = self._room(mirror, 72)
        mirror.prefill([self.text(3), self.text(1, 1)])
        mirror.extend([self._grown([], size, rng), self._grown([], 2, rng)])
        mirror.extend([self._grown(nodes, 3, rng) for nodes in mirror.nodes])
        deepest = max(range(size + 3), key=lambda node: len(mirror.path(0, node)))
        mirror.commit([mirror.path(0, deepest), [0]])
        mirror.check_state()
        mirror.release([0])
        chain = [(token, node - 1) for node, token in enumerate(self.text(self._room(mirror, 69) - 4, 4))]
        mirror.extend([chain])
        mirror.commit([list(range(len(chain) - 1))])
        mirror.check_state()

    def test_long_texts(self) -> None:
        """Texts beyond 64, 128 and 256 tokens are right, by prefill and commits, singly and in a batch."""
        mirror, rng = self.mirror(), random.Random(4)
        longest = self._room(mirror, self.longest)
        lengths = [min(length, longest - 16) for length in (61, 125, 251)]
        mirror.prefill([self.text(lengths[0]), self.text(2, 1)])
        mirror.prefill([self.text(lengths[1], 2)])
        mirror.prefill([self.text(lengths[2], 3)])
        for round_ in range(4):
            trees = [[(rng.randrange(self.vocab_size), parent) for parent in (-1, 0, 0, 1)] for _ in lengths]
            mirror.extend([trees[0], self._grown([], 24, rng, depth=True), *trees[1:]])
            long = mirror.path(1, 23) if len(mirror.texts[1]) + 26 < longest else [0]
            mirror.commit([[0, 2], long, [0, 1, 3] if round_ % 2 else [0], [0, 1]])
        mirror.release([0, 2])
        mirror.check_state()

    def _room(self, mirror: Mirror, tokens: int) -> int:
        """`tokens` tokens, or as many as a text may have."""
        limit = mirror.backend.max_length
        return min(tokens, self.longest) if limit is None else min(tokens, self.longest, limit)

    def _grown(
        self, nodes: Sequence[Node], count: int, rng: random.Random, *, depth: bool = False
    ) -> list[Node]:
        """More nodes for a tree below random ones, or one below the other."""
        new_nodes = range(len(nodes), len(nodes) + count)
        return [
            (rng.randrange(self.vocab_size), node - 1 if depth else rng.randint(-1, node - 1))
            for node in new_nodes
        ]

    def test_random_calls(self) -> None:
        """Any sequence of calls agrees with lists of tokens."""
        machine = backend_machine(
            self.make_backend,
            self.logits_after,
            vocab_size=self.vocab_size,
            tolerance=self.tolerance,
        )
        budget = settings(
            max_examples=self.examples,
            stateful_step_count=self.steps,
            deadline=None,
            database=None,
            # Finding the values that do not matter takes minutes, and the message names those that do.
            phases=[Phase.generate, Phase.shrink],
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            run_state_machine_as_test(machine, settings=budget)
        except WrongLogits as wrong:
            raise wrong.explained() from None

    def test_bad_calls_leave_the_state(self) -> None:
        """Malformed trees, paths and prompts raise on purpose, and the state is as it was."""
        mirror = self.mirror()
        mirror.prefill([self.text(5), self.text(2, 1)])
        mirror.extend([[(1, -1), (2, 0), (3, 0)], [(4, -1), (5, 0), (6, 1)]])
        backend, fine = mirror.backend, torch.zeros(2, 1, dtype=torch.int64)
        calls: dict[str, Callable[[], object]] = {
            "extend with a token beyond the vocabulary": lambda: backend.extend(
                fine + backend.vocab_size, fine
            ),
            "extend with the token -1": lambda: backend.extend(fine - 1, fine),
            "extend with a parent that is not there": lambda: backend.extend(fine, fine + 3),
            "extend with the parent -2": lambda: backend.extend(fine, fine - 2),
            "extend of one row of two": lambda: backend.extend(fine[:1], fine[:1]),
            "extend with more parents than tokens": lambda: backend.extend(
                fine, torch.zeros(2, 2, dtype=torch.int64)
            ),
            "extend with one count for two rows": lambda: backend.extend(fine, fine, [1]),
            "extend with a count above the nodes": lambda: backend.extend(fine, fine, [2, 1]),
            "commit of one path for two rows": lambda: backend.commit([[0]]),
            "commit of a path that does not start below the committed state": lambda: backend.commit(
                [[1], []]
            ),
            "commit of a path that leaves out a node": lambda: backend.commit([[0], [0, 2]]),
            "commit of a node that is not there": lambda: backend.commit([[0, 3], []]),
            "commit of the node -1": lambda: backend.commit([[0, -1], []]),
        }
        for what, call in calls.items():
            raises_on_purpose(what, call)
        with _state_as_it_was():
            mirror.extend([[(7, 2)], [(8, 2)]])
            mirror.commit([[0, 2, 3], [0, 1]])
        one, bad = torch.tensor([1]), torch.tensor([1, backend.vocab_size])
        raises_on_purpose("prefill with a token beyond the vocabulary", lambda: backend.prefill([one, bad]))
        raises_on_purpose("prefill with a matrix", lambda: backend.prefill([torch.tensor([[1, 2]])]))
        with _state_as_it_was():
            mirror.check_lengths()
            mirror.check_state()

    def test_features(self) -> None:
        """After any rounds the features of committed tokens equal a plain forward's features."""
        mirror = self.mirror()
        prompts = [self.text(self.context), self.text(3, 1), []]
        check_features(mirror, self.features_of(mirror.backend), prompts)

    def test_output_head(self) -> None:
        """The output head makes the logits of the features that it reads."""
        check_output_head(self.mirror(), self.text(5))


@contextmanager
def _state_as_it_was() -> Iterator[None]:
    """Blame what fails here on the malformed calls before."""
    likely = "a call that raises has changed the state; check all of it before anything is written."
    try:
        yield
    except LawBroken as broken:
        raise LawBroken(f"After malformed calls {broken}", error=broken.error, likely=likely) from broken
    except DraftwoodError as error:
        raise LawBroken(f"After malformed calls a good one raises: {error}", likely=likely) from error
