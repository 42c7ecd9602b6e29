"""The verifiers' walk on the host, which is proved lossless, as the reference of kernels that judge trees.

Tests and benchmarks hold a kernel's result against it, draw by draw: both take the same uniforms. The host
rule computes in float64 from the float32 distributions that the kernel reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import attrs
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    InvalidDistribution,
    InvalidInput,
    PerChild,
    Proposal,
    Randomness,
    TapeRandomness,
    TokenTree,
    TopThenSample,
    Verifier,
    WithoutReplacement,
)
from draftwood.kernels.race_flows import reference as race_flows
from draftwood.kernels.tree_plan.arrays import FIXED, REMAINING, TreeCase, Walk
from draftwood.strategies.verifiers.orders import race_order
from draftwood.strategies.verifiers.orders.race_flows import Flows
from draftwood.strategies.verifiers.orders.race_laws import SetLaw


def host_walk(verifier: Verifier, case: TreeCase, waits: Tensor | None = None) -> Walk | None:
    """Returns the outcome of `verifier` on the tree of `case`, whose distributions are on the CPU.

    Args:
        verifier: judges by its `verify`.
        case: the tree, its targets and the tape of uniforms.
        waits: for race order, the exponential times of rate 1 of every node, `[nodes, most + 1]`.

    Returns:
        None where the verifier finds something to complain of, such as a tape that has ended.
    """
    rng = TapeRandomness(case.uniforms)
    if waits is not None:
        clocked = [node for node, children in enumerate(case.children) if len(children) > 2]
        rng = WaitingTape(case.uniforms, waits=waits[clocked])
    try:
        outcome = verifier.verify(tree_of(case), case.targets.double(), rng)
    except (InvalidDistribution, InvalidInput):
        return None
    return Walk(tuple(outcome.path), outcome.extra, outcome.bonus, rng.used)


@attrs.define(eq=False)
class WaitingTape(TapeRandomness):
    """A tape whose nodes' own streams give times of arrival that were drawn before.

    Attributes:
        waits: exponential times of rate 1 of every node that has a stream, `[nodes, most + 1]`.
    """

    waits: Tensor = attrs.field(kw_only=True)

    def nodes(self, n: int) -> Sequence[Randomness]:  # type: ignore[override]
        return [Waits(of_node) for of_node in self.waits[:n]]


@attrs.define(eq=False)
class Waits(TapeRandomness):
    """The stream of one node, whose tape holds exponential times of rate 1."""

    def arrival(self, rates: Sequence[float]) -> float:
        waits: list[float] = self.tape.tolist()
        return sum(wait / rate for wait, rate in zip(waits, rates, strict=False))


def tree_of(case: TreeCase) -> TokenTree:
    """The tree of `case` with its laws in float64."""
    laws = {node: _law(case, children) for node, children in enumerate(case.children) if children}
    return TokenTree(torch.tensor(case.tokens), torch.tensor(case.parents), laws)


def _law(case: TreeCase, siblings: Sequence[int]) -> Proposal:
    kinds = [case.draw_kinds[child] for child in siblings]
    tokens = [case.tokens[child] for child in siblings]
    laws = [None if law is None else law.double() for law in (case.laws[child] for child in siblings)]
    law = next((law for law in laws if law is not None), None)
    fixed = kinds.count(FIXED)
    if law is None or fixed == len(siblings):
        return Deterministic(tokens, case.targets.shape[-1])
    if kinds[-1] != REMAINING:
        return PerChild([law for law in laws if law is not None])
    return TopThenSample(law, tokens[:fixed]) if fixed else WithoutReplacement(law)


@contextmanager
def flows_of_the_device() -> Iterator[None]:
    """Inside it race order takes the flows that the device settles, by their float64 reference.

    The walk, the law of the siblings and the time of a node are the host rule's.
    """

    def flows_of(law: SetLaw, target: Tensor, scale: float = 1.0) -> Flows:
        mass = float(target.sum(dtype=torch.float64))
        if mass < 0.5:  # a small allowance is in the target, not in the scale
            target, scale = target / mass, scale / mass
        found = race_flows.flows_of(
            _as_read(law.weights),
            _as_read(target),
            factor=torch.tensor(law.factor, dtype=torch.float64),
            count=law.count,
            allowance=1 / scale,
        )
        return Flows(
            *(one.numpy() for one in (found.tokens, found.flows, found.allowances, found.last_allowances))
        )

    with patch.object(race_order, "flows_of", flows_of):
        yield


def _as_read(weights: Tensor) -> Tensor:
    """`weights` in float32, as kernels read them, unless they are finer numbers."""
    read = weights.float()
    return read if torch.equal(read.double(), weights.double()) else weights
