"""Chance that answers wrongly, over the enumerator that would have answered rightly."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from draftwood import Randomness, TapeRandomness


@attrs.frozen
class MostLikely(Randomness):
    """Takes the most likely outcome instead of drawing one."""

    rng: Randomness

    def accept(self, p: float) -> bool:
        return self.rng.accept(p)

    def choose(self, p: Tensor) -> int:
        return int(p.argmax())

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        return p.topk(min(k, int(p.count_nonzero()))).indices.tolist()


@attrs.frozen
class Rounded(Randomness):
    """Draws from probabilities in bfloat16."""

    rng: Randomness

    def accept(self, p: float) -> bool:
        return self.rng.accept(p)

    def choose(self, p: Tensor) -> int:
        return self.rng.choose(p.bfloat16().double())

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        return self.rng.without_replacement(p.bfloat16().double(), k)


@attrs.frozen
class OnGrid(Randomness):
    """Production's own draws from uniforms k / `points`, every one of which is tried and counted.

    Exact for probabilities that are multiples of 1 / `points`. With `closed` the coin's test is
    `coin <= p`.
    """

    rng: Randomness
    points: int = 256
    closed: bool = False

    @property
    def uniforms(self) -> Tensor:
        return torch.arange(self.points, dtype=torch.float64) / self.points

    def accept(self, p: float) -> bool:
        heads = self.uniforms <= p if self.closed else self.uniforms < p
        return self.rng.accept(int(heads.sum()) / self.points)

    def choose(self, p: Tensor) -> int:
        drawn = [TapeRandomness(u).choose(p) for u in self.uniforms.split(1)]
        return self.rng.choose(torch.bincount(torch.tensor(drawn), minlength=len(p)).double())

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        rest = p.clone()
        drawn: list[int] = []
        while len(drawn) < k and bool(rest.any()):
            drawn.append(self.choose(rest))
            rest[drawn[-1]] = 0
        return drawn
