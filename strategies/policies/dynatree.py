"""DynaTree: branching by confidence, depth by path probability, both tuned by recent outcomes."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import attrs
from torch import Tensor

from draftwood import (
    Deterministic,
    InvalidInput,
    LearningPolicy,
    Outcome,
    Proposal,
    Randomness,
    Request,
    TokenTree,
    TreeBuilder,
    draw_children,
)
from draftwood.base.validators import at_least, probability
from draftwood.strategies.laws import SingleLawPolicy, as_law

# The authors' schedule; the paper promises it and does not print it.
_ACCEPTANCE, _TOLERANCE = 0.7, 0.1
_STEP = 0.05
_LEAST_DEPTH = 2
_CONFIDENT, _DEEP = (0.5, 0.95), (0.3, 0.8)  # least and most


def in_order(low: str) -> Any:
    """A probability that is no less than the field `low`."""

    def check(policy: DynaTree, field: attrs.Attribute[Any], value: Any) -> None:
        probability(policy, field, value)
        if value < getattr(policy, low):
            raise InvalidInput(
                f"{field.name} is {value} and {low} is {getattr(policy, low)}; {field.name} must not be less."
            )

    return check


def deeper(policy: DynaTree, field: attrs.Attribute[Any], value: Any) -> None:
    at_least(1)(policy, field, value)
    if value <= policy.depth:
        raise InvalidInput(f"max_depth is {value} and depth is {policy.depth}; give a max_depth above depth.")


@attrs.frozen
class DynaTreeState:
    """The settings as outcomes have moved them, and the shares of accepted levels in recent rounds."""

    depth: int
    confident: float
    deep: float
    shares: tuple[float, ...] = ()


@attrs.frozen
class DynaTree(SingleLawPolicy, LearningPolicy[DynaTreeState]):
    """A node gets few children where the draft is sure of the next token, and more where it is not.

    The number of children is 1 where the most likely token has a probability of at least `confident`,
    `branching` where it is below `unsure`, and the middle of both (rounded up) in between. A node is
    expanded while the draft's probability of its path is at least `stop_below`, and from `depth` on only
    while it is at least `deep`. A path below `threshold` is pruned: a child that is a fixed function of
    the context (law `"top-k"`) is itself dropped; a drawn one never is, since dropping it for its own
    probability would bias the output, but it gets no children.

    With `history`, the mean share of accepted levels over the last `window` rounds moves `depth`,
    `confident` and `deep` after every round, once `warmup` rounds were seen: above 0.8 to larger trees,
    below 0.6 to smaller ones. (A share of the drafted tokens, as section 3.3 has it, could not reach the
    acceptance rates of table 3 in any tree that branches.)

    Source: DynaTree, section 3.3 and algorithm 1, with its settings as defaults. Its root is the draft's
    best token, so that the first level never branches; here the root is the last committed token.
    """

    depth: int = attrs.field(default=5, validator=at_least(1))
    max_depth: int = attrs.field(default=8, validator=deeper)
    branching: int = attrs.field(default=3, validator=at_least(1))
    budget: int = attrs.field(default=256, validator=at_least(1))
    unsure: float = attrs.field(default=0.4, validator=probability)
    confident: float = attrs.field(default=0.9, validator=in_order("unsure"))
    stop_below: float = attrs.field(default=0.1, validator=probability)
    deep: float = attrs.field(default=0.5, validator=in_order("stop_below"))
    threshold: float = attrs.field(default=0.05, validator=probability)
    history: bool = True
    window: int = attrs.field(default=10, validator=at_least(1))
    warmup: int = attrs.field(default=5, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=Deterministic, converter=as_law)
    source = "DynaTree, section 3.3"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.branching > 1

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return self.history

    def first_state(self) -> DynaTreeState:
        return DynaTreeState(self.depth, self.confident, self.deep)

    def grow(
        self, root: int, rng: Randomness, state: DynaTreeState | None = None
    ) -> Generator[Request, Tensor, TokenTree]:
        settings, tree = state or self.first_state(), TreeBuilder(root)
        level, path_probs = [0], {0: 1.0}  # path_probs: the draft's probability of the path to a node
        while level and len(tree) <= self.budget:
            probs = yield tree.request(level)
            below: list[int] = []
            counts = [
                self._branching(confidence, settings) for confidence in probs.flatten(1).amax(1).tolist()
            ]
            # The room left depends on what was drawn before, never on a child's own token. A child that is
            # fixed by the context may yet be pruned, and then takes none of it.
            fixed = self.law is Deterministic
            room = None if fixed else self.budget + 1 - len(tree)
            drawn = draw_children(self.law, probs, count=counts, rng=rng, total=room)
            for node, siblings in zip(level, drawn, strict=False):
                chances = [path_probs[node] * chance for chance in siblings.chances]
                if fixed:
                    chances = [chance for chance in chances if chance >= self.threshold]
                    chances = chances[: self.budget + 1 - len(tree)]
                children = tree.add_children(node, siblings.tokens[: len(chances)], siblings.proposal)
                path_probs.update(zip(children, chances, strict=True))
                below += children
            level = [node for node in below if self._expands(tree.depths[node], path_probs[node], settings)]
        return tree.finish()

    def _branching(self, confidence: float, settings: DynaTreeState) -> int:
        if confidence >= settings.confident:
            return 1
        return self.branching if confidence < self.unsure else self.branching // 2 + 1

    def _expands(self, depth: int, path_prob: float, settings: DynaTreeState) -> bool:
        likely = path_prob >= max(self.stop_below, self.threshold)
        return likely and depth < self.max_depth and (depth < settings.depth or path_prob >= settings.deep)

    def observe(self, state: DynaTreeState, outcome: Outcome, tree: TokenTree) -> DynaTreeState:
        levels = tree.depth
        if not self.history or not levels:
            return state
        shares = (*state.shares, outcome.accepted / levels)[-self.window :]
        state = attrs.evolve(state, shares=shares)
        if len(shares) < min(self.warmup, self.window):
            return state
        mean = sum(shares) / len(shares)
        if mean > _ACCEPTANCE + _TOLERANCE:
            return self._tuned(state, 1)
        return self._tuned(state, -1) if mean < _ACCEPTANCE - _TOLERANCE else state

    def _tuned(self, settings: DynaTreeState, larger: int) -> DynaTreeState:
        """The settings a step on to larger (1) or smaller (-1) trees."""
        # A setting that starts outside the authors' limits is not pushed back into them.
        depths = (min(_LEAST_DEPTH, self.depth), self.max_depth - 1)
        return DynaTreeState(
            depth=min(max(settings.depth + larger, depths[0]), depths[1]),
            confident=_moved(settings.confident, -larger, _CONFIDENT, self.unsure),
            deep=_moved(settings.deep, -larger, _DEEP, self.stop_below),
            shares=settings.shares,
        )


def _moved(value: float, direction: int, limits: tuple[float, float], floor: float) -> float:
    least, most = max(limits[0], floor), limits[1]
    if direction < 0:
        return max(value - _STEP, min(least, value))
    return min(value + _STEP, max(most, value))
