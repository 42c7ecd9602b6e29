"""`Enumerator`: a `Randomness` that visits every random outcome with its exact weight."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import attrs
from torch import Tensor

from draftwood.base.errors import DraftwoodError, InvalidDistribution
from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import UnseenChance
from draftwood.testing.models.arrival_times import STEP, arrival_grid

T = TypeVar("T")


MOST_QUESTIONS = 10_000
"""Questions of chance that one run may ask; no toy case comes near."""


_LARGE = 64


class BudgetExceeded(DraftwoodError):
    """A case has more random outcomes than the enumeration was allowed to visit."""


class EndlessRun(DraftwoodError):
    """One run asks for chance again and again; it would never end."""


@attrs.define(eq=False)
class Enumerator(Randomness):
    """Replays a script of choices and takes the first possible outcome wherever the script ends.

    Attributes:
        script: for every choice, which of its possible outcomes to take.
        weight: probability of the outcomes taken so far.
        arrival_step: distance of the times that are visited (see `arrival_grid`).
    """

    script: list[int]
    weight: float = 1.0
    arrival_step: float = STEP
    _choices: list[tuple[int, int]] = attrs.field(factory=list, init=False)  # outcome, possible outcomes
    _questions: int = attrs.field(default=0, init=False)

    @property
    def taken(self) -> list[tuple[int, int]]:
        """The outcome of every choice so far, and the number of its outcomes."""
        return list(self._choices)

    def _count(self) -> None:
        # Certain answers count too: a loop that waits for a rejection which cannot come asks for them.
        self._questions += 1
        if self._questions > MOST_QUESTIONS:
            raise EndlessRun(
                f"One run asked for {MOST_QUESTIONS} random outcomes; a loop in it does not end."
            )

    def _branch(self, weights: Sequence[float]) -> int:
        """Take one of the outcomes and multiply its weight in."""
        position = len(self._choices)
        outcome = self.script[position] if position < len(self.script) else 0
        if outcome >= len(weights):
            raise UnseenChance(
                "A repeated run reached another choice after the same outcomes, so it draws from a source "
                "that is not enumerated. Take all chance from rng, or give samples=."
            )
        self._choices.append((outcome, len(weights)))
        self.weight *= weights[outcome]
        return outcome

    def accept(self, p: float) -> bool:
        self._count()
        if p <= 0 or p >= 1:
            return p >= 1
        return self._branch([p, 1 - p]) == 0

    def choose(self, p: Tensor) -> int:
        self._count()
        # Over a large vocabulary few tokens are open, or there would be no end of outcomes.
        live = p.nonzero().flatten() if len(p) > _LARGE else None
        support = range(len(p)) if live is None else live.tolist()
        chances = (p if live is None else p[live]).tolist()
        total = sum(chances)
        if not 0 < total < float("inf") or min(chances) < 0:
            raise InvalidDistribution(
                f"Cannot draw from the weights {chances}; they must be >= 0 with a finite sum above 0."
            )
        open_tokens = [index for index, chance in enumerate(chances) if chance]
        return support[open_tokens[self._branch([chances[index] / total for index in open_tokens])]]

    def without_replacement(self, p: Tensor, k: int) -> list[int]:
        rest = p.double().clone()
        drawn: list[int] = []
        while len(drawn) < k and bool(rest.any()):
            drawn.append(self.choose(rest))
            rest[drawn[-1]] = 0
        return drawn

    def arrival(self, rates: Sequence[float]) -> float:
        self._count()
        times, weights = arrival_grid(tuple(rates), self.arrival_step)
        return times[self._branch(weights)]

    def next_script(self) -> list[int] | None:
        """The script of the next outcome in depth-first order, or None after the last."""
        choices = list(self._choices)
        while choices:
            outcome, possible = choices.pop()
            if outcome + 1 < possible:
                return [earlier for earlier, _ in choices] + [outcome + 1]
        return None


def enumerate_outcomes(
    run: Callable[[Enumerator], T], *, budget: int = 100_000, arrival_step: float = STEP
) -> Iterator[tuple[float, T]]:
    """Call `run` once for every random outcome; yields its exact weight and result.

    Times of arrival are the points of a grid, `arrival_step` apart; sums over them come out to 1e-13.

    Raises:
        BudgetExceeded: more than `budget` outcomes; the weight still unvisited is named.
    """
    script: list[int] | None = []
    seen = 0.0
    for _ in range(budget):
        assert script is not None
        rng = Enumerator(script, arrival_step=arrival_step)
        result = run(rng)
        seen += rng.weight
        yield rng.weight, result
        script = rng.next_script()
        if script is None:
            return
    raise BudgetExceeded(
        f"{budget} outcomes were visited and a weight of {1 - seen:.3g} is left; use fewer tokens, a "
        "smaller vocabulary or tree, or raise the budget."
    )
