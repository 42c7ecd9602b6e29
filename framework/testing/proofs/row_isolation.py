"""Checks that the rows of one policy do not affect each other when their trees grow in turns."""

from __future__ import annotations

import copy
import random
from collections.abc import Generator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.laws.randomness import CounterRandomness
from draftwood.protocols import TreePolicy, policy_states
from draftwood.protocols.compatibility import needs_several_drafters
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.row_views import TOY_VIEW
from draftwood.testing.models.toy import NextTokenModel
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import RequestLog

_ROUNDS = 3


@attrs.frozen
class RowRound:
    """A round of a row: the tree's tokens and parents, and what the policy then knew."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    state: Any


def assert_rows_isolated(
    policy: TreePolicy, models: Sequence[NextTokenModel], prompts: Sequence[Sequence[int]]
) -> None:
    """Assert that rows whose trees `policy` grows in turns get the same trees and states as one by one.

    The rows begin with `prompts`; outcomes are drawn at random, equal ones in both runs. It also checks that
    states are values, which neither a growth nor an outcome changes.

    Raises:
        AssertionError: the message names the row, the round, and what was grown or learnt.
    """

    def row(index: int) -> Generator[None, None, list[RowRound]]:
        return _row(policy, models, prompts[index], seed=models[0].seed + index)

    indices = range(len(prompts))
    alone = [_in_turns([row(index)])[0] for index in indices]
    together = _in_turns([row(index) for index in indices])
    for index in indices:
        for number, (round_alone, round_together) in enumerate(
            zip(alone[index], together[index], strict=True)
        ):
            if round_alone != round_together:
                raise LawBroken(
                    f"{policy} does not keep rows apart: in round {number} row {index} has {round_alone} "
                    f"by itself and {round_together} when another row's tree is grown in between.",
                    likely="shared state: something is kept on self while a tree grows, or learnt there.",
                )


def _in_turns(rows: Sequence[Generator[None, None, list[RowRound]]]) -> list[list[RowRound]]:
    """Run the rows, each as far as its next stop, in turns."""
    history: dict[int, list[RowRound]] = {}
    while len(history) < len(rows):
        for index, row in enumerate(rows):
            if index not in history:
                try:
                    next(row)
                except StopIteration as finished:
                    history[index] = finished.value
    return [history[index] for index in range(len(rows))]


def _row(
    policy: TreePolicy, models: Sequence[NextTokenModel], prompt: Sequence[int], seed: int
) -> Generator[None, None, list[RowRound]]:
    """Some rounds of a row; it stops at every request, and between a tree and its outcome."""
    rng, fate = CounterRandomness.seeded(seed), random.Random(seed)
    text, state, history = list(prompt), policy_states.first_state(policy), list[RowRound]()
    for _ in range(_ROUNDS):
        before = copy.deepcopy(state)
        growth, asked = (
            policy_states.growth(policy, [text[-1]], [rng], [state], views=[TOY_VIEW]),
            RequestLog(),
        )
        while growth.requests is not None:
            yield
            (request,) = growth.requests
            assert request is not None
            paths = map(asked.path, asked.take(request))
            probs = [_drafted(policy, models, [*text, *path]) for path in paths]
            growth.answer(torch.stack(probs).unsqueeze(0))
        (tree,) = growth.trees()
        yield
        node = fate.randrange(len(tree))
        extra = fate.randrange(models[0].vocab_size)
        outcome = Outcome.of(tree, tree.path(node), extra=extra, bonus=not tree.children(node))
        earlier, state = state, policy_states.observe(policy, state, outcome, tree)
        assert earlier == before, (
            f"A state of {policy} was {before} before a round and is {earlier} after it; a state never "
            "changes, and is equal to its copies. Make it an attrs.frozen class."
        )
        history.append(RowRound(tuple(tree.tokens.tolist()), tuple(tree.parents.tolist()), state))
        text += outcome.emitted
    return history


def _drafted(policy: TreePolicy, models: Sequence[NextTokenModel], text: Sequence[int]) -> Tensor:
    """Returns the draft distributions after `text`: one per model where each child has its own drafter."""
    if needs_several_drafters(policy):
        return torch.stack([model.probs(text) for model in models])
    return models[0].probs(text)
