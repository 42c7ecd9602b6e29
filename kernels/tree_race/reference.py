"""Race verification down a tree in plain PyTorch; README.md has the derivation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from draftwood.kernels.race_flows.reference import flows_of
from draftwood.kernels.tree_plan.arrays import DUST, FIXED, TreeCase, Undecidable, Walk
from draftwood.kernels.tree_traversal import reference as tree_traversal


class Chance(Protocol):
    """What decides."""

    def accept(self, p: float) -> bool:
        """Whether a coin of probability `p` says yes."""
        ...

    def choose(self, weights: Tensor) -> int:
        """A token drawn from float64 `[vocab]`."""
        ...

    def time(self, node: int, masses: Sequence[float]) -> float:
        """When the last of events that wait for each other came at `node`, one for each rate."""
        ...


@dataclass(kw_only=True)
class Tape(tree_traversal.Tape):
    """Uniforms, used from the first on, and exponential times of rate 1 `[nodes, most + 1]`."""

    waits: Tensor

    def accept(self, p: float) -> bool:
        return self.toss() < p

    def choose(self, weights: Tensor) -> int:
        return tree_traversal.choose(weights, self.toss())

    def time(self, node: int, masses: Sequence[float]) -> float:
        waits: list[float] = self.waits[node].tolist()
        return sum(wait / mass for wait, mass in zip(waits[: len(masses)], masses, strict=True))


@dataclass(frozen=True, eq=False)
class Judged:
    """What is settled at a node before a coin is tossed.

    Attributes:
        tries: its children in the order in which they are tried, each with its allowance.
        left: of the target times the node's allowance, when all have failed, float64 `[vocab]`.
    """

    tries: list[tuple[int, float]]
    left: Tensor


def walk(case: TreeCase, waits: Tensor) -> Walk:
    """Judge the tree by the uniforms of `case` and these `waits` (see `Tape`).

    Raises:
        Undecidable: a law or a target on the way is no distribution, or the uniforms are used up.
    """
    tape = Tape(uniforms=case.uniforms.tolist(), waits=waits)
    path, extra = judged(case, tape)
    return Walk(tuple(path), extra, not case.children[path[-1]], tape.used)


def judged(case: TreeCase, chance: Chance) -> tuple[list[int], int]:
    """The accepted path and the extra token.

    Raises:
        Undecidable: a law or a target on the way is no distribution.
    """

    def visit(node: int, allowance: float) -> tuple[list[int], int] | None:
        """What is accepted from `node` down, and the extra token; None where nothing is."""
        settled = at_node(case, node, allowance, chance)
        for child, allowed in settled.tries:
            if allowed < DUST:
                continue
            if case.children[child]:
                below = visit(child, allowed)
            else:
                accepted = chance.accept(allowed)
                below = ([child], chance.choose(case.targets[child].double())) if accepted else None
            if below is not None:
                return [node, *below[0]], below[1]
        left, deficit = float(settled.left.sum()), 1 - allowance
        if chance.accept(left / (left + deficit) if deficit > 0 else 1.0):
            return [node], chance.choose(settled.left)
        return None

    walked = visit(0, 1.0)
    assert walked is not None
    return walked


def at_node(case: TreeCase, node: int, allowance: float, chance: Chance) -> Judged:
    """What is settled at `node`.

    Raises:
        Undecidable: its law or target is no distribution.
    """
    siblings, target = case.children[node], case.targets[node]
    tokens, wanted = [case.tokens[child] for child in siblings], target.double() * allowance
    if not siblings:
        return Judged([], wanted)
    if not bool(((wanted[tokens] >= 0) & (wanted[tokens] < float("inf"))).all()):
        raise Undecidable
    draft = case.laws[siblings[0]]
    if case.draw_kinds[siblings[0]] == FIXED or draft is None:
        return _all_of(siblings, tokens, wanted)
    if not (abs(float(draft.double().sum()) - 1) <= 1e-3 and float(draft.min()) >= 0):
        raise Undecidable
    offer = draft.double()
    if len(siblings) == 1:
        mass, most = float(offer[tokens[0]]), float(wanted[tokens[0]])
        allowed = most and min(1.0, most / mass if mass > 0 else 1.0)
        return Judged([(siblings[0], allowed)], (wanted - offer).clamp(min=0))
    if not bool((offer[tokens] > 0).all()):
        raise Undecidable
    masses = [float(offer.index_fill(0, torch.tensor(tokens), 0).sum())]
    for token in tokens[::-1]:
        masses.insert(0, masses[0] + float(offer[token]))
    if not masses[-1] > 0:
        return _all_of(siblings, tokens, wanted)
    factor = 1 / float(offer.sum()) if len(tokens) == 2 else min(chance.time(node, masses), 1e300)
    found = flows_of(
        draft,
        target,
        factor=torch.tensor(factor, dtype=torch.float64),
        count=len(tokens),
        allowance=allowance,
    )
    if not float(found.flows.sum()) >= 0:
        raise Undecidable
    place = {token: index for index, token in enumerate(found.tokens.tolist())}
    pairs = zip(siblings, tokens, strict=True)
    offered = sorted((place[token], child) for child, token in pairs if token in place)
    left = wanted.index_put((found.tokens,), (wanted[found.tokens] - found.flows).clamp(min=0))
    tries = [(child, float(found.allowances[index])) for index, child in offered]
    if len(offered) == len(siblings):  # what is not offered would stand behind the last one
        index, child = offered[-1]
        tries[-1] = (child, float(found.last_allowances[index]))
    return Judged(tries, left)


def _all_of(siblings: list[int], tokens: list[int], wanted: Tensor) -> Judged:
    """Where the children are all that could be drawn, each in the order of tokens takes what it wants."""
    order = sorted(range(len(tokens)), key=tokens.__getitem__)
    tries, earlier = [], 0.0
    for index in order:
        mass = float(wanted[tokens[index]])
        tries.append((siblings[index], min(1.0, mass / (1 - earlier)) if earlier < 1 else 0.0))
        earlier += mass
    return Judged(tries, wanted.index_fill(0, torch.tensor(tokens), 0))
