"""Children of the nodes of a level, for all rows at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood import Deterministic, Proposal, Randomness, WithoutReplacement
from draftwood.ordered_draws import ChildDraws
from draftwood.randomness import NodeNoise, UniformRandomness
from draftwood.strategies.acceptance_vectors import certainty, conditional_acceptance

_certainties = np.vectorize(certainty, otypes=[np.float64])

Numbers = NDArray[np.int64]
Values = NDArray[np.float64]


def drawn_at_once(rngs: Sequence[Randomness], law: type[Proposal]) -> TypeGuard[Sequence[UniformRandomness]]:
    """Whether children of many nodes can be drawn by `law` at once from these streams."""
    known = law in (WithoutReplacement, Deterministic)
    return known and all(isinstance(rng, UniformRandomness) for rng in rngs)


def top_tokens(probs: Float[Tensor, "rows nodes vocab"], count: int) -> tuple[Numbers, Values]:
    """The `count` most likely tokens of every node and their probabilities, `[rows, nodes, count]`."""
    top = probs.topk(min(count, probs.shape[-1]))
    if probs.device.type == "cpu":
        return top.indices.numpy(), top.values.double().numpy()
    # One result to wait for; float32 counts to 2**24, and no vocabulary is larger.
    read = torch.stack([top.values.float(), top.indices.float()]).cpu().double().numpy()
    return read[1].astype(np.int64), read[0]


def draw_level(
    law: type[Proposal],
    probs: Float[Tensor, "rows nodes vocab"],
    *,
    rngs: Sequence[UniformRandomness],
    counts: Numbers,
    wanted: Numbers,
) -> tuple[Numbers, Values]:
    """Up to `wanted[i, j]` children of node j of row i; tokens and chances `[rows, nodes, most]`.

    The token is -1 where there is none; those that there are stand first.

    Args:
        law: `WithoutReplacement` or `Deterministic`.
        probs: the nodes' distributions; of zeros where nothing is proposed.
        rngs: the draft streams.
        counts: nodes of every row; the others are padding.
        wanted: int64 `[rows, nodes]`.
    """
    most = int(wanted.max(initial=0))
    wanted = np.where(np.arange(wanted.shape[1]) < counts[:, None], wanted, 0)
    if law is Deterministic:
        tokens, chances = top_tokens(probs, most)
        missing = ((0, 0), (0, 0), (0, most - tokens.shape[2]))  # of a vocabulary smaller than that
        tokens, chances = np.pad(tokens, missing), np.pad(chances, missing)
        found = (np.arange(tokens.shape[2]) < wanted[:, :, None]) & (chances > 0)
        return np.where(found, tokens, -1), np.where(found, chances, 0.0)
    draws = ChildDraws(probs, NodeNoise.of(rngs, counts.tolist()), counts, at_once=most)
    return draws.up_to(wanted)


class Slots(ABC):
    """The next children of the nodes of a level, as they are drawn.

    Attributes:
        next_values: float64 `[rows, nodes]`, the value of each node's next slot relative to the path to the
            node; 0 where no token is left.
    """

    next_values: Values

    @property
    def one_by_one(self) -> bool:
        """Whether `draw_one` serves, at no more cost than draws of many nodes at once."""
        return False

    def draw_one(self, row: int, node: int) -> tuple[int, float]:
        """The next child of one node: its token (-1 for none) and what its own children start from."""
        raise NotImplementedError

    @abstractmethod
    def draw(self, wanted: tuple[NDArray[np.intp], ...], count: int) -> tuple[Numbers, Values, Values]:
        """The next `count` children of these nodes (rows and nodes), `[len(wanted[0]), count]`.

        Returns:
            Tokens (-1 where there is none), what their own children start from relative to the node, and
            the values of their slots, relative too.
        """


def start_slots(
    law: type[Proposal],
    probs: Float[Tensor, "rows nodes vocab"],
    rngs: Sequence[UniformRandomness],
    counts: Numbers,
    budget: int,
    acceptance: Sequence[float] = (),
    floors: Values | None = None,
) -> Slots:
    """The slots of a level's nodes, `counts[i]` in row i, of which a row may take `budget` in all.

    With `floors` `[rows, nodes]`, no slot is asked for that is worth no more than its node's.
    """
    if law is Deterministic:
        return _TopSlots(probs, counts, budget)
    # What is left at a node is what its next slot is worth, unless chances were measured. Without floors a
    # node may take all of the budget, and the usual ones take few.
    sampled = floors is not None and not acceptance
    at_once = budget if sampled else min(budget, max(16, 2 * budget // max(probs.shape[1], 1)))
    draws = ChildDraws(
        probs,
        NodeNoise.of(rngs, counts.tolist()),
        counts,
        at_once=at_once,
        floors=floors if sampled else None,
    )
    if acceptance:
        return _MeasuredSlots(draws, np.array(list(conditional_acceptance(acceptance))))
    return _SampledSlots(draws)


class _SampledSlots(Slots):
    """Drawn without replacement, and worth their draft probability."""

    def __init__(self, draws: ChildDraws) -> None:
        self._draws, self.next_values = draws, draws.left

    @property
    def one_by_one(self) -> bool:
        return self._draws.one_by_one

    def draw_one(self, row: int, node: int) -> tuple[int, float]:
        return self._draws.next_of(row, node)

    def draw(self, wanted: tuple[NDArray[np.intp], ...], count: int) -> tuple[Numbers, Values, Values]:
        return self._draws.next(wanted, count)


class _MeasuredSlots(Slots):
    """Drawn without replacement, and worth what measured chances of acceptance promise."""

    def __init__(self, draws: ChildDraws, chances: Values) -> None:
        self._draws, self._chances = draws, chances
        self._slots = np.minimum(draws.left, 1.0)
        self.next_values = draws.left.copy()

    def draw(self, wanted: tuple[NDArray[np.intp], ...], count: int) -> tuple[Numbers, Values, Values]:
        ranks = self._draws.drawn[wanted]
        tokens, chances, left = self._draws.next(wanted, count)
        values, below = np.zeros_like(chances), np.zeros_like(chances)
        for number in range(count):
            measured = self._chances[np.minimum(ranks + number, len(self._chances) - 1)]
            share = chances[:, number] / np.maximum(left[:, number], np.finfo(np.float64).tiny)
            accepted = measured + (1 - measured) * _certainties(np.minimum(share, 1.0))
            values[:, number], slots = self.next_values[wanted], self._slots[wanted]
            below[:, number] = slots * accepted
            self._slots[wanted] = slots * (1 - accepted)
            after = left[:, number + 1] if number + 1 < count else self._draws.left[wanted]
            self.next_values[wanted] = np.where(after > 0, self._slots[wanted], 0.0)
        return tokens, below, values


class _TopSlots(Slots):
    """The most likely tokens, worth their own probability."""

    def __init__(self, probs: Tensor, counts: Numbers, budget: int) -> None:
        tokens, values = top_tokens(probs, budget)
        valid = np.arange(tokens.shape[1]) < counts[:, None]
        nothing = np.zeros((*valid.shape, budget + 1))  # behind the last one
        self._tokens = np.concatenate([tokens, np.full_like(nothing, -1).astype(np.int64)], 2)
        self._values = np.concatenate([np.where(valid[:, :, None], values, 0.0), nothing], 2)
        self._ranks = np.zeros(valid.shape, dtype=np.int64)
        self.next_values = self._values[:, :, 0].copy()

    def draw(self, wanted: tuple[NDArray[np.intp], ...], count: int) -> tuple[Numbers, Values, Values]:
        ranks = self._ranks[wanted][:, None] + np.arange(count)
        self._ranks[wanted] += count
        each = (wanted[0][:, None], wanted[1][:, None], ranks)
        self.next_values[wanted] = self._values[(*wanted, ranks[:, -1] + 1)]
        values = self._values[each]
        return np.where(values > 0, self._tokens[each], -1), values, values
