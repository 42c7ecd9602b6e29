"""The only source of chance: one protocol, and its implementations over streams of uniforms.

Law D: a row's stream depends on the row's own seed alone, so the same seed and prompt give the same
text in any batch. Draft and verification draw from separate streams: noise that chose a draft token
must never be seen again by the verifier that judges it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from numbers import Integral
from typing import Protocol

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.errors import InvalidDistribution, InvalidInput


class Randomness(Protocol):
    """What policies and verifiers may ask of chance.

    The enumerator of `draftwood.testing` answers the same three questions by visiting every outcome.
    """

    def accept(self, p: float) -> bool:
        """True with probability `p`; never at 0, always at 1."""
        ...

    def choose(self, p: Tensor) -> int:
        """An index drawn from the weights `p` `[vocab]`, which need not be normalised."""
        ...

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        """Up to `k` distinct indices drawn one after another from `p` `[vocab]`, in drawn order.

        The law is that of Gumbel top-k; fewer come back when fewer weights are above 0.
        """
        ...


class UniformRandomness(Randomness):
    """Everything from one stream of float64 uniforms in [0, 1): the base of torch streams and tapes."""

    @abstractmethod
    def uniforms(self, n: int) -> Tensor:
        """The next `n` numbers of the stream, float64 on the CPU."""

    @abstractmethod
    def ahead(self, n: int) -> Tensor:
        """As `uniforms`, and they stay in the stream; fewer where a tape ends."""

    def accept(self, p: float) -> bool:
        # Strict: a coin of exactly 0 must not accept a token of probability 0.
        return float(self.uniforms(1)) < p

    def choose(self, p: Tensor) -> int:
        # float64 throughout: uniforms of low resolution starve the tail of a large vocabulary.
        heights = p.cumsum(-1, dtype=torch.float64)
        return _at(heights, float(self.uniforms(1)))

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        rest = p.to(torch.float64, copy=True)
        drawn: list[int] = []
        for _ in range(min(k, rest.shape[-1])):
            heights = rest.cumsum(-1)
            if not float(heights[-1]) > 0:
                break
            drawn.append(_at(heights, float(self.uniforms(1))))
            rest[drawn[-1]] = 0
        return drawn


def _at(heights: Tensor, u: float) -> int:
    """The first index whose cumulative weight exceeds `u` times the total, so never one of weight 0."""
    total = float(heights[-1])
    if not 0 < total < float("inf"):
        raise InvalidDistribution(
            f"Cannot draw from weights that sum to {total:.3g}; check the logits for NaN or infinity."
        )
    index = int(torch.searchsorted(heights, u * total, right=True))
    if index < len(heights):
        return index
    # u * total rounded up to the total itself: the last token with any weight is meant.
    return int(torch.searchsorted(heights, total))


@attrs.define(eq=False)
class TorchRandomness(UniformRandomness):
    """A stream backed by a `torch.Generator`."""

    generator: torch.Generator

    @classmethod
    def seeded(cls, seed: int) -> TorchRandomness:
        return cls(torch.Generator().manual_seed(seed))

    def uniforms(self, n: int) -> Tensor:
        return torch.rand(n, dtype=torch.float64, generator=self.generator)

    def ahead(self, n: int) -> Tensor:
        state = self.generator.get_state()
        numbers = self.uniforms(n)
        self.generator.set_state(state)
        return numbers


@attrs.define(eq=False)
class TapeRandomness(UniformRandomness):
    """Replays a recorded tape of uniforms, so that a fused kernel can be compared draw by draw."""

    tape: Tensor
    used: int = 0

    def uniforms(self, n: int) -> Tensor:
        if self.used + n > len(self.tape):
            raise InvalidInput(
                f"The tape of {len(self.tape)} uniforms is used up at {self.used}; record a longer one."
            )
        self.used += n
        return self.tape[self.used - n : self.used].to(torch.float64)

    def ahead(self, n: int) -> Tensor:
        return self.tape[self.used : self.used + n].to(torch.float64)


@attrs.frozen
class Streams:
    """The two named streams of one row."""

    draft: Randomness
    verify: Randomness

    @classmethod
    def seeded(cls, seed: int) -> Streams:
        """Independent draft and verification streams spawned from one `seed` >= 0."""
        if seed < 0:
            raise InvalidInput(f"The seed is {seed}; give an integer >= 0.")
        draft, verify = (
            int(s.generate_state(1, np.uint64)[0] >> 1) for s in np.random.SeedSequence(seed).spawn(2)
        )
        return cls(TorchRandomness.seeded(draft), TorchRandomness.seeded(verify))


def row_seeds(seed: int | Sequence[int] | None, rows: int) -> list[int]:
    """One seed a row: row 0 has `seed` itself, the others are spawned from it, so that calls with
    consecutive seeds share no row. None takes a seed from torch's global generator.

    Raises:
        InvalidInput: another number of seeds than of rows, or one that is no integer >= 0.
    """
    if seed is None:
        seed = int(torch.randint(2**31, ()))
    if isinstance(seed, Sequence):
        if len(seed) != rows:
            raise InvalidInput(f"{len(seed)} seeds were given for {rows} rows; give one a row.")
        return [_as_seed(row_seed) for row_seed in seed]
    seed = _as_seed(seed)
    spawned = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(max(rows - 1, 0), np.uint64)
    return [seed, *(int(row_seed) for row_seed in spawned)][:rows]


def _as_seed(seed: object) -> int:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or seed < 0:
        raise InvalidInput(f"The seed is {seed!r}; give an integer >= 0.")
    return int(seed)
