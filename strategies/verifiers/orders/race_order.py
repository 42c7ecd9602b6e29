"""Siblings judged as one set: each in a place and with an allowance that no sibling's token decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import Randomness, TokenTree
from draftwood.laws.proposals import ANY_LAW, Proposal, WithoutReplacement
from draftwood.laws.set_laws import FixedTimeSet
from draftwood.strategies.verifiers.orders.race_flows import Flows, flows_of, flows_of_all
from draftwood.strategies.verifiers.orders.race_laws import Arrival, Given, Pair, SetLaw
from draftwood.strategies.verifiers.orders.race_sums import places_of, total_without
from draftwood.strategies.verifiers.orders.sibling_order import DrawnTries, SiblingOrder, Tries
from draftwood.strategies.verifiers.residual import Candidate, Residual, TriedLaw
from draftwood.strategies.verifiers.vocabulary import checked_total

_LEAST = 1e-60
_LATEST = 1e300


@attrs.frozen
class RaceOrder(SiblingOrder):
    """All siblings of a node looked at together, where their law as a set is known; the others as drawn.

    They are tried in the order of what the target wants more than the draft offers, with allowances that
    account for the order. The law of three siblings or more drawn without replacement has a closed form
    given the time at which the next one would have come, if tokens came at exponential times. The time's
    law given the drawn order is that of a sum: one gap for each mass that was left. So it is drawn here.

    Source: draftwood.
    """

    laws = ANY_LAW | {FixedTimeSet}
    adaptive = False
    on_host = True

    def node_streams(self, tree: TokenTree, rng: Randomness) -> Mapping[int, Randomness]:
        # A node's time comes from a separate stream, so that it is the same whichever nodes are visited.
        clocked = [
            node
            for node in range(len(tree))
            if len(tree.children(node)) > 2 and isinstance(tree.proposals[node], WithoutReplacement)
        ]
        return dict(zip(clocked, rng.nodes(len(clocked)), strict=True)) if clocked else {}

    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        match proposal:
            case WithoutReplacement() if len(tokens) > 1:
                checked_total(proposal.p, "The draft distribution of WithoutReplacement")
                weights = _on_host(proposal.p)
            case FixedTimeSet() if len(tokens) == proposal.count:
                weights = torch.from_numpy(proposal.odds)
            case _:
                return DrawnTries(tokens, proposal)
        chances = weights.numpy()[list(tokens)].astype(np.float64)
        if len(set(tokens)) < len(tokens) or not chances.all():
            return DrawnTries(tokens, proposal)  # such siblings were not drawn by this law
        if chances.min() <= _LEAST and int((weights > _LEAST).sum()) < len(tokens):
            return DrawnTries(tokens, proposal)  # powers of such numbers leave the range
        left = masses_left(weights, tokens)
        if not left[-1] > 0:
            return RaceTries(tokens, None)
        if isinstance(proposal, FixedTimeSet):
            return RaceTries(tokens, Given(weights, len(tokens)))
        if len(tokens) == 2:
            return RaceTries(tokens, Pair(weights, left[0]))
        time = min(rng.arrival([mass / left[0] for mass in left]), _LATEST)
        if time > 1e30 * left[0]:
            weights = weights.double()  # the products leave the range of float32
        return RaceTries(tokens, Arrival(weights, len(tokens), time / left[0]))


@attrs.define(eq=False)
class RaceTries(Tries):
    """The children of one node, tried in an order of the whole vocabulary, each with its allowance.

    What every token receives is known beforehand (see `flows_of`). When the last sibling has failed, that is
    taken from the target, and the rest is the node's residual.

    Attributes:
        tokens: of the siblings, in drawn order.
        law: of the siblings as a set; None where they are all that can be drawn.
    """

    tokens: Sequence[int]
    law: SetLaw | None
    _flows: Flows | None = attrs.field(default=None, init=False)
    _waiting: list[Candidate] = attrs.field(factory=list, init=False)

    def next(self, residual: Residual) -> Candidate | None:
        if self._flows is None:
            target = _on_host(residual.weights)
            if self.law is None:
                self._flows = flows_of_all(np.sort(self.tokens), target, residual.scale)
            else:
                self._flows = flows_of(self.law, target, residual.scale)
            self._waiting = self._candidates(target, residual.scale)
        if self._waiting:
            return self._waiting.pop()
        residual.give(self._flows.tokens, self._flows.flows)
        return None

    def _candidates(self, target: Float[Tensor, " vocab"], scale: float) -> list[Candidate]:
        """The siblings that have an allowance, the last one to be tried first; `target` over `scale`."""
        assert self._flows is not None
        flows, candidates = self._flows, list[Candidate]()
        places = places_of(flows.tokens, np.array(self.tokens, np.int64)).tolist()
        offered = sorted((place, index) for index, place in enumerate(places) if place >= 0)
        for place, index in offered:
            # What is not offered would follow the last one.
            last = len(offered) == len(places) and place == offered[-1][0]
            allowance = float((flows.last_allowances if last else flows.allowances)[place])
            if allowance > 0:
                wanted = float(target[self.tokens[index]]) / scale
                candidates.append(Candidate(index, self.tokens[index], Arriving(wanted / allowance)))
        return candidates[::-1]


@attrs.frozen
class Arriving(TriedLaw):
    """The chance that a sibling is tried, from which its allowance follows. Its failure takes nothing yet."""

    chance: float

    def __getitem__(self, token: int) -> float:
        return self.chance

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        return left


def masses_left(weights: Float[Tensor, " vocab"], tokens: Sequence[int]) -> list[float]:
    """Returns the draft's mass before each of `tokens` is taken away, and after the last of them."""
    chosen, array = np.array(tokens, np.int64), weights.numpy()
    left = [total_without(array, chosen)]
    chances = array[chosen]
    for chance in chances[::-1].tolist():
        left.append(left[-1] + chance)
    return left[::-1]


def _on_host(weights: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """Returns the weights on the host, in a dtype that numpy can read."""
    if weights.dtype in (torch.float32, torch.float64):
        return weights.cpu()
    return weights.float().cpu()
